"""What the checks of agents measure: shares of episodes, what is paid."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from evojax.diagnosis import estimates
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.ledger import records

SURE = 0.01
SHOWN = 6  # Rollouts of a finding.
_GROUPS = 8  # Fewer groups in which both kinds of episodes lie tell nothing.


class Share:
  """A number of rollouts or steps, its last third, and where it changed."""

  def __init__(
      self, run: form.Run, name: str, rows: pd.DataFrame | None = None
  ):
    """Read it of all steps, or of the rows alone.

    Raises:
      form.NotLogged: If it is not logged, or of too few steps.
    """
    if rows is None:
      self.steps, self.values = run.course(name)
    else:
      by = rows.groupby('step')[name].mean().dropna()
      self.steps, self.values = by.index.to_numpy(), by.to_numpy(np.float64)
    if len(self.steps) < form.MIN_STEPS:
      raise form.NotLogged(
          f'{len(self.steps)} steps of {name.replace("_", " ")},'
          f' {form.MIN_STEPS} needed'
      )
    self.late = estimates.mean(self.values[-max(len(self.values) // 3, 4) :])
    self.line = estimates.trend(self.values)
    self._change = estimates.change_point(self.values)

  @property
  def rose(self) -> bool:
    return self._change.p < SURE and self._change.after > self._change.before

  @property
  def falling(self) -> bool:
    """Whether it gets smaller all the time: what is learned away."""
    return self.line.high < 0

  @property
  def since(self) -> int | None:
    return int(self.steps[self._change.index]) if self.rose else None

  @property
  def p(self) -> float | None:
    return self._change.p if self.rose else None

  @property
  def start(self) -> float:
    return float(self.values[: max(len(self.values) // 5, 2)].mean())

  def curve(self, name: str) -> tuple[str, np.ndarray, np.ndarray]:
    return name, self.steps, self.values


def gap(rows: pd.DataFrame, flag: str, value: str) -> estimates.Interval | None:
  """Return how much more a value is in flagged rollouts, within groups.

  None where fewer than _GROUPS groups have rollouts of both kinds.
  """
  by = rows.groupby(['group', rows[flag] > 0.5])[value].mean().unstack()
  gaps = (by[True] - by[False]).dropna() if by.shape[1] == 2 else ()
  return estimates.mean(gaps) if len(gaps) >= _GROUPS else None


def solved_late(run: form.Run) -> float:
  """Return what is solved in the last third; NaN where that is not logged."""
  try:
    _, solved = run.series('outcome')
  except form.NotLogged:
    return np.nan
  return float(solved[-max(len(solved) // 3, 1) :].mean())


def rises(run: form.Run) -> bool:
  """Return whether more and more is solved."""
  try:
    _, solved = run.course('outcome')
  except form.NotLogged:
    return False
  return estimates.trend(solved).low > 0


def said_solved(run: form.Run) -> str:
  solved = solved_late(run)
  return '' if np.isnan(solved) else f', {solved:.0%} solved'


def newest(rows: pd.DataFrame, flag: pd.Series) -> tuple[int, ...]:
  """Return the last rollouts of which a flag holds."""
  return tuple(map(int, rows.index[flag][-SHOWN:]))


def paid(
    run: form.Run, rows: pd.DataFrame, column: str
) -> list[records.Remedy]:
  """Return weights to drop: parts that pay for a column at equal outcome.

  After them comes what may mend a reward whoever is to blame.
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
) -> estimates.Interval | None:
  """Return the correlation with a column, in groups and at equal outcome.

  None where fewer than a fifth of the groups, or than _GROUPS, tell.
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
  return estimates.mean(sums['both'] / np.sqrt(sums['a'] * sums['b']))


def change(
    run: form.Run, remedies: Sequence[records.Remedy], other: str
) -> str:
  """Return the weight that a remedy drops first, or else other words."""
  for remedy in remedies:
    if remedy.setting == 'weight' and remedy.value == 0:
      return f'{words.word(run.format, "weight", remedy.part)} -> 0'
  return other
