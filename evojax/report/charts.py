"""The page's charts: lineage, training curves, diagnostics, calibration."""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any

from evojax.report import calibration
from evojax.report import diffs
from evojax.report import history
from evojax.report import svg

_MANY = 30  # Trials; past that, marks shrink and intervals are left out.
_SMOOTH = 5  # Updates in the running mean of a training curve.
_CLIP = 0.10  # Effect below which a discarded version is drawn at the edge.
_MARKS = {'keep': 'kept', 'discard': 'discarded', 'running': 'running'}


def points(value: float | None, form: str = '+.1f') -> str:
  """A fraction in percentage points, with its sign: 0.021 -> '+2.1'."""
  return '–' if value is None else signed(100 * value, form)


def signed(value: float, form: str = '+.2f') -> str:
  """A number with its sign; zero has none."""
  text = format(value, form)
  if not float(text):
    text = text.lstrip('+-')
  return text.replace('-', '−')


def share(value: float | None) -> str:
  """0.413 -> '41.3 %'."""
  return '–' if value is None else f'{100 * value:.1f} %'


def between(interval: tuple[float, float] | None) -> str:
  """'[+0.4, +4.2]', in percentage points."""
  if interval is None:
    return ''
  return f'[{points(interval[0])}, {points(interval[1])}]'


def short(number: float | None) -> str:
  """A number of any size in three or four digits."""
  if number is None:
    return '–'
  if number == int(number) and abs(number) < 1e5:
    return str(int(number)).replace('-', '−')
  return f'{number:.3g}'.replace('-', '−')


def levels(run: history.History) -> dict[str, float]:
  """Version or trial -> summed effects from the base to it, a fraction."""
  found = {run.base_version: 0.0}
  for trial in run.trials:
    start = found.get(run.parents[trial.name], 0.0)
    found[trial.name] = start + (trial.effect or 0.0)
  return found


def lineage(run: history.History) -> svg.Markup:
  """The version tree: stems are trials, steps are what was kept.

  Each version is a horizontal line at the sum of the effects that led to it,
  from where it was made to its last child. A trial is a stem from its parent.
  """
  trials = run.trials
  level = levels(run)
  many = len(trials) > _MANY
  kept = [level[t.name] for t in trials if t.kind == 'keep'] + [0.0]
  floor = min(kept) - max(_CLIP, max(kept) - min(kept))
  ends = [max(value, floor) for value in level.values()]
  if not many:
    for trial in trials:
      if trial.realised and trial.effect is not None:
        start = level[trial.name] - trial.effect
        ends += [max(start + end, floor) for end in trial.realised]
  x = svg.Scale(-1.6, max(len(trials), 1) - 0.4)
  y = svg.Scale.over(ends, pad=0.08, least=0.04)
  chart = svg.Chart(
      x,
      y,
      height=300,
      label='Version tree: summed effect of each version over the base',
      class_='lineage',
  )
  chart.y_axis((tick, points(tick, '+.0f')) for tick in y.ticks(5))
  place = {run.base_version: -1.0} | {t.name: float(t.index) for t in trials}
  last = dict(place)  # Version -> where its last child is.
  for trial in trials:
    parent = run.parents[trial.name]
    last[parent] = max(last.get(parent, -1.0), place[trial.name])
  if run.head in last:
    last[run.head] = max(last[run.head], len(trials) - 0.7)
  trunk = set(run.lineage)
  for version, start in place.items():
    if last[version] > start:
      class_ = 'trunk' if version in trunk else 'branch'
      chart.segment(
          (start, level[version]), (last[version], level[version]), class_
      )
  for trial in trials:
    _stem(chart, run, trial, level, floor, many)
  _dot_of_base(chart, run, many)
  _labels(chart, run, level, many)
  return chart.render(f'--span:{max(len(trials), 1)}')


def _stem(
    chart: svg.Chart,
    run: history.History,
    trial: history.Trial,
    level: Mapping[str, float],
    floor: float,
    many: bool,
) -> None:
  """One trial: from its parent's level to its own."""
  x, end = float(trial.index), level[trial.name]
  start = level[run.parents[trial.name]]
  shown = max(end, floor)
  mark = _MARKS.get(trial.kind, 'failed')
  on_trunk = trial.name in run.lineage
  title = (
      f'{trial.name} ← {trial.parent}: {diffs.change_text(trial.delta)}\n'
      f'{trial.status}'
  )
  if trial.effect is not None:
    title += f', {points(trial.effect)} {between(trial.realised)} points'
  if shown != start:
    class_ = 'trunk' if on_trunk else f'stem {mark}'
    chart.segment((x, start), (x, shown), class_)
  if trial.realised and not many:
    low, high = (max(start + e, floor) for e in trial.realised)
    chart.segment((x, low), (x, high), f'whisker {mark}')
  href = f'#{trial.anchor}'
  if trial.effect is None and trial.kind == 'failed':
    chart.text(x, shown, '×', 'cross', dy=5, title=title, href=href)
  else:
    radius = (2.2 if many else 5.0) + (1.2 if on_trunk else 0.0)
    chart.dot(x, shown, f'dot {mark}', radius=radius, title=title, href=href)
  if end < floor:
    label = '▾' if many else f'▾ {points(trial.effect)}'
    chart.text(x, shown, label, 'tick', dy=17)


def _dot_of_base(chart: svg.Chart, run: history.History, many: bool) -> None:
  radius = 4.0 if many else 6.0
  title = f'{run.base_version}: the seed harness'
  chart.dot(-1.0, 0.0, 'dot kept', radius=radius, title=title, href='#base')


def _labels(
    chart: svg.Chart,
    run: history.History,
    level: Mapping[str, float],
    many: bool,
) -> None:
  """Names of versions; of all if there is room, else of the lineage."""
  base = run.base_version
  if not many:
    columns = [(-1.0, base, '')]
    for trial in run.trials:
      factor = str(trial.delta.get('factor') or '')
      columns.append((float(trial.index), trial.name, _factor(factor)))
    for x, name, factor in columns:
      chart.x_axis([(x, name)], 'name')
      if len(columns) <= 12:
        chart.text(x, chart.y.low, factor, 'tick wide', dy=33)
    return
  # A label needs about 35 pixels; a step is at least 5 wide.
  chart.x_axis([(-1.0, base)], 'name')
  free = -1.0 + 7
  for trial in run.trials:
    if trial.name in run.lineage and trial.index >= free:
      y = level[trial.name]
      chart.text(trial.index, y, trial.name, 'tick name', dy=-11)
      free = trial.index + 7
  step = 10 if len(run.trials) < 100 else 25
  chart.x_axis(
      (float(i), f'trial {run.trials[i].number}')
      for i in range(step, len(run.trials), step)
  )


def _factor(factor: str) -> str:
  """The last word of a factor, short enough for a column."""
  name = factor.replace(':', '.').rpartition('.')[2]
  return name if len(name) <= 15 else name[:14] + '…'


def outcomes(arm: Mapping[str, Any]) -> list[float]:
  """Mean outcome of each update, up to the first that is no number."""
  found = []
  for value in arm.get('outcome') or ():
    value = history.number(value)
    if value is None:
      break
    found.append(value)
  return found


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
  """Mean over arms at each update that all of them made."""
  filled = [curve for curve in curves if curve]
  return [statistics.fmean(step) for step in zip(*filled, strict=False)]


def _smooth(curve: Sequence[float]) -> list[float]:
  """Centred running mean, shorter at the ends."""
  half = _SMOOTH // 2
  return [
      statistics.fmean(curve[max(i - half, 0) : i + half + 1])
      for i in range(len(curve))
  ]


def _by_role(trial: history.Trial, role: str) -> list[list[float]]:
  return [outcomes(a) for a in trial.arms if a.get('role') == role]


def training(run: history.History) -> svg.Markup | None:
  """Solved share over all updates, from the base along the lineage."""
  root = _smooth(outcomes(run.base))
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
      class_='many' if len(run.trials) > _MANY else '',
  )
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in y.ticks(5))
  chart.x_axis((tick, f'{tick:.0f}') for tick in x.ticks(5))
  for start, curve, class_, title in lines:
    chart.line([(start + i + 1, v) for i, v in enumerate(curve)], class_, title)
  return chart.render()


def retrained(row: Mapping[str, Any]) -> svg.Markup | None:
  """Solved share by update of one training."""
  curve = outcomes(row)
  if len(curve) < 2:
    return None
  x, y = svg.Scale(1, len(curve)), svg.Scale.over(curve, least=0.1)
  label = f'Solved share by update, {row.get("version")}'
  chart = svg.Chart(x, y, height=170, label=label)
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in y.ticks(4))
  chart.x_axis((tick, f'{tick:.0f}') for tick in x.ticks(4))
  chart.line(list(enumerate(curve, 1)), 'child thin')
  chart.line(list(enumerate(_smooth(curve), 1)), 'child bold')
  return chart.render()


def arms(trial: history.Trial) -> svg.Markup | None:
  """Solved share by update: each arm thin, the mean of a role bold."""
  roles = ('control', 'child')
  curves = {role: _by_role(trial, role) for role in roles}
  values = [v for role in roles for curve in curves[role] for v in curve]
  longest = max((len(c) for role in roles for c in curves[role]), default=0)
  if longest < 2:
    return None
  x = svg.Scale(1, longest)
  y = svg.Scale.over(values, least=0.1)
  chart = svg.Chart(
      x, y, height=170, label=f'Solved share by update, arms of {trial.name}'
  )
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in y.ticks(4))
  chart.x_axis((tick, f'{tick:.0f}') for tick in x.ticks(4))
  for role in roles:
    named = [a for a in trial.arms if a.get('role') == role]
    for arm, curve in zip(named, curves[role], strict=True):
      title = f'{arm.get("arm")}, seed {arm.get("seed")}: {arm.get("status")}'
      line = list(enumerate(curve, 1))
      chart.line(line, f'{role} thin', title)
  for role in roles:
    line = list(enumerate(_smooth(mean_curve(curves[role])), 1))
    if len(line) > 1:
      chart.line(line, f'{role} bold', f'{role}: mean over arms')
  return chart.render()


def threshold(value: Any) -> tuple[str, float] | None:
  """['>', 0.3] or 0.3 as ('>', 0.3), None for anything else."""
  if isinstance(value, (list, tuple)) and len(value) == 2:
    limit = history.number(value[1])
    return None if limit is None else (str(value[0]), limit)
  limit = history.number(value)
  return None if limit is None else ('', limit)


def measure(series: Sequence[tuple[str, Mapping[str, Any]]]) -> svg.Markup:
  """One diagnostic over the diagnoses, with its limits.

  Args:
    series: (where, measure) of every diagnosis in the order of the ledger; an
      empty measure where a diagnosis lacked it. The last is not empty.
  """
  values = [history.number(m.get('value')) for _, m in series]
  limits = [
      (name, limit[1])
      for name in ('warn', 'critical')
      if (limit := threshold(series[-1][1].get(name)))
  ]
  there = [v for v in values if v is not None] + [v for _, v in limits]
  y = svg.Scale.over(there, pad=0.12, least=0.02)
  x = svg.Scale(-0.5, len(series) - 0.5)
  name = str(series[-1][1].get('name'))
  chart = svg.Chart(x, y, height=84, label=name, class_='small')
  chart.y_axis((tick, short(tick)) for tick in y.ticks(3))
  for kind, limit in limits:
    chart.segment((x.low, limit), (x.high, limit), f'limit {kind}')
  run: list[tuple[float, float]] = []
  for index, value in enumerate([*values, None]):
    if value is not None:
      run.append((index, value))
    elif run:
      if len(run) > 1:
        chart.line(run, 'measure')
      run = []
  many = len(series) > _MANY
  for index, (where, one) in enumerate(series):
    level, value = str(one.get('level', 'ok')), values[index]
    if not one:  # This diagnosis had no such measure.
      continue
    if value is None:
      chart.text(index, y.low, '×', 'cross', title=f'{where}: {level}')
    elif not many or level != 'ok' or index == len(series) - 1:
      title = f'{where}: {short(value)} ({level})'
      radius = 2.2 if many else 3.2
      class_ = f'level-{level}' if level in _LEVELS else 'level-failed'
      chart.dot(index, value, class_, radius=radius, title=title)
  return chart.render()


_LEVELS = ('ok', 'warn', 'critical')


def effects_scale(trials: Sequence[history.Trial]) -> svg.Scale:
  """One scale for all intervals of the table: 0, predictions, most effects."""
  values = [0.0]
  for trial in trials:
    values += trial.expected or ()
    values += trial.realised or ()
    mde = history.number(trial.get('trial', 'mde'))
    values += [mde] if mde is not None else []
  values.sort()
  # A collapse must not flatten all others: it is cut at the edge.
  cut = len(values) // 50
  return svg.Scale.over([0.0, *values[cut : len(values) - cut]], least=0.02)


def effect_strip(trial: history.Trial, scale: svg.Scale) -> svg.Markup:
  """Predicted bar, realised dot and interval, detectable effect as a tick."""
  marks: list[tuple] = [('rule', 0.0, 'zero')]
  if trial.expected:
    marks.append(('bar', *trial.expected, 'predicted'))
  mde = history.number(trial.get('trial', 'mde'))
  if mde is not None:
    marks.append(('rule', mde, 'detectable'))
  mark = _MARKS.get(trial.kind, 'failed')
  if trial.realised:
    marks.append(('whisker', *trial.realised, f'whisker {mark}'))
  if trial.effect is not None:
    marks.append(('dot', trial.effect, f'dot {mark}'))
  label = (
      f'predicted {between(trial.expected) or "nothing"}, realised'
      f' {points(trial.effect)} {between(trial.realised)}, detectable'
      f' {points(mde)} points'
  )
  return svg.strip(scale, marks, label=label)


def scatter(
    trials: Sequence[history.Trial], predict: calibration.Predict
) -> svg.Markup | None:
  """Predicted against realised effect, with both intervals."""
  both = calibration.judged(trials, predict)
  if not both:
    return None
  values = [0.0]
  for trial in both:
    values += [*predict(trial), trial.effect, *(trial.realised or ())]
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
  ticks = [(tick, points(tick, '+.0f')) for tick in scale.ticks(5)]
  chart.y_axis(ticks)
  chart.x_axis(ticks)
  chart.segment((0.0, scale.low), (0.0, scale.high), 'origin')
  chart.segment((scale.low, 0.0), (scale.high, 0.0), 'origin')
  chart.segment((scale.low, scale.low), (scale.high, scale.high), 'diagonal')
  inside = lambda v: min(max(v, scale.low), scale.high)
  many = len(both) > _MANY
  for trial in both:
    mark = _MARKS.get(trial.kind, 'failed')
    interval = tuple(map(inside, predict(trial)))
    x, y = inside(calibration.middle(interval)), inside(trial.effect)
    if not many:
      chart.segment((interval[0], y), (interval[1], y), 'cross-x')
      if trial.realised:
        low, high = map(inside, trial.realised)
        chart.segment((x, low), (x, high), f'whisker {mark}')
    title = (
        f'{trial.name}: predicted {between(predict(trial))}, realised'
        f' {points(trial.effect)} {between(trial.realised)} points'
    )
    radius = 3.2 if many else 5.0
    href = f'#{trial.anchor}'
    chart.dot(x, y, f'dot {mark}', radius=radius, title=title, href=href)
  return chart.render()


def stacked(parts: Sequence[tuple[str, float, str]]) -> svg.Markup:
  """One bar of shares; each part is (name, amount, class)."""
  total = sum(amount for _, amount, _ in parts) or 1.0
  marks, start = [], 0.0
  for name, amount, class_ in parts:
    if amount > 0:
      marks.append(
          svg.element(
              'rect',
              svg.element('title', f'{name}: {short(amount)}'),
              x=svg.percent(start / total),
              width=svg.percent(amount / total),
              height='100%',
              class_=class_,
          )
      )
    start += amount
  label = ', '.join(f'{name} {short(amount)}' for name, amount, _ in parts)
  return svg.element(
      'svg', *marks, class_='stacked', height='14', role='img', aria_label=label
  )


# Step -> (class, name) of its device-seconds; all others are 'other'.
COSTS = {
    'train': ('cost-train', 'training'),
    'trial': ('cost-trial', 'trials'),
    'backtest': ('cost-backtest', 'backtests'),
    'final': ('cost-final', 'final retraining and sealed scores'),
}
OTHER_COST = ('cost-other', 'everything else')


def costs(run: history.History) -> svg.Markup | None:
  """Device-seconds of every trial, by step."""
  trials = run.trials
  most = max((t.device_seconds for t in trials), default=0.0)
  if most <= 0:
    return None
  x = svg.Scale(-0.6, len(trials) - 0.4)
  y = svg.Scale(0.0, 1.05 * most)
  chart = svg.Chart(
      x, y, height=160, label='Device-seconds by trial', class_='bars'
  )
  chart.y_axis((tick, short(tick)) for tick in y.ticks(4))
  for trial in trials:
    low = 0.0
    for step, seconds in trial.seconds.items():
      if seconds > 0:
        class_, _ = COSTS.get(step, OTHER_COST)
        title = f'{trial.name}, {step}: {seconds:,.1f} device-seconds'
        chart.column(trial.index, low, low + seconds, class_, title)
      low += seconds
  every = max(1, -(-len(trials) // 12))
  chart.x_axis((float(t.index), t.name) for t in trials[::every])
  return chart.render(f'--span:{len(trials)}')
