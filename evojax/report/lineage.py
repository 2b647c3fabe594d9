"""The version tree: every change that a run tried, and those that it kept."""

from collections.abc import Mapping

from evojax.ledger import history
from evojax.report import diffs
from evojax.report import numerals
from evojax.report import svg

MANY = 30  # Trials; past that, marks shrink and intervals are left out.
# `Trial.kind` -> class of its marks.
MARKS = {
    'keep': 'kept',
    'discard': 'discarded',
    'running': 'running',
    'failed': 'failed',
}
_CLIP = 0.10  # Effect below which a discarded version is drawn at the edge.


def anchor(trial: history.Trial) -> str:
  """Return the id of the trial's section on the page."""
  return f'trial-{trial.number}'


def label(trial: history.Trial) -> str:
  """Return the name of a trial where there is little room."""
  made = trial.verify.version if trial.verify else ''
  return made or f't{trial.number}'


def chart(run: history.History) -> svg.Markup:
  """Draw the version tree: stems are trials, steps are kept changes.

  Each version is a horizontal line at the sum of the effects that led to it,
  from where it was made to its last child. A trial is a stem from its parent.
  """
  trials = run.trials
  level = run.levels
  many = len(trials) > MANY
  kept = [level[t.name] for t in run.kept] + [0.0]
  floor = min(kept) - max(_CLIP, max(kept) - min(kept))
  ends = [max(value, floor) for value in level.values()]
  if not many:
    for trial in trials:
      if trial.realised:
        start = level[trial.name] - trial.effect
        ends += [max(start + end, floor) for end in trial.realised]
  x = svg.Scale(-1.6, max(len(trials), 1) - 0.4)
  y = svg.Scale.over(ends, pad=0.08, least=0.04)
  tree = svg.Chart(
      x,
      y,
      height=300,
      label='Version tree: summed effect of each version over the base',
      class_='lineage',
  )
  tree.y_axis((tick, numerals.points(tick, '+.0f')) for tick in y.ticks(5))
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
      tree.segment(
          (start, level[version]), (last[version], level[version]), class_
      )
  for trial in trials:
    _stem(tree, run, trial, level, floor, many)
  _dot_of_base(tree, run, many)
  _labels(tree, run, level, many)
  return tree.render(f'--span:{max(len(trials), 1)}')


def _stem(
    tree: svg.Chart,
    run: history.History,
    trial: history.Trial,
    level: Mapping[str, float],
    floor: float,
    many: bool,
) -> None:
  """Draw one trial, from its parent's level to its own."""
  x, end = float(trial.index), level[trial.name]
  start = level[run.parents[trial.name]]
  shown = max(end, floor)
  mark = MARKS[trial.kind]
  on_trunk = trial.name in run.lineage
  title = (
      f'{trial.name} ← {trial.parent}: {diffs.change_text(trial.delta)}\n'
      f'{trial.status}'
  )
  if trial.effect is not None:
    title += f', {numerals.effect(trial.effect, trial.realised)} points'
  if shown != start:
    class_ = 'trunk' if on_trunk else f'stem {mark}'
    tree.segment((x, start), (x, shown), class_)
  if trial.realised and not many:
    low, high = (max(start + e, floor) for e in trial.realised)
    tree.segment((x, low), (x, high), f'whisker {mark}')
  href = f'#{anchor(trial)}'
  if trial.effect is None and trial.kind == 'failed':
    tree.text(x, shown, '×', 'cross', dy=5, title=title, href=href)
  else:
    radius = (2.2 if many else 5.0) + (1.2 if on_trunk else 0.0)
    tree.dot(x, shown, f'dot {mark}', radius=radius, title=title, href=href)
  if end < floor:
    label = '▾' if many else f'▾ {numerals.points(trial.effect)}'
    tree.text(x, shown, label, 'tick', dy=17)


def _dot_of_base(tree: svg.Chart, run: history.History, many: bool) -> None:
  radius = 4.0 if many else 6.0
  title = f'{run.base_version}: the seed harness'
  tree.dot(-1.0, 0.0, 'dot kept', radius=radius, title=title, href='#base')


def _labels(
    tree: svg.Chart,
    run: history.History,
    level: Mapping[str, float],
    many: bool,
) -> None:
  """Label all versions if there is room, else those of the lineage."""
  base = run.base_version
  if not many:
    columns = [(-1.0, base, '')]
    for trial in run.trials:
      factor = trial.delta.factor if trial.delta else ''
      columns.append((float(trial.index), label(trial), _factor(factor)))
    for x, name, factor in columns:
      tree.x_axis([(x, name)], 'name')
      if len(columns) <= 12:
        tree.text(x, tree.y.low, factor, 'tick wide', dy=33)
    return
  # A label needs about 35 pixels; a step is at least 5 wide.
  tree.x_axis([(-1.0, base)], 'name')
  free = -1.0 + 7
  for trial in run.trials:
    if trial.name in run.lineage and trial.index >= free:
      y = level[trial.name]
      tree.text(trial.index, y, trial.name, 'tick name', dy=-11)
      free = trial.index + 7
  step = 10 if len(run.trials) < 100 else 25
  tree.x_axis(
      (float(i), f'trial {run.trials[i].number}')
      for i in range(step, len(run.trials), step)
  )


def _factor(factor: str) -> str:
  """Return the last word of a factor, short enough for a column."""
  name = factor.replace(':', '.').rpartition('.')[2]
  return name if len(name) <= 15 else name[:14] + '…'
