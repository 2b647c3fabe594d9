"""`report.html`: everything a run did and why, on one page without network."""

import base64
from collections.abc import Mapping
import functools
import hashlib
import os
import pathlib
from typing import Any

import jinja2

from evojax.report import calibration
from evojax.report import charts
from evojax.report import diffs
from evojax.report import history
from evojax.report import lineage
from evojax.report import numerals
from evojax.report import rollouts
from evojax.report import sealed
from evojax.report import svg
from evojax.report import trials
from evojax.runtime import workdir as workdir_lib

FILE = 'report.html'
# Versions whose rollouts and flips are on the page: a run of hundreds would
# make it too large to open. The lineage first, then the newest.
MAX_READABLE = 40

_LAYERS = ('score', 'signal', 'behaviour', 'version')
_TEMPLATES = pathlib.Path(__file__).with_name('templates')


def _layers(run: history.History) -> list[dict[str, Any]]:
  """The diagnostics of each layer over all diagnoses."""
  diagnoses = run.of('diagnose')
  tables = []
  for row in diagnoses:
    measures = [m for m in row.get('measures') or () if isinstance(m, Mapping)]
    tables.append({str(m.get('name')): m for m in measures})
  newest: dict[str, Mapping[str, Any]] = {}
  for table in tables:
    newest |= table
  where = [f'{d.get("version")}, trial {d.get("trial")}' for d in diagnoses]
  ends = [str(d.get('version')) for d in (*diagnoses[:1], *diagnoses[-1:])]
  layers: dict[str, list[dict[str, Any]]] = {name: [] for name in _LAYERS}
  for name, last in newest.items():
    series = [(w, t.get(name, {})) for w, t in zip(where, tables, strict=True)]
    while not series[-1][1]:
      series.pop()
    level = str(last.get('level', 'ok'))
    limits = [
        (kind, ' '.join(filter(None, (limit[0], numerals.short(limit[1])))))
        for kind in ('warn', 'critical')
        if (limit := charts.threshold(last.get(kind)))
    ]
    value = history.number(last.get('value'))
    layers.setdefault(str(last.get('layer')), []).append(
        {
            'name': name,
            'unit': str(last.get('unit') or ''),
            'value': numerals.short(value) if value is not None else 'failed',
            'level': level,
            'limits': limits,
            'chart': charts.measure(series),
            'ends': ends,
        }
    )
  return [{'name': k, 'measures': v} for k, v in layers.items()]


def _readable(run: history.History) -> set[str]:
  """Trials whose rollouts are shown."""
  trained = [t.name for t in run.trials if t.arms]
  in_line = [name for name in trained if name in run.lineage]
  others = [name for name in trained if name not in run.lineage]
  return set((in_line[::-1] + others[::-1])[:MAX_READABLE])


def _signs_text(signs: calibration.Signs) -> str:
  if not signs.decided:
    return 'No realised effect has an interval that excludes 0 yet.'
  effects = numerals.counted(signs.decided, 'realised effect')
  whose = 'interval excludes' if signs.decided == 1 else 'intervals exclude'
  return (
      f'Of {effects} whose {whose} 0, the sign of {signs.right} was predicted'
      f' ({numerals.share(signs.right / signs.decided)}). Base rate, always'
      f' naming the commoner sign: {signs.base}'
      f' ({numerals.share(signs.base / signs.decided)}).'
  )


def _calibration(run: history.History) -> dict[str, Any]:
  """Predicted against realised, by whom and by class."""
  sides = []
  for name, predict in (
      ('Hypotheses', lambda trial: trial.expected),
      ('Backtests', lambda trial: trial.backtested),
  ):
    sides.append(
        {
            'name': name,
            'chart': charts.scatter(run.trials, predict),
            'signs': _signs_text(calibration.signs(run.trials, predict)),
            'total': calibration.row('all', run.trials, predict),
        }
    )
  klass = lambda trial: str(trial.delta.get('klass') or 'none')
  proposer = lambda trial: str(trial.get('hypothesize', 'proposer', 'none'))
  expected = lambda trial: trial.expected
  return {
      'sides': sides,
      'tables': [
          ('class', calibration.by(run.trials, klass, expected)),
          ('proposer', calibration.by(run.trials, proposer, expected)),
      ],
  }


def _cost(run: history.History, config: Mapping[str, Any]) -> dict[str, Any]:
  """Device-seconds by step, by verdict and per point."""
  steps = run.seconds_by_step
  total = sum(steps.values())
  gained = 100 * sum(
      t.effect for t in run.trials if t.kind == 'keep' and t.effect is not None
  )
  groups = dict.fromkeys([*charts.COSTS.values(), charts.OTHER_COST], 0.0)
  for step, seconds in steps.items():
    group = charts.COSTS.get(step, charts.OTHER_COST)
    groups[group] += seconds
  verdicts: dict[str, float] = {}
  for trial in run.trials:
    spent = verdicts.get(trial.kind, 0.0)
    verdicts[trial.kind] = spent + trial.device_seconds
  # The controls of a version serve all trials on it.
  arms = {a.get('trained'): a for trial in run.trials for a in trial.arms}
  tokens = [
      arm.get('sampled_tokens')
      for arm in (run.base, *arms.values(), *run.of('retrain'))
  ]
  rate = history.number(config.get('evolve.dollars_per_device_hour'))
  return {
      'total': total,
      'wall': run.wall_seconds,
      'dollars': total / 3600 * rate if rate else None,
      'tokens': sum(history.number(t) or 0.0 for t in tokens),
      'per_point': total / gained if gained > 0 else None,
      'gained': gained,
      'steps': steps,
      'bar': charts.stacked([(n, s, c) for (c, n), s in groups.items()]),
      'groups': [(c, n, s) for (c, n), s in groups.items() if s],
      'verdicts': verdicts,
      'chart': charts.costs(run),
  }


def _hash_source(text: str) -> str:
  """The source expression that lets one inline script run and no other."""
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


@functools.cache  # Compiling the templates takes longer than a page.
def _environment() -> jinja2.Environment:
  """Templates that escape all they are given."""
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_TEMPLATES),
      autoescape=True,
      trim_blocks=True,
      lstrip_blocks=True,
      # Plain text only: markup of ours is made by `svg.element`.
      finalize=lambda value: (
          svg.visible(value) if type(value) is str else value
      ),
  )
  environment.filters |= {
      'points': numerals.points,
      'share': numerals.share,
      'between': numerals.between,
      'short': numerals.short,
      'signed': numerals.signed,
      'duration': numerals.duration,
      'tokens': numerals.tokens,
  }
  return environment


def _context(path: pathlib.Path, run: history.History) -> dict[str, Any]:
  """All that the template shows."""
  opened = run.last('open')
  config = opened.get('config')
  config = config if isinstance(config, Mapping) else {}
  config = workdir_lib.flatten(config)
  scale = charts.effects_scale(run.trials)
  readable = _readable(run)
  retrained = [
      (str(row.get('arm', '')), chart)
      for row in run.of('retrain')
      if (chart := charts.retrained(row))
  ]
  seed = str(run.base.get('harness') or opened.get('harness', ''))
  by_name = {t.name: t for t in run.trials}
  head = by_name.get(run.head)
  last = str(head.get('design', 'harness', '')) if head else seed
  return {
      'name': str(config.get('name') or path.resolve().name),
      'verdict': sealed.verdict(run),
      'run': run,
      'scores': sealed.scores(run.last('final')),
      'forked': str(opened.get('forked') or ''),
      'lineage': lineage.chart(run) if run.trials else None,
      'training': charts.training(run),
      'layers': _layers(run),
      'sections': [
          trials.section(
              path, run, trial, scale, config, trial.name in readable
          )
          for trial in run.trials
      ],
      'axis': [
          (svg.percent(scale(t)), numerals.points(t, '+.0f'))
          for t in scale.ticks(4)
      ],
      'shown': len(readable),
      'trained': sum(bool(t.arms) for t in run.trials),
      'base_sample': rollouts.sample(path, str(run.base.get('arm', ''))),
      'retrained': retrained,
      'calibration': _calibration(run),
      'cost': _cost(run, config),
      'evolved': (
          diffs.compare(path, seed, last, config) if last != seed else None
      ),
      'config': [
          (name, diffs.value_text(value))
          for name, value in sorted(config.items())
      ],
      'base_seconds': sum(
          history.number(m.get('device_seconds')) or 0.0
          for r, m in zip(run.rows, run.measured, strict=True)
          if r is run.base
      ),
  }


def build(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Writes the page of a run, at any moment of it.

  The page is one file: no network, no other file, one script that its content
  policy names by hash. Prompts and completions are shown as text.

  Args:
    workdir: Directory with a ledger; evidence and harnesses as far as they are
      there.

  Returns:
    <workdir>/report.html, complete or, after an error, as it was before.

  Raises:
    ValueError: If there is no ledger, or no whole row in it.
    workdir.DiskError: If the page cannot be written.
  """
  path = pathlib.Path(workdir)
  run = history.read(path)
  environment = _environment()
  script = (_TEMPLATES / 'page.js').read_text()
  style = (_TEMPLATES / 'page.css').read_text()
  text = environment.get_template('page.html').render(
      **_context(path, run),
      script=svg.Markup(script),
      style=svg.Markup(style),
      script_source=_hash_source(script),
  )
  target = path / FILE
  workdir_lib.write_atomic(target, text.encode())
  return target
