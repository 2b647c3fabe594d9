"""Measures that several checks share: shares of episodes, and rewards."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

SURE = 0.01
RARELY = 0.15  # Share solved in the best step if hardly anything is solved.
SHOWN = 6  # Rollouts shown with a finding.
_LONGER = 0.2  # Relative growth of the mean prompt length that is not noise.
_NOTHING = 0.1  # Share that is left of a score if almost nothing is.
_FORM_LOST = 0.1  # Fall of the form, or rise of truncation, that is not noise.
_AGAIN = 20  # Problems of the first third that come again in the last one.
_GROUPS = 8  # Minimum number of groups that have both kinds of episodes.


class Share:
  """A quantity over steps, its last third, and where it changed."""

  def __init__(
      self, run: form.Run, name: str, rows: pd.DataFrame | None = None
  ):
    """Compute it from all rollouts and steps, or from the given rows.

    Raises:
      form.NotLogged: If it is not logged, or has too few steps.
    """
    if rows is None:
      self.steps, self.values = run.course(name)
    else:
      by = rows.groupby('step')[name].mean().dropna()
      self.steps, self.values = by.index.to_numpy(), by.to_numpy(np.float64)
    if len(self.steps) < form.MIN_STEPS:
      raise form.too_few(len(self.steps), 'step', what=f'with {name}')
    self.late = intervals.mean(self.values[-max(len(self.values) // 3, 4) :])
    self.line = trends.trend(self.values)
    self._change = trends.change_point(self.values)

  @property
  def rose(self) -> bool:
    """True if the mean rises at the change point, with p < SURE."""
    return _rose(self._change)

  @property
  def falling(self) -> bool:
    """True if the share decreases over the run: the policy unlearns it."""
    return self.line.high < 0

  @property
  def since(self) -> int | None:
    """The step of the rise; None without one."""
    return int(self.steps[self._change.index]) if self.rose else None

  @property
  def p(self) -> float | None:
    """The p-value of the rise; None without one."""
    return self._change.p if self.rose else None

  @property
  def start(self) -> float:
    """The mean of the first fifth of the steps."""
    return float(self.values[: max(len(self.values) // 5, 2)].mean())

  def curve(self, name: str) -> tuple[str, np.ndarray, np.ndarray]:
    """Return (name, steps, values), an entry of `Finding.curves`."""
    return name, self.steps, self.values


def thinned(rows: pd.DataFrame, most: int) -> pd.DataFrame:
  """Return rows of the whole run, about `most`, for checks that read texts."""
  return rows.iloc[:: max(len(rows) // most, 1)]


def since(by: pd.Series) -> int | None:
  """Return the step from which a share is higher, if it clearly is.

  Args:
    by: The share of each step, with the steps as its index.
  """
  if len(by) < form.MIN_STEPS:
    return None
  change = trends.change_point(by)
  return int(by.index[change.index]) if _rose(change) else None


def _rose(change: trends.Change) -> bool:
  """Return whether the mean rises at a change point, with p < SURE."""
  return change.p < SURE and change.after > change.before


def gap(rows: pd.DataFrame, flag: str, value: str) -> intervals.Interval | None:
  """Return the difference of a value in flagged rollouts, within groups.

  None if fewer than _GROUPS groups have rollouts of both kinds.
  """
  by = rows.groupby(['group', rows[flag] > 0.5])[value].mean().unstack()
  gaps = (by[True] - by[False]).dropna() if by.shape[1] == 2 else ()
  return intervals.mean(gaps) if len(gaps) >= _GROUPS else None


def solved_late(run: form.Run) -> float:
  """Return the solved share in the last third; NaN if it is not logged."""
  try:
    _, solved = run.series('outcome')
  except form.NotLogged:
    return np.nan
  return float(solved[-max(len(solved) // 3, 1) :].mean())


def rises(run: form.Run) -> bool:
  """Return whether the solved share rises."""
  line = _line(run)
  return line is not None and line.low > 0


def falls(run: form.Run) -> bool:
  """Return whether the solved share falls."""
  line = _line(run)
  return line is not None and line.high < 0


def _line(run: form.Run) -> trends.Trend | None:
  """Return the line through the solved share, if it is logged."""
  try:
    _, solved = run.course('outcome')
  except form.NotLogged:
    return None
  return trends.trend(solved)


def score(run: form.Run) -> np.ndarray | None:
  """Return the solved share by step, or else the reward, if logged."""
  return next((values for _, values in scores(run)), None)


def scores(run: form.Run) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yield steps and values of the solved share and of the reward, if logged."""
  for name in ('outcome', 'reward'):
    try:
      yield run.course(name)
    except form.NotLogged:
      continue


@form.once
def harder(run: form.Run) -> bool | None:
  """Return whether problems get harder, which explains a falling score.

  They do if the score of an evaluation rises meanwhile, prompts get longer, or
  the score of repeated problems falls by less than half of the overall fall.
  They do not if repeated problems lose as much, if the score of an evaluation
  falls, or if fewer completions have the right form although no more are cut,
  which does not depend on problems.

  Returns:
    The answer; None if the logs do not show it.
  """
  if run.format == 'evojax':
    return False  # A harness uses the same problems throughout.
  known = _evaluated(run)
  if known is not None:
    return known
  rows = run.rollouts
  if 'prompt' in rows:
    lengths = rows['prompt'].str.len().groupby(rows['step']).mean()
    if len(lengths) >= form.MIN_STEPS:
      line = trends.trend(lengths)
      if line.p < SURE and line.rise > _LONGER * float(lengths.mean()):
        return True
  again = _again(run)
  if again is not None:
    return again
  return False if _form_falls(run) else None


def fall_severity(run: form.Run, values: np.ndarray, before: float) -> str:
  """Return how severe a falling score is.

  It is critical if problems are known not to get harder, or if hardly anything
  is left of the score and they are not known to get harder.

  Args:
    run: The run.
    values: The score, one per step.
    before: Its mean before the fall.
  """
  left = float(values[-max(len(values) // 4, 1) :].mean())
  lost = 0 <= left < _NOTHING * before
  known = harder(run)
  return 'critical' if known is False or (lost and not known) else 'warning'


def said_harder(run: form.Run) -> str:
  """Return what is known of the problems, for the end of a sentence."""
  known = harder(run)
  if known is None:
    return ', and nothing logged tells whether problems get harder'
  return ', as problems get harder' if known else ''


def _evaluated(run: form.Run) -> bool | None:
  """Return True if an evaluation rises, False if it falls, None otherwise."""
  name = 'eval_outcome' if 'eval_outcome' in run.steps else 'eval_reward'
  if name not in run.steps:
    return None
  _, scores = run.series(name)
  if len(scores) < 4:
    return None
  line = trends.trend(scores)
  return line.low > 0 if line.low > 0 or line.high < 0 else None


def _again(run: form.Run) -> bool | None:
  """Return whether repeated problems lose less than half of the whole fall.

  None if too few problems come again.
  """
  rows = run.rollouts
  if not {'prompt_id', 'outcome'} <= set(rows):
    return None
  early, late = run.early(rows), run.late(rows)
  before, after = (
      part.groupby('prompt_id')['outcome'].mean() for part in (early, late)
  )
  again = (after - before).dropna()
  if len(again) < max(_AGAIN, len(after) / 3):
    return None
  lost = float(late['outcome'].mean() - early['outcome'].mean())
  return bool(intervals.mean(again).low > lost / 2)


def _form_falls(run: form.Run) -> bool:
  """Return whether fewer completions have the form although no more are cut.

  Solved completions have the form, so only unsolved ones are compared.
  """
  rows = run.rollouts
  if 'format_ok' in rows and 'outcome' in rows:
    wrong = rows[rows['outcome'] < 0.5]
    courses = [wrong.groupby('step')['format_ok'].mean().dropna().to_numpy()]
  else:
    parts = [c for c in run.steps if c.startswith(form.PART) and 'format' in c]
    courses = [run.series(part)[1] for part in parts]
  lines = [trends.trend(c) for c in courses if len(c) >= form.MIN_STEPS]
  try:
    if trends.trend(run.course('truncated')[1]).high > _FORM_LOST:
      return False
  except form.NotLogged:
    pass
  return any(line.high < -_FORM_LOST for line in lines)


def said_solved(run: form.Run) -> str:
  """Return ', 30% solved' for the end of a sentence; '' if it is not known."""
  solved = solved_late(run)
  return '' if np.isnan(solved) else f', {solved:.0%} solved'


def newest(rows: pd.DataFrame, flag: pd.Series) -> tuple[int, ...]:
  """Return the last rollouts for which a flag holds, from many prompts."""
  chosen = rows[flag]
  if {'step', 'group'} <= set(chosen):
    # The last rollout of every group comes before further ones of any group.
    left = chosen.groupby(['step', 'group']).cumcount(ascending=False)
    chosen = chosen.loc[left.sort_values(ascending=False, kind='stable').index]
  return tuple(map(int, chosen.index[-SHOWN:]))


def paid(
    run: form.Run, rows: pd.DataFrame, column: str
) -> list[records.Remedy]:
  """Return remedies for parts that pay for a column at equal outcome.

  Remedies that may repair a reward whatever the cause come after them.
  """
  weights = run.settings.get('weights') or {}
  found = []
  for part in run.parts:
    if 'outcome' not in rows or not weights.get(part):
      continue
    given = rows.assign(given=weights[part] * rows[form.PART + part])
    moved = pull(given, 'given', column)
    if moved is not None and moved.low > 0.3:
      found.append(records.Remedy(setting='weight', part=part, value=0.0))
  return list(dict.fromkeys((*found, *blame.remedies(run))))


def pull(
    rows: pd.DataFrame, value: str, column: str
) -> intervals.Interval | None:
  """Return the correlation with a column, within groups at equal outcome.

  None if it exists for fewer than _GROUPS groups or a fifth of the groups.
  """
  rows = rows.dropna(subset=[value, column, 'outcome'])
  keys = [rows['group'], rows['outcome'] > 0.5]
  by = rows.groupby(keys)[[value, column]]
  x = rows[[value, column]] - by.transform('mean')
  table = pd.DataFrame(
      {
          'both': x[value] * x[column],
          'a': x[value] ** 2,
          'b': x[column] ** 2,
      }
  )
  sums = table.groupby(rows['group']).sum()
  sums = sums[(sums['a'] > 1e-9) & (sums['b'] > 1e-9)]
  if len(sums) < max(_GROUPS, 0.2 * rows['group'].nunique()):
    return None
  return intervals.mean(sums['both'] / np.sqrt(sums['a'] * sums['b']))


def change(
    run: form.Run, remedies: Sequence[records.Remedy], other: str
) -> str:
  """Return the weight that the first remedy drops, or else other advice."""
  for remedy in remedies:
    if remedy.setting == 'weight' and remedy.value == 0:
      return f'{words.word(run.format, "weight", remedy.part)} -> 0'
  return other
