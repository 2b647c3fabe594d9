"""The page of a run, `report.html`: everything it did and why, in one file."""

import base64
from collections import defaultdict
import functools
import hashlib
import os
import pathlib
from typing import Any

import jinja2

from evojax import config as config_lib
from evojax.harness import run as run_lib
from evojax.ledger import budget
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records
from evojax.report import charts
from evojax.report import diffs
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
_BASE_FACTS = (
    'updates',
    'prompts',
    'group_size',
    'sampled_tokens',
    'start',
    'end',
    'harness',
)

_TEMPLATES = pathlib.Path(__file__).with_name('templates')


def _layers(run: history.History) -> list[dict[str, Any]]:
  """Return the diagnostics of each layer over all diagnoses."""
  diagnoses = run.all(records.Diagnose)
  tables = [{m.name: m for m in row.measures} for row in diagnoses]
  where = [f'{row.version}, trial {row.trial}' for row in diagnoses]
  ends = [row.version for row in (*diagnoses[:1], *diagnoses[-1:])]
  layers: dict[str, list[dict[str, Any]]] = {
      name: [] for name in run_lib.LAYERS
  }
  # A later diagnosis wins: it has the current unit and limits.
  for name, last in functools.reduce(dict.__or__, tables, {}).items():
    series = [(w, t.get(name)) for w, t in zip(where, tables, strict=True)]
    while series[-1][1] is None:
      series.pop()
    limits = [
        (kind, f'{limit[0]} {numerals.short(limit[1])}')
        for kind, limit in (('warn', last.warn), ('critical', last.critical))
        if limit
    ]
    failed = last.value is None
    layers.setdefault(last.layer, []).append(
        {
            'name': name,
            'unit': last.unit,
            'value': 'failed' if failed else numerals.short(last.value),
            'level': last.level,
            'limits': limits,
            'chart': charts.measure(series),
            'ends': ends,
        }
    )
  return [{'name': k, 'measures': v} for k, v in layers.items()]


def _readable(run: history.History) -> set[str]:
  """Return the names of the trials whose rollouts are shown."""
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
  """Compare predicted with realised effects, by class and by proposer."""
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
  expected = lambda trial: trial.expected
  return {
      'sides': sides,
      'tables': [
          (name, calibration.by(run.trials, key, expected))
          for name, key in (
              ('class', lambda trial: trial.intervention_class or 'none'),
              ('proposer', lambda trial: trial.proposer or 'none'),
          )
      ],
  }


def _cost(run: history.History, rate: float) -> dict[str, Any]:
  """Return the device-seconds by step, by verdict and per point.

  Args:
    run: The run.
    rate: Dollars per device-hour; 0 where no price is set.
  """
  steps = run.seconds_by_step
  total = budget.spent(run.rows)
  groups = dict.fromkeys([*charts.COSTS.values(), charts.OTHER_COST], 0.0)
  for step, seconds in steps.items():
    groups[charts.COSTS.get(step, charts.OTHER_COST)] += seconds
  verdicts: dict[str, float] = defaultdict(float)
  for trial in run.trials:
    verdicts[trial.kind] += trial.device_seconds
  return {
      'total': total,
      'wall': run.wall_seconds,
      'dollars': total / 3600 * rate if rate else None,
      'tokens': run.trained_tokens,
      'per_point': budget.per_point(run.rows),
      'gained': budget.promoted_points(run.rows),
      'steps': steps,
      'bar': charts.stacked([(n, s, c) for (c, n), s in groups.items()]),
      'groups': [(c, n, s) for (c, n), s in groups.items() if s],
      'verdicts': verdicts,
      'chart': charts.costs(run),
  }


def _hash_source(text: str) -> str:
  """Return the policy expression that lets one inline script run alone."""
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


@functools.cache  # Compiling the templates takes longer than a page.
def _environment() -> jinja2.Environment:
  """Return templates that escape all text they are given."""
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
  """Return all that the template shows."""
  opened = run.find(records.Open)
  config = config_lib.flatten(opened.config) if opened else {}
  scale = charts.effects_scale(run.trials)
  readable = _readable(run)
  seed = run.base.harness if run.base else opened.harness if opened else ''
  last = next(
      (t.design.harness for t in run.kept if t.name == run.head and t.design),
      seed,
  )
  base_facts = [
      (field.replace('_', ' '), getattr(run.base, field))
      for field in _BASE_FACTS
      if run.base
  ]
  return {
      'name': str(config.get('name') or path.resolve().name),
      'verdict': sealed.verdict(run),
      'run': run,
      'scores': sealed.scores(run.find(records.Final)),
      'forked': opened.forked if opened else '',
      'lineage': lineage.chart(run) if run.trials else None,
      'training': charts.training(run),
      'layers': _layers(run),
      'sections': [
          trials.section(path, trial, scale, config, trial.name in readable)
          for trial in run.trials
      ],
      'axis': [
          (svg.percent(scale(t)), numerals.points(t, '+.0f'))
          for t in scale.ticks(4)
      ],
      'shown': len(readable),
      'trained': sum(bool(t.arms) for t in run.trials),
      'base_facts': base_facts,
      'base_sample': rollouts.sample(path, run.base.folder if run.base else ''),
      'base_seconds': run.seconds_by_step.get('train', 0.0),
      'retrained': [
          (arm.folder, chart)
          for arm in run.all(records.Retrain)
          if (chart := charts.retrained(arm))
      ],
      'calibration': _calibration(run),
      'cost': _cost(run, config.get('evolve.dollars_per_device_hour', 0.0)),
      'evolved': (
          diffs.compare(path, seed, last, config) if last != seed else None
      ),
      'config': [
          (name, diffs.value_text(value))
          for name, value in sorted(config.items())
      ],
  }


def build(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Write the page of a run, at any moment of it.

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
