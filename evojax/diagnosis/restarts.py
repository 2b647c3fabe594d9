"""Removal of logs that a restart from a checkpoint has superseded.

A restarted run repeats the steps after its checkpoint. The rollouts and metrics
that it had logged for these steps before did not contribute to the policy.
"""

from collections.abc import Iterable, Sequence
import pathlib

import numpy as np
import pandas as pd

from evojax.diagnosis import columns

# With more apparent restarts than this, the rows are merely in another order.
_MOST = 10
# Files written one after the other may be this many seconds out of order.
_SECONDS = 5.0
_LEAST_FILES = 3  # Fewer new files may have been edited by hand.
_MOST_FALLS = 3  # Steps back in time among earlier branches' remaining files.


def rollouts(
    rows: pd.DataFrame, notes: list[str], *, in_order: bool = False
) -> pd.DataFrame:
  """Return rollouts without those of steps that were repeated later.

  The run was restarted where a step follows a higher one, if both parts of the
  log have rollouts of the same problem in the same step. Problems are compared
  by group number and by prompt, since some trainers number groups anew.

  Args:
    rows: Rollouts with steps, in the order in which they were logged.
    notes: Gets a note of what is left out.
    in_order: Whether the trainer always writes steps in order, so that a
      repeated step is enough.
  """
  steps = columns.numeric(rows['step']).to_numpy(float)
  back = np.flatnonzero(np.diff(steps) < 0) + 1
  keys = [
      _keys(steps, rows[name]) for name in ('group', 'prompt') if name in rows
  ]
  if not (keys or in_order) or not 0 < len(back) <= _MOST:
    return rows
  lost = np.zeros(len(rows), bool)
  for start in back:
    before = (np.arange(len(rows)) < start) & (steps >= steps[start])
    if in_order:
      again = bool((steps[before] == steps[start]).any())
    else:
      again = steps[start] > steps[0] and any(
          not {made[i] for i in np.flatnonzero(before)}.isdisjoint(made[start:])
          for made in keys
      )
    if again:
      lost |= before
  _say(steps[lost], 'rollouts', notes)
  return rows[~lost].reset_index(drop=True)


def _keys(steps: np.ndarray, values: pd.Series) -> list[tuple]:
  """Return a key per rollout, equal for one value (problem) in one step.

  A rollout without a value has a key of its own.
  """
  known = values.notna() & (values.map(str) != '')
  rows = zip(steps, values, known, strict=True)
  return [
      (step, str(value)) if there else (step, place)
      for place, (step, value, there) in enumerate(rows)
  ]


def metrics(table: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
  """Return the metrics in a file without those of steps repeated later.

  The metric with the most values shows where the run went back, since
  evaluations may be logged late without any restart.

  Args:
    table: Metrics with a column `step`, in the order in which they were logged.
    notes: Gets a note of what is left out.
  """
  if 'step' not in table or len(table.columns) < 2:
    return table
  steps = columns.numeric(table['step']).to_numpy(float)
  lead = table[table.drop(columns='step').notna().sum().idxmax()].notna()
  lead = np.flatnonzero(lead.to_numpy() & np.isfinite(steps))
  falls = np.flatnonzero(np.diff(steps[lead]) < 0)
  if not 0 < len(falls) <= _MOST:
    return table
  # A single row is not a restart: it may summarise, say, the best step.
  falls = falls[np.diff(falls, append=len(lead) - 1) > 1]
  lost = np.zeros(len(table), bool)
  for last, start in zip(lead[falls], lead[falls + 1], strict=True):
    # An evaluation of the new branch may come before its first other metrics.
    new = last + 1 + np.argmax(steps[last + 1 : start + 1] < steps[last])
    before = (np.arange(len(table)) < new) & (steps >= steps[start])
    if (steps[before] == steps[start]).any():
      lost |= before
  _say(steps[lost], 'metrics', notes)
  return table[~lost].reset_index(drop=True)


def log(lines: Iterable[dict], notes: list[str]) -> pd.DataFrame:
  """Return the metrics in the lines of one file; see `metrics`."""
  return metrics(pd.DataFrame(list(lines)), notes)


def _say(steps: np.ndarray, what: str, notes: list[str]) -> None:
  if len(steps):
    notes.append(
        f'the run was restarted and repeated steps {steps.min():g} to'
        f' {steps.max():g}: their first {what} are left out'
    )


def files(
    paths: Sequence[pathlib.Path], steps: Sequence[int], notes: list[str]
) -> list[pathlib.Path]:
  """Return files of one step each, without those left from an earlier branch.

  A restarted run overwrites its files. Until it has come as far as before, the
  files of the highest steps are older than those of lower steps. Times in any
  other order are ignored, since copied files may have any times.

  Args:
    paths: Files in one folder, in the order of their steps.
    steps: Their steps.
    notes: Gets a note of what is left out.
  """
  paths = list(paths)
  times = np.array([path.stat().st_mtime for path in paths])
  if not len(paths):
    return paths
  newest = int(np.flatnonzero(times >= times.max() - _SECONDS).max())
  falls = np.diff(times) < -_SECONDS
  left = times[newest + 1 :]
  anew = times[: newest + 1] > left.max(initial=-np.inf) + _SECONDS
  by_name = sorted(range(len(paths)), key=lambda i: paths[i].name)
  if (
      not 0 < newest < len(paths) - 1
      or falls[:newest].any()
      or falls[newest + 1 :].sum() > _MOST_FALLS
      or anew.sum() < _LEAST_FILES
      or (np.diff(times[by_name]) >= 0).all()  # Copied in this order.
  ):
    return paths
  notes.append(
      f'the files of steps {steps[newest + 1]} to {steps[-1]} are older than'
      f' {paths[newest].name}: the run was restarted, and they are left out'
  )
  return paths[: newest + 1]
