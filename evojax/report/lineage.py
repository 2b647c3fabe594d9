"""The version tree: every change that a run tried, and the kept ones."""

from evojax.ledger import history
from evojax.ledger import records
from evojax.report import diffs
from evojax.report import svg
from evojax.runtime import numerals

MANY = 30  # Trials beyond which marks shrink and intervals are left out.
_CLIP = 0.10  # Discarded versions with a lower effect are drawn at the edge.


def anchor(trial: history.Trial) -> str:
  """Return the id of the trial's section on the page."""
  return f'trial-{trial.number}'


def label(trial: history.Trial) -> str:
  """Return a short name of a trial."""
  return trial.made or f't{trial.number}'


def _places(run: history.History) -> dict[str, float]:
  """Return the place of each version and trial, in columns of trials.

  A version made without a change comes after all changes raced before it.
  """
  found = {run.base_version: -1.0}
  for version in run.all(records.Promote):
    raced = [
        trial.index
        for trial in run.trials
        for race in trial.races
        if version.round is not None and race.round <= version.round
    ]
    found[version.version] = max(raced, default=-1) + 0.5
  return found | {trial.name: float(trial.index) for trial in run.trials}


def chart(run: history.History) -> svg.Chart:
  """Draw the version tree: stems are trials, steps are kept changes.

  Each version is a horizontal line at the sum of the effects that led to it,
  from its making to the last version made from it. A trial is a stem from its
  parent.
  """
  trials, level = run.trials, run.levels
  many = len(trials) > MANY
  kept = [level[t.name] for t in run.kept] + [0.0]
  # Without a limit, one collapse would flatten all other steps of the tree.
  floor = min(kept) - max(_CLIP, max(kept) - min(kept))
  ends = list(level.values())
  for trial in trials:
    if trial.realised and not many:
      start = level[trial.name] - trial.effect
      ends += [start + end for end in trial.realised]
  tree = svg.Chart(
      svg.Scale(-1.6, max(len(trials), 1) - 0.4),
      svg.Scale.over([max(e, floor) for e in ends], pad=0.08, least=0.04),
      height=300,
      label='Version tree: summed effect of each version over the base',
      class_='lineage',
      span=max(len(trials), 1),
  )
  ticks = tree.y.ticks(5)
  tree.y_axis((tick, numerals.points(tick, '+.0f')) for tick in ticks)
  place = _places(run)
  last = dict(place)  # Version -> place of the last one made from it.
  for name, parent in run.parents.items():
    last[parent] = max(last[parent], place[name])
  # Training continues from the head, so its line reaches the right edge.
  if run.head in last:
    last[run.head] = max(last[run.head], len(trials) - 0.7)
  tried = {trial.name for trial in trials}
  for version, start in place.items():
    y, end = level[version], last[version]
    class_ = 'trunk' if version in run.lineage else 'branch'
    if end > start:
      tree.add('segment', class_, (start, y), (end, y))
    above = level[run.parents.get(version, version)]
    if version not in tried and above != y:  # A change was taken back.
      tree.add('segment', class_, (start, above), (start, y))
  for trial in trials:
    _stem(tree, run, trial, floor)
  tree.add(
      'dot',
      'dot keep',
      (-1.0, 0.0),
      radius=4.0 if many else 6.0,
      title=f'{run.base_version}: the seed harness',
      href='base',
  )
  (_label_lineage if many else _label_all)(tree, run)
  return tree


def _stem(
    tree: svg.Chart, run: history.History, trial: history.Trial, floor: float
) -> None:
  """Draw one trial, from its parent's level to its own or to the floor."""
  x, end = float(trial.index), run.levels[trial.name]
  start, shown = run.levels[run.parents[trial.name]], max(end, floor)
  many = len(run.trials) > MANY
  on_trunk = trial.name in run.lineage
  title = (
      f'{trial.name} ← {trial.parent}: {diffs.change_text(trial.delta)}\n'
      f'{trial.status}'
  )
  if trial.effect is not None:
    title += f', {numerals.effect(trial.effect, trial.realised)} points'
  if shown != start:
    class_ = 'trunk' if on_trunk else f'stem {trial.kind}'
    tree.add('segment', class_, (x, start), (x, shown))
  if trial.realised and not many:
    low, high = (max(start + e, floor) for e in trial.realised)
    tree.add('segment', f'whisker {trial.kind}', (x, low), (x, high))
    if start + trial.realised[0] < floor <= end:  # The rest is cut off.
      cut = f'▾ {numerals.points(trial.realised[0])}'
      tree.add('text', 'tick', (x, low), text=cut, dy=17)
  more = {'title': title, 'href': anchor(trial)}
  if trial.effect is None and trial.kind in ('failed', 'discard'):
    tree.add('text', f'cross {trial.kind}', (x, shown), text='×', dy=5, **more)
  else:
    radius = (2.2 if many else 5.0) + (1.2 if on_trunk else 0.0)
    tree.add('dot', f'dot {trial.kind}', (x, shown), radius=radius, **more)
  if end < floor:
    cut = '▾' if many else f'▾ {numerals.points(trial.effect)}'
    tree.add('text', 'tick', (x, shown), text=cut, dy=17)


def _label_all(tree: svg.Chart, run: history.History) -> None:
  """Label all versions, and their changes if there is room."""
  tree.x_axis([(-1.0, run.base_version)], 'name')
  for trial in run.trials:
    tree.x_axis([(float(trial.index), label(trial))], 'name')
    if trial.delta and len(run.trials) < 12:
      # The last word of the factor, short enough for a column.
      word = trial.delta.factor.replace(':', '.').rpartition('.')[2]
      word = word if len(word) <= 15 else word[:14] + '…'
      place = trial.index, tree.y.low
      tree.add('text', 'tick wide', place, text=word, dy=33)


def _label_lineage(tree: svg.Chart, run: history.History) -> None:
  """Label the versions of the lineage, leaving enough room between labels."""
  # A label needs about 35 pixels; a step is at least 5 wide.
  tree.x_axis([(-1.0, run.base_version)], 'name')
  free = -1.0 + 7
  for trial in run.trials:
    if trial.name in run.lineage and trial.index >= free:
      place = trial.index, run.levels[trial.name]
      tree.add('text', 'tick name', place, text=trial.name, dy=-11)
      free = trial.index + 7
  step = 10 if len(run.trials) < 100 else 25
  labelled = run.trials[step::step]
  tree.x_axis((float(t.index), f'trial {t.number}') for t in labelled)
