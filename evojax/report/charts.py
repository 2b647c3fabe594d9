"""The page's charts: training curves, diagnostics, effects, cost."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import statistics
from typing import Any

from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records
from evojax.report import curves
from evojax.report import diffs
from evojax.report import lineage
from evojax.report import svg
from evojax.runtime import numerals

_LEVELS = ('ok', 'warn', 'critical')
_EDGE = 0.01  # Room beyond 0 and 100 % of a solved share.
_ROLES = ('incumbent', 'candidate')
# Step -> (name, class) of its device-seconds. All other steps are summed, so
# that the bar stays the whole cost when a step is added.
_COSTS = {
    'train': ('training', 'hue-1'),
    'race': ('rounds', 'hue-2'),
    'backtest': ('backtests', 'hue-3'),
    'retrain': ('retraining from the base', 'hue-4'),
}
_OTHER_COST = ('everything else', 'hue-5')


def _mean_curve(trial: history.Trial, role: str) -> list[float]:
  """Return the smoothed mean over arms, for the updates that all arms have."""
  filled = [arm.outcome for arm in trial.role(role) if arm.outcome]
  return curves.smooth(list(map(statistics.fmean, zip(*filled, strict=False))))


def _solved_share(
    x: svg.Scale, values: Iterable[float], ticks: int = 4, **drawn: Any
) -> svg.Chart:
  """Return an empty chart of solved shares by update."""
  y = svg.Scale.over(values, least=0.1)
  y = svg.Scale(max(y.low, -_EDGE), min(y.high, 1 + _EDGE))
  chart = svg.Chart(x, y, **{'height': 170} | drawn)
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in y.ticks(ticks))
  # Ticks lie at whole updates only.
  whole = [tick for tick in x.ticks(ticks) if tick == round(tick)]
  chart.x_axis((tick, f'{tick:.0f}') for tick in whole)
  return chart


def training(run: history.History) -> svg.Chart | None:
  """Draw the race: the solved share over all updates of the policy.

  An arm begins where the arm that it continues ended; in a race of means, where
  the previous round ended. The harness whose arms the policy continues is drawn
  as the lineage; a cross marks where a candidate left the race.
  """
  root = curves.smooth(run.base.outcome if run.base else ())
  lines = [(0, root, 'lineage bold', f'{run.base_version}: seed harness')]
  # Places where versions were made: (update, solved share, name, title).
  ends: list[tuple[float, float, str, str]] = []
  dropped: list[tuple[float, float, str]] = []  # Places where candidates left.
  if root:
    name = run.base_version
    ends.append((len(root), root[-1], name, f'{name}: seed harness'))
  start, names = len(root), {t.number: t for t in run.trials}
  made = {v.round: v for v in run.all(records.Promote) if v.round is not None}
  last_race = {t.number: t.races[-1].round for t in run.trials if t.races}
  for race in run.races:
    version = made.get(race.round)
    won = {source.folder for source in version.sources} if version else set()
    at = _begins(race, start)
    for (role, number), group in _entrants(race).items():
      trial = names.get(number)
      what = f'round {race.round}, {role}'
      if trial:
        what += f' of {trial.name}, {diffs.change_text(trial.delta)}:'
        what += f' {trial.status}'
      lineage_ = any(arm.folder in won for arm in group)
      class_ = 'lineage' if lineage_ else _LINE_OF_ROLE[role]
      for arm in group:
        first = at[arm.folder]
        lines.append((first, arm.outcome, f'{class_} thin', arm.folder))
      tracks = _tracks(group, at)
      lines += [(x, track, f'{class_} bold', what) for x, track in tracks]
      if not tracks:
        continue
      x, track = tracks[-1]
      end = x + len(track), track[-1]
      if version and group[-1].folder in won:
        arms_ = numerals.counted(len(won), 'arm')
        alone = won <= {arm.folder for arm in group}
        of = 'of' if alone else 'in a row, the last of'
        title = f'{version.version}: {arms_} {of} the {role}'
        ends.append((*end, version.version, title))
      elif trial and role == 'candidate':
        if race.round == last_race[number] and trial.status != 'running':
          dropped.append((*end, what))
    start = max(
        [start, *(at[arm.folder] + len(arm.outcome) for arm in race.arms)]
    )
  lines = [line for line in lines if len(line[1]) > 1]
  if not lines:
    return None
  # Means are drawn over arms, and the lineage on top.
  rank = lambda line: ('thin' not in line[2], 'lineage' in line[2])
  chart = _solved_share(
      svg.Scale(0, max(start + len(curve) for start, curve, _, _ in lines)),
      [value for _, curve, _, _ in lines for value in curve],
      ticks=5,
      height=240,
      label='Solved share of training rollouts by update',
      class_='many' if len(run.races) > lineage.MANY else '',
  )
  for first, curve, class_, title in sorted(lines, key=rank):
    chart.add('line', class_, *enumerate(curve, first + 1), title=title)
  for x, y, title in dropped:
    chart.add('text', 'cross failed', (x, y), text='×', dy=5, title=title)
  for x, y, name, title in ends:
    low = chart.y.low
    chart.add('segment', 'rule', (x, low), (x, chart.y.high))
    chart.add('dot', 'dot keep', (x, y), title=title)
    if len(ends) <= 16:  # A label needs about 35 pixels.
      chart.add('text', 'tick', (x, chart.y.high), text=name, dy=-3)
  return chart


def _begins(race: records.Race, start: int) -> dict[str, int]:
  """Return the update at which each arm of a round begins, by its folder."""
  known = {race.start: start}  # State -> update.
  found = {}
  for arm in race.arms:  # An arm comes after the one that it continues.
    found[arm.folder] = known.get(arm.start, start)
    known[arm.end] = found[arm.folder] + len(arm.outcome)
  return found


def _tracks(
    group: Sequence[records.RacedArm], begins: Mapping[str, int]
) -> list[tuple[int, list[float]]]:
  """Return smooth lines of a harness in a round, each with its first update.

  Arms from one state are drawn as their mean, and arms that continue each other
  as one line.
  """
  by_start: dict[int, list[tuple[float, ...]]] = {}
  for arm in group:
    if arm.outcome:
      by_start.setdefault(begins[arm.folder], []).append(arm.outcome)
  found: list[tuple[int, list[float]]] = []
  continued = all(a.end == b.start for a, b in itertools.pairwise(group))
  for start, filled in by_start.items():
    mean = list(map(statistics.fmean, zip(*filled, strict=False)))
    if found and continued:
      found[-1][1].extend(mean)
    else:
      found.append((start, mean))
  return [(start, curves.smooth(line)) for start, line in found]


# Class of the mean line of a harness that did not become the policy.
_LINE_OF_ROLE = {
    'incumbent': 'incumbent',
    'candidate': 'aside',
    'shadow': 'shadow',
}


def _entrants(
    race: records.Race,
) -> dict[tuple[str, int | None], list[records.RacedArm]]:
  """Return the arms of a round by their harness, the incumbent first."""
  found: dict[tuple[str, int | None], list[records.RacedArm]] = {}
  for arm in race.arms:
    found.setdefault((arm.role, arm.trial), []).append(arm)
  return found


def arms(trial: history.Trial) -> svg.Chart | None:
  """Draw the solved share by update: arms thin, the mean of each role bold."""
  solved = [arm.outcome for role in _ROLES for arm in trial.role(role)]
  longest = max(map(len, solved), default=0)
  if longest < 2:
    return None
  chart = _solved_share(
      svg.Scale(1, longest),
      itertools.chain(*solved),
      label=f'Solved share by update, arms of {trial.name}',
  )
  for role in _ROLES:
    for arm in trial.role(role):
      title = f'{arm.folder}, seed {arm.seed}: {arm.status}'
      chart.add('line', f'{role} thin', *enumerate(arm.outcome, 1), title=title)
  # Drawn after all arms, so that the means lie on top.
  for role in _ROLES:
    line = list(enumerate(_mean_curve(trial, role), 1))
    if len(line) > 1:
      chart.add('line', f'{role} bold', *line, title=f'{role}: mean over arms')
  return chart


def drawn_level(one: records.Measure) -> str:
  """Return how a measure is drawn: its level, or 'held'.

  'held' is a value beyond a limit that raises no alert, because another
  condition of the alert is not met.
  """
  if one.level == 'ok' and one.beyond != 'ok':
    return 'held'
  return one.level if one.level in _LEVELS else 'failed'


def measure(series: Sequence[tuple[str, records.Measure | None]]) -> svg.Chart:
  """Draw one diagnostic over the diagnoses, with its limits.

  Args:
    series: (where, measure) of every diagnosis in the order of the ledger; the
      measure is None if a diagnosis lacks it. The last one has it.
  """
  newest = series[-1][1]
  values = [m.value if m else None for _, m in series]
  limits = {'warn': newest.warn, 'critical': newest.critical}
  limits = {kind: limit[1] for kind, limit in limits.items() if limit}
  there = [v for v in (*values, *limits.values()) if v is not None]
  y = svg.Scale.over(there, pad=0.12, least=0.02)
  x = svg.Scale(-0.5, len(series) - 0.5)  # Room for the first and last dot.
  chart = svg.Chart(x, y, height=84, label=newest.name, class_='small')
  chart.y_axis((tick, numerals.short(tick)) for tick in y.ticks(3))
  for kind, limit in limits.items():
    chart.add('segment', f'limit {kind}', (x.low, limit), (x.high, limit))
  # The line is broken where a value is missing.
  for known, points in itertools.groupby(
      enumerate(values), key=lambda point: point[1] is not None
  ):
    line = list(points)
    if known and len(line) > 1:
      chart.add('line', 'measure', *line)
  many = len(series) > lineage.MANY
  for index, (where, one) in enumerate(series):
    if one is None:  # This diagnosis lacks the measure.
      continue
    if one.value is None:
      title = f'{where}: {one.level}'
      chart.add('text', 'cross', (index, y.low), text='×', title=title)
    elif not many or one.level != 'ok' or index == len(series) - 1:
      title = f'{where}: {numerals.short(one.value)} ({one.level})'
      class_ = f'level-{drawn_level(one)}'
      radius = 2.2 if many else 3.2
      chart.add('dot', class_, (index, one.value), radius=radius, title=title)
  return chart


def _without_collapses(effects: Iterable[float]) -> svg.Scale:
  """Return a scale of effects, without the lowest and highest 2 % of them.

  A collapse would otherwise flatten all other effects.
  """
  values = sorted((0.0, *effects))
  cut = len(values) // 50
  return svg.Scale.over([0.0, *values[cut : len(values) - cut]], least=0.02)


def effects_scale(trials: Sequence[history.Trial]) -> svg.Scale:
  """Return one scale for all intervals of the table of trials."""
  values = [(*(t.expected or ()), *(t.realised or ()), t.mde) for t in trials]
  return _without_collapses(
      value for value in itertools.chain(*values) if value is not None
  )


def effect_strip(trial: history.Trial, scale: svg.Scale) -> svg.Strip:
  """Draw prediction, measured effect, its interval and the detectable size."""
  return svg.strip(
      scale,
      f'predicted {numerals.between(trial.expected) or "nothing"}, measured'
      f' {numerals.effect(trial.effect, trial.realised)}, detectable'
      f' {numerals.points(trial.mde)} points',
      ('rule', 'zero', 0.0),
      ('bar', 'predicted', trial.expected),
      ('rule', 'detectable', trial.mde),
      ('whisker', f'whisker {trial.kind}', trial.realised),
      ('dot', f'dot {trial.kind}', trial.effect),
  )


def scatter(
    trials: Sequence[history.Trial], predict: calibration.Predict
) -> svg.Chart | None:
  """Draw predicted against realised effects, with both intervals."""
  both = calibration.compared(trials, predict)
  if not both:
    return None
  scale = _without_collapses(
      value for t in both for value in (*predict(t), t.effect, *t.realised)
  )
  label = 'Measured against predicted effect, in points'
  chart = svg.Chart(scale, scale, height=300, label=label, class_='square')
  places = scale.ticks(5)
  whole = all(abs(100 * t - round(100 * t)) < 1e-6 for t in places)
  form = '+.0f' if whole else '+.1f'
  ticks = [(tick, numerals.points(tick, form)) for tick in places]
  chart.y_axis(ticks)
  chart.x_axis(ticks)
  low, high = scale.low, scale.high
  chart.add('segment', 'origin', (0.0, low), (0.0, high))
  chart.add('segment', 'origin', (low, 0.0), (high, 0.0))
  chart.add('segment', 'diagonal', (low, low), (high, high))
  # An effect beyond the end of the scale is drawn at its edge.
  inside = lambda value: min(max(value, low), high)
  many = len(both) > lineage.MANY
  for trial in both:
    predicted = predict(trial)
    left, right = map(inside, predicted)
    x, y = calibration.middle((left, right)), inside(trial.effect)
    if not many:
      bottom, top = map(inside, trial.realised)
      chart.add('segment', 'cross-x', (left, y), (right, y))
      chart.add('segment', f'whisker {trial.kind}', (x, bottom), (x, top))
    chart.add(
        'dot',
        f'dot {trial.kind}',
        (x, y),
        radius=3.2 if many else 5.0,
        title=f'{trial.name}: predicted {numerals.between(predicted)}, measured'
        f' {numerals.effect(trial.effect, trial.realised)} points',
        href=lineage.anchor(trial),
    )
  return chart


def cost_groups(run: history.History) -> list[tuple[str, float, str]]:
  """Return (name, device-seconds, class) of the groups of steps."""
  groups = dict.fromkeys([*_COSTS.values(), _OTHER_COST], 0.0)
  for step, seconds in run.seconds_by_step.items():
    groups[_COSTS.get(step, _OTHER_COST)] += seconds
  return [(name, seconds, class_) for (name, class_), seconds in groups.items()]


def costs(run: history.History) -> svg.Chart | None:
  """Draw the device-seconds of every trial, by step."""
  trials = run.trials
  most = max((t.device_seconds for t in trials), default=0.0)
  if most <= 0:
    return None
  chart = svg.Chart(
      svg.Scale(-0.6, len(trials) - 0.4),
      svg.Scale(0.0, 1.05 * most),
      height=160,
      label='Device-seconds by trial',
      class_='bars',
      span=len(trials),
  )
  chart.y_axis((tick, numerals.short(tick)) for tick in chart.y.ticks(4))
  for trial in trials:
    left, right, low = trial.index - 0.35, trial.index + 0.35, 0.0
    for step, seconds in trial.seconds.items():
      if seconds > 0:
        _, class_ = _COSTS.get(step, _OTHER_COST)
        corners = (left, low + seconds), (right, low)
        title = f'{trial.name}, {step}: {seconds:,.1f} device-seconds'
        chart.add('column', class_, *corners, title=title)
      low += seconds
  every = max(1, -(-len(trials) // 12))
  chart.x_axis((float(t.index), lineage.label(t)) for t in trials[::every])
  return chart
