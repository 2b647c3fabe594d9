"""The page's charts: training curves, diagnostics, effects, cost."""

from collections.abc import Sequence
import itertools
import statistics

from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records
from evojax.report import diffs
from evojax.report import lineage
from evojax.report import numerals
from evojax.report import svg

_SMOOTH = 5  # Updates in the running mean of a training curve.
_LEVELS = ('ok', 'warn', 'critical')
# Step -> (class, name) of its device-seconds; all others are 'other'.
COSTS = {
    'train': ('cost-train', 'training'),
    'trial': ('cost-trial', 'trials'),
    'backtest': ('cost-backtest', 'backtests'),
    'retrain': ('cost-final', 'retraining from the base'),
}
OTHER_COST = ('cost-other', 'everything else')


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
  """Return the mean over arms at each update that all of them made."""
  filled = [curve for curve in curves if curve]
  return [statistics.fmean(step) for step in zip(*filled, strict=False)]


def _smooth(curve: Sequence[float]) -> list[float]:
  """Return the centred running mean; its window is shorter at the ends."""
  half = _SMOOTH // 2
  return [
      statistics.fmean(curve[max(i - half, 0) : i + half + 1])
      for i in range(len(curve))
  ]


def _update_axis(chart: svg.Chart, count: int) -> None:
  """Label the x axis with whole updates only."""
  ticks = [t for t in chart.x.ticks(count) if t == round(t)]
  chart.x_axis((tick, f'{tick:.0f}') for tick in ticks)


def _by_role(trial: history.Trial, role: str) -> list[Sequence[float]]:
  return [arm.outcome for arm in trial.role(role)]


def training(run: history.History) -> svg.Markup | None:
  """Draw the solved share over all updates, from the base along the lineage."""
  root = _smooth(run.base.outcome if run.base else ())
  ends = {run.base_version: len(root)}
  lines = [(0, root, 'lineage', f'{run.base_version}: seed harness')]
  for trial in run.trials:
    start = ends.get(run.parents[trial.name], 0)
    control = _smooth(mean_curve(_by_role(trial, 'control')))
    child = _smooth(mean_curve(_by_role(trial, 'child')))
    ends[trial.name] = start + len(child)
    what = f'{trial.name}, {diffs.change_text(trial.delta)}: {trial.status}'
    in_line = trial.name in run.lineage
    lines.append((start, control, 'control', f'controls of {trial.name}'))
    lines.append((start, child, 'lineage' if in_line else 'aside', what))
  # The lineage lies on top.
  lines = sorted(
      (line for line in lines if len(line[1]) > 1),
      key=lambda line: ('control', 'aside', 'lineage').index(line[2]),
  )
  if not lines:
    return None
  x = svg.Scale(0, max(start + len(curve) for start, curve, _, _ in lines))
  y = svg.Scale.over([v for _, curve, _, _ in lines for v in curve], least=0.1)
  chart = svg.Chart(
      x,
      y,
      height=240,
      label='Solved share of training rollouts by update',
      class_='many' if len(run.trials) > lineage.MANY else '',
  )
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in y.ticks(5))
  _update_axis(chart, 5)
  for start, curve, class_, title in lines:
    chart.line([(start + i + 1, v) for i, v in enumerate(curve)], class_, title)
  return chart.render()


def retrained(arm: records.Retrain) -> svg.Markup | None:
  """Draw the solved share by update of one training."""
  curve = arm.outcome
  if len(curve) < 2:
    return None
  label = f'Solved share by update, {arm.version}'
  chart = _solved_share(len(curve), curve, label)
  chart.line(list(enumerate(curve, 1)), 'child thin')
  chart.line(list(enumerate(_smooth(curve), 1)), 'child bold')
  return chart.render()


def _solved_share(
    updates: int, values: Sequence[float], label: str
) -> svg.Chart:
  """Return an empty chart of solved shares by update."""
  x, y = svg.Scale(1, updates), svg.Scale.over(values, least=0.1)
  chart = svg.Chart(x, y, height=170, label=label)
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in y.ticks(4))
  _update_axis(chart, 4)
  return chart


def arms(trial: history.Trial) -> svg.Markup | None:
  """Draw the solved share by update: arms thin, the mean of a role bold."""
  roles = ('control', 'child')
  curves = {role: _by_role(trial, role) for role in roles}
  values = [v for role in roles for curve in curves[role] for v in curve]
  longest = max((len(c) for role in roles for c in curves[role]), default=0)
  if longest < 2:
    return None
  label = f'Solved share by update, arms of {trial.name}'
  chart = _solved_share(longest, values, label)
  for role in roles:
    for arm in trial.role(role):
      title = f'{arm.scores}, seed {arm.seed}: {arm.status}'
      line = list(enumerate(arm.outcome, 1))
      chart.line(line, f'{role} thin', title)
  for role in roles:
    line = list(enumerate(_smooth(mean_curve(curves[role])), 1))
    if len(line) > 1:
      chart.line(line, f'{role} bold', f'{role}: mean over arms')
  return chart.render()


def measure(
    series: Sequence[tuple[str, records.Measure | None]],
) -> svg.Markup:
  """Draw one diagnostic over the diagnoses, with its limits.

  Args:
    series: (where, measure) of every diagnosis in the order of the ledger; None
      where a diagnosis lacked the measure. The last is there.
  """
  newest = series[-1][1]
  limits = [
      (kind, limit[1])
      for kind, limit in (('warn', newest.warn), ('critical', newest.critical))
      if limit
  ]
  values = [m.value if m else None for _, m in series]
  there = [v for v in values if v is not None] + [v for _, v in limits]
  y = svg.Scale.over(there, pad=0.12, least=0.02)
  x = svg.Scale(-0.5, len(series) - 0.5)
  chart = svg.Chart(x, y, height=84, label=newest.name, class_='small')
  chart.y_axis((tick, numerals.short(tick)) for tick in y.ticks(3))
  for kind, limit in limits:
    chart.segment((x.low, limit), (x.high, limit), f'limit {kind}')
  # The line is broken where a value is missing.
  for known, points in itertools.groupby(
      enumerate(values), key=lambda point: point[1] is not None
  ):
    line = list(points)
    if known and len(line) > 1:
      chart.line(line, 'measure')
  many = len(series) > lineage.MANY
  for index, (where, one) in enumerate(series):
    if one is None:  # This diagnosis had no such measure.
      continue
    if one.value is None:
      title = f'{where}: {one.level}'
      chart.text(index, y.low, '×', 'cross', title=title)
    elif not many or one.level != 'ok' or index == len(series) - 1:
      title = f'{where}: {numerals.short(one.value)} ({one.level})'
      radius = 2.2 if many else 3.2
      class_ = 'failed' if one.level not in _LEVELS else one.level
      chart.dot(index, one.value, f'level-{class_}', radius=radius, title=title)
  return chart.render()


def effects_scale(trials: Sequence[history.Trial]) -> svg.Scale:
  """Return one scale for all intervals of the table of trials."""
  values = [0.0]
  for trial in trials:
    values += trial.expected or ()
    values += trial.realised or ()
    values += [trial.mde] if trial.mde is not None else []
  values.sort()
  # A collapse must not flatten all others: it is cut at the edge.
  cut = len(values) // 50
  return svg.Scale.over([0.0, *values[cut : len(values) - cut]], least=0.02)


def effect_strip(trial: history.Trial, scale: svg.Scale) -> svg.Markup:
  """Draw prediction, realised effect, its interval and what is detectable."""
  marks: list[tuple] = [('rule', 0.0, 'zero')]
  if trial.expected:
    marks.append(('bar', *trial.expected, 'predicted'))
  if trial.mde is not None:
    marks.append(('rule', trial.mde, 'detectable'))
  mark = lineage.MARKS[trial.kind]
  if trial.realised:
    marks.append(('whisker', *trial.realised, f'whisker {mark}'))
  if trial.effect is not None:
    marks.append(('dot', trial.effect, f'dot {mark}'))
  label = (
      f'predicted {numerals.between(trial.expected) or "nothing"}, realised'
      f' {numerals.effect(trial.effect, trial.realised)}, detectable'
      f' {numerals.points(trial.mde)} points'
  )
  return svg.strip(scale, marks, label=label)


def scatter(
    trials: Sequence[history.Trial], predict: calibration.Predict
) -> svg.Markup | None:
  """Draw predicted against realised effects, with both intervals."""
  both = calibration.compared(trials, predict)
  if not both:
    return None
  values = [0.0]
  for trial in both:
    values += [*predict(trial), trial.effect, *trial.realised]
  values.sort()
  cut = len(values) // 50
  scale = svg.Scale.over([0.0, *values[cut : len(values) - cut]], least=0.02)
  chart = svg.Chart(
      scale,
      scale,
      height=300,
      label='Realised against predicted effect, in points',
      class_='square',
  )
  ticks = [(tick, numerals.points(tick, '+.0f')) for tick in scale.ticks(5)]
  chart.y_axis(ticks)
  chart.x_axis(ticks)
  chart.segment((0.0, scale.low), (0.0, scale.high), 'origin')
  chart.segment((scale.low, 0.0), (scale.high, 0.0), 'origin')
  chart.segment((scale.low, scale.low), (scale.high, scale.high), 'diagonal')
  inside = lambda v: min(max(v, scale.low), scale.high)
  many = len(both) > lineage.MANY
  for trial in both:
    mark = lineage.MARKS[trial.kind]
    interval = tuple(map(inside, predict(trial)))
    x, y = inside(calibration.middle(interval)), inside(trial.effect)
    if not many:
      chart.segment((interval[0], y), (interval[1], y), 'cross-x')
      low, high = map(inside, trial.realised)
      chart.segment((x, low), (x, high), f'whisker {mark}')
    title = (
        f'{trial.name}: predicted {numerals.between(predict(trial))}, realised'
        f' {numerals.effect(trial.effect, trial.realised)} points'
    )
    radius = 3.2 if many else 5.0
    href = f'#{lineage.anchor(trial)}'
    chart.dot(x, y, f'dot {mark}', radius=radius, title=title, href=href)
  return chart.render()


def stacked(parts: Sequence[tuple[str, svg.Real, str]]) -> svg.Markup:
  """Draw one bar of shares; each part is (name, amount, class)."""
  total = sum(amount for _, amount, _ in parts) or 1.0
  marks, start = [], 0.0
  for name, amount, class_ in parts:
    if amount > 0:
      marks.append(
          svg.element(
              'rect',
              svg.element('title', f'{name}: {numerals.short(amount)}'),
              x=svg.percent(start / total),
              width=svg.percent(amount / total),
              height='100%',
              class_=class_,
          )
      )
    start += amount
  label = ', '.join(
      f'{name} {numerals.short(amount)}' for name, amount, _ in parts
  )
  return svg.element(
      'svg', *marks, class_='stacked', height='14', role='img', aria_label=label
  )


def costs(run: history.History) -> svg.Markup | None:
  """Draw the device-seconds of every trial, by step."""
  trials = run.trials
  most = max((t.device_seconds for t in trials), default=0.0)
  if most <= 0:
    return None
  x = svg.Scale(-0.6, len(trials) - 0.4)
  y = svg.Scale(0.0, 1.05 * most)
  chart = svg.Chart(
      x, y, height=160, label='Device-seconds by trial', class_='bars'
  )
  chart.y_axis((tick, numerals.short(tick)) for tick in y.ticks(4))
  for trial in trials:
    low = 0.0
    for step, seconds in trial.seconds.items():
      if seconds > 0:
        class_, _ = COSTS.get(step, OTHER_COST)
        title = f'{trial.name}, {step}: {seconds:,.1f} device-seconds'
        chart.column(trial.index, low, low + seconds, class_, title)
      low += seconds
  every = max(1, -(-len(trials) // 12))
  chart.x_axis((float(t.index), lineage.label(t)) for t in trials[::every])
  return chart.render(f'--span:{len(trials)}')
