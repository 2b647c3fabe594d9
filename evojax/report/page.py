"""`report.html`: everything a run did and why, on one page without network."""

import base64
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import os
import pathlib
from typing import Any

import jinja2

from evojax import workdir as workdir_lib
from evojax.report import calibration
from evojax.report import charts
from evojax.report import diffs
from evojax.report import history
from evojax.report import rollouts
from evojax.report import svg

FILE = 'report.html'
# Versions whose rollouts and flips are on the page: a run of hundreds would
# make it too large to open. The lineage first, then the newest.
MAX_READABLE = 40

_LAYERS = ('score', 'signal', 'behaviour', 'version')
_SCORES = {
    'base': 'base policy',
    'continued': 'evolved, continued',
    'evolved': 'evolved, from base',
}
_ORDER = (*_SCORES, 'reference', 'seed', 'random')
_TEMPLATES = pathlib.Path(__file__).with_name('templates')

# Field of a row, its name, how it is written; the decision of a trial.
_DECISION = (
    ('verify', 'effect', 'effect', 'points'),
    ('verify', 'standard_error', 'standard error', 'size'),
    ('verify', 'df', 'degrees of freedom', 'number'),
    ('verify', 'low', '95 % low', 'points'),
    ('verify', 'high', '95 % high', 'points'),
    ('verify', 'p', 'p, one-sided', 'p'),
    ('verify', 'alpha', 'α, online FDR', 'p'),
    ('verify', 'sigma_seed', 'σ between seeds', 'size'),
    ('trial', 'mde', 'minimum detectable effect', 'size'),
    ('verify', 'wilcoxon_p', 'Wilcoxon p', 'p'),
    ('verify', 'control', 'controls, mean score', 'share'),
    ('verify', 'child', 'children, mean score', 'share'),
    ('verify', 'perturbed_effect', 'effect, perturbed', 'points'),
)


def _p_value(value: float) -> str:
  return '< 0.0001' if value < 1e-4 else f'{value:.4f}'


_FORMS: dict[str, Callable[[float], str]] = {
    'points': lambda v: f'{charts.points(v, "+.2f")} pt',
    'size': lambda v: f'{charts.points(v, ".2f")} pt',
    'share': charts.share,
    'p': _p_value,
    'number': charts.short,
}


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of the ledger: as it stands there, and as it is read."""

  name: str
  exact: str  # Its repr; '' if the row does not have it yet.
  text: str


@dataclasses.dataclass(frozen=True)
class Score:
  """A sealed score or gain; `note` says why there is none."""

  name: str
  value: float | None
  interval: tuple[float, float] | None
  strip: svg.Markup | None
  note: str = ''


def _number(name: str, value: Any, form: str) -> Number:
  number = history.number(value)
  if number is None:
    return Number(name, '', '–')
  return Number(name, repr(value), _FORMS[form](number))


def _decision(trial: history.Trial) -> list[Number]:
  """The numbers that the verdict rests on, as the ledger has them."""
  return [
      _number(name, trial.get(step, field), form)
      for step, field, name, form in _DECISION
  ]


def _estimate(value: Any) -> tuple[float | None, Any]:
  """(value, interval) of {'value', 'low', 'high'}."""
  if not isinstance(value, Mapping):
    return None, None
  ends = history.interval([value.get('low'), value.get('high')])
  return history.number(value.get('value')), ends


def _in_order(entries: Mapping[str, Any]) -> list[tuple[str, Any]]:
  """Entries that are estimates or say why they are not."""
  order = [*(n for n in _ORDER if n in entries), *entries]
  found = []
  for name in dict.fromkeys(order):
    value = entries[name]
    if isinstance(value, Mapping) and 'value' not in value:
      # A compared run brings its scores by name.
      inner = value.get('sealed', value)
      own = next(
          (inner[k] for k in ('evolved', 'trained', 'continued') if k in inner),
          'not run',
      )
      found.append((name, own))
    elif isinstance(value, (Mapping, str)) or value is None:
      found.append((name, value))
  return found


def _scores(final: Mapping[str, Any]) -> tuple[list[Score], list[Score]]:
  """Sealed scores of this run and those compared with it, and the gains."""
  sealed = final.get('sealed')
  sealed = dict(sealed) if isinstance(sealed, Mapping) else {}
  gains: dict[str, Any] = {}
  for name in [n for n in sealed if n.startswith('gain')]:
    value = sealed.pop(name)
    nested = isinstance(value, Mapping) and 'value' not in value
    gains |= value if nested else {name: value}
  compared = final.get('compare')
  entries = _in_order(sealed)
  entries += _in_order(compared) if isinstance(compared, Mapping) else []
  estimates = [_estimate(value) for _, value in entries]
  ends = [e for _, ends in estimates for e in ends or ()]
  scale = svg.Scale.over(ends, pad=0.15, least=0.05)
  scores = []
  for (name, raw), (value, ends) in zip(entries, estimates, strict=True):
    label = f'{name}: {charts.share(value)}'
    marks: list[tuple] = []
    if ends:
      marks.append(('whisker', *ends, 'whisker sealed'))
    if value is not None:
      class_ = 'dot kept' if name in ('continued', 'evolved') else 'dot other'
      marks.append(('dot', value, class_))
    strip = svg.strip(scale, marks, label=label) if marks else None
    note = raw if isinstance(raw, str) else 'not run'
    shown = _SCORES.get(name, name)
    scores.append(Score(shown, value, ends, strip, '' if marks else note))
  found = [(name, *_estimate(value)) for name, value in gains.items()]
  return scores, [
      Score(name.replace('_', ' '), value, ends, None)
      for name, value, ends in found
      if value is not None
  ]


def _counted(count: int, noun: str) -> str:
  return f'{count} {noun}' + ('' if count == 1 else 's')


def _against(final: Mapping[str, Any]) -> str:
  """The compared run that says most about what evolution was worth."""
  compared = final.get('compare')
  compared = _in_order(compared) if isinstance(compared, Mapping) else []
  for wanted, text in (
      ('seed', 'the seed harness, not evolved'),
      ('reference', 'the reference'),
  ):
    value, _ = _estimate(dict(compared).get(wanted))
    if value is not None:
      return f', against {charts.share(value)} for {text}'
  return ''


def _verdict(run: history.History) -> str:
  """The run in one sentence."""
  trials = run.trials
  kept = sum(t.kind == 'keep' for t in trials)
  so_far = f'{kept} of {_counted(len(trials), "change")} kept'
  final, stop = run.last('final'), run.last('stop')
  sealed = final.get('sealed')
  if isinstance(sealed, Mapping):
    value, ends = _estimate(sealed.get('evolved') or sealed.get('continued'))
    base, _ = _estimate(sealed.get('base'))
    if value is not None and base is not None:
      inside = f' [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]' if ends else ''
      return (
          f'{so_far}; on sealed problems the final harness takes the base'
          f' policy from {charts.share(base)} to {charts.share(value)}{inside}'
          f'{_against(final)}.'
      )
  gained = charts.levels(run).get(run.head, 0.0)
  on_dev = f'{charts.points(gained)} points on dev by the sum of their effects'
  if stop:
    reason = f' ({stop["reason"]})' if stop.get('reason') else ''
    return f'Stopped{reason}: {so_far}, {on_dev}.'
  where = run.rows[-1]['step']
  if not trials:
    return f'Running: no trial yet; the last step on record is {where}.'
  return f'Running, last step {where}: {so_far}, {on_dev}.'


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
        (kind, ' '.join(filter(None, (limit[0], charts.short(limit[1])))))
        for kind in ('warn', 'critical')
        if (limit := charts.threshold(last.get(kind)))
    ]
    value = history.number(last.get('value'))
    layers.setdefault(str(last.get('layer')), []).append({
        'name': name,
        'unit': str(last.get('unit') or ''),
        'value': charts.short(value) if value is not None else 'failed',
        'level': level,
        'limits': limits,
        'chart': charts.measure(series),
        'ends': ends,
    })
  return [{'name': k, 'measures': v} for k, v in layers.items()]


def _readable(run: history.History) -> set[str]:
  """Trials whose rollouts are shown."""
  trained = [t.name for t in run.trials if t.arms]
  in_line = [name for name in trained if name in run.lineage]
  others = [name for name in trained if name not in run.lineage]
  return set((in_line[::-1] + others[::-1])[:MAX_READABLE])


def _statistics(trial: history.Trial) -> list[tuple[str, str]]:
  """What the backtest reported."""
  found = trial.get('backtest', 'statistics', {})
  if not isinstance(found, Mapping):
    return []
  rows = []
  for name, value in found.items():
    number = history.number(value)
    rows.append((name, str(value) if number is None else charts.short(number)))
  return rows


def _effects(trial: history.Trial, scale: svg.Scale) -> list[dict[str, Any]]:
  """Predictions and what came of them, one line each."""
  mark = 'dot kept' if trial.kind == 'keep' else 'dot discarded'
  zero = ('rule', 0.0, 'zero')
  mde = history.number(trial.get('trial', 'mde'))
  perturbed = history.number(trial.get('verify', 'perturbed_effect'))
  rows = []
  for name, bar in (
      ('hypothesis', trial.expected),
      ('backtest', trial.backtested),
  ):
    if bar:
      rows.append((name, charts.between(bar), [zero, ('bar', *bar, 'predicted')]))
  if trial.effect is not None:
    marks: list[tuple] = [zero]
    if mde is not None:
      marks.append(('rule', mde, 'detectable'))
    if trial.realised:
      marks.append(('whisker', *trial.realised, 'whisker'))
    marks.append(('dot', trial.effect, mark))
    text = f'{charts.points(trial.effect)} {charts.between(trial.realised)}'
    rows.append(('realised', text, marks))
  if perturbed is not None:
    marks = [zero, ('dot', perturbed, 'dot discarded')]
    rows.append(('perturbed', charts.points(perturbed), marks))
  return [
      {
          'name': name,
          'text': text,
          'strip': svg.strip(scale, marks, label=f'{name}: {text} points'),
      }
      for name, text, marks in rows
  ]


def _before(run: history.History, trial: history.Trial) -> str:
  """The harness that a trial started from."""
  harness = str(run.last('open').get('harness', ''))
  by_name = {t.name: t for t in run.trials}
  parent = by_name.get(run.parents[trial.name])
  if parent is not None:
    return str(parent.get('design', 'harness', ''))
  return str(run.base.get('harness') or harness)


def _section(
    path: pathlib.Path,
    run: history.History,
    trial: history.Trial,
    scale: svg.Scale,
    config: Mapping[str, Any],
    readable: bool,
) -> dict[str, Any]:
  """Everything about one trial."""
  after = str(trial.get('design', 'harness', ''))
  child = trial.arm('child')
  controls = [str(a.get('arm')) for a in trial.arms if a.get('role') == 'control']
  control = trial.arm('control')
  others = [c for c in controls if c != control]
  reasons = [*trial.get('admit', 'reasons', ())]
  reasons += trial.get('verify', 'reasons', ())
  texts = [
      (name, str(text))
      for name in ('trigger', 'criterion', 'rollback', 'source', 'skill', 'note')
      if (text := trial.get('hypothesize', name))
  ]
  skill = trial.get('accumulate', 'skill')
  if skill:
    texts.append(('skill written', str(skill)[:12]))
  return {
      'trial': trial,
      'change': diffs.change_text(trial.delta),
      'hypothesis': str(trial.get('hypothesize', 'hypothesis', '')),
      'texts': texts,
      'reasons': [str(reason) for reason in reasons],
      'alerts': [str(a) for a in trial.get('diagnose', 'alerts', ())],
      'new_alerts': [str(a) for a in trial.get('verify', 'alerts', ())],
      'decision': _decision(trial),
      'effects': _effects(trial, scale),
      'statistics': _statistics(trial),
      'curves': charts.arms(trial),
      'diff': diffs.compare(path, _before(run, trial), after, config),
      'mde': history.number(trial.get('trial', 'mde')),
      'strip': charts.effect_strip(trial, scale),
      'readable': readable,
      'sampled': rollouts.sample(path, child) if readable and child else None,
      'flips': (
          rollouts.flips(path, control, child, others[0] if others else '')
          if readable and child and control
          else None
      ),
  }


def _signs_text(signs: calibration.Signs) -> str:
  if not signs.decided:
    return 'No realised effect has an interval that excludes 0 yet.'
  effects = _counted(signs.decided, 'realised effect')
  whose = 'interval excludes' if signs.decided == 1 else 'intervals exclude'
  return (
      f'Of {effects} whose {whose} 0, the sign of {signs.right} was predicted'
      f' ({charts.share(signs.right / signs.decided)}). Base rate, always'
      f' naming the commoner sign: {signs.base}'
      f' ({charts.share(signs.base / signs.decided)}).'
  )


def _calibration(run: history.History) -> dict[str, Any]:
  """Predicted against realised, by whom and by class."""
  sides = []
  for name, predict in (
      ('Hypotheses', lambda trial: trial.expected),
      ('Backtests', lambda trial: trial.backtested),
  ):
    sides.append({
        'name': name,
        'chart': charts.scatter(run.trials, predict),
        'signs': _signs_text(calibration.signs(run.trials, predict)),
        'total': calibration.row('all', run.trials, predict),
    })
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


def _rate(config: Mapping[str, Any]) -> float:
  """Dollars per device-hour, 0 if the (flat) config does not say."""
  for name, value in config.items():
    if name.rpartition('.')[2] == 'dollars_per_device_hour':
      return history.number(value) or 0.0
  return 0.0


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
  tokens = [run.base.get('sampled_tokens')]
  tokens += [a.get('sampled_tokens') for t in run.trials for a in t.arms]
  rate = _rate(config)
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


def _duration(seconds: float) -> str:
  """'42 s', '12 min', '3.4 h'."""
  if seconds < 90:
    return f'{seconds:.0f} s'
  return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'


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
      'points': charts.points,
      'share': charts.share,
      'between': charts.between,
      'short': charts.short,
      'signed': charts.signed,
      'duration': _duration,
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
  scores, gains = _scores(run.last('final'))
  retrained = [
      (str(row.get('version', '')), chart)
      for row in run.of('train')[1:]
      if (chart := charts.retrained(row))
  ]
  seed = str(run.base.get('harness') or opened.get('harness', ''))
  by_name = {t.name: t for t in run.trials}
  head = by_name.get(run.head)
  last = str(head.get('design', 'harness', '')) if head else seed
  return {
      'name': str(config.get('name') or path.resolve().name),
      'verdict': _verdict(run),
      'run': run,
      'running': not (run.of('final') or run.of('stop')),
      'scores': scores,
      'gains': gains,
      'lineage': charts.lineage(run) if run.trials else None,
      'training': charts.training(run),
      'layers': _layers(run),
      'sections': [
          _section(path, run, trial, scale, config, trial.name in readable)
          for trial in run.trials
      ],
      'axis': [(svg.percent(scale(t)), charts.points(t, '+.0f'))
               for t in scale.ticks(4)],
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
