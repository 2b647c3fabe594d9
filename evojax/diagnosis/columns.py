"""Conversion of logged columns: numbers, rows per step, and group numbers."""

from typing import Any

import numpy as np
import pandas as pd

EXACT = 2.0**53  # Not all integers above this are exact in float64.
_INFINITE = float(np.finfo(np.float32).max)
_WORDS = {'true': 1.0, 'false': 0.0, 'yes': 1.0, 'no': 0.0}
_LOOKED_AT = 100  # Values of a column in which `unread` searches.


def numeric(values: pd.Series) -> pd.Series:
  """Return a column as numbers; any other value becomes NaN."""
  try:
    return pd.to_numeric(values, errors='coerce')
  except OverflowError:  # JSON may have integers beyond float64.
    large = values.map(lambda v: isinstance(v, int) and abs(v) > _INFINITE)
    return pd.to_numeric(values.mask(large), errors='coerce')


def unread(values: pd.Series) -> Any:
  """Return the first value of a column that is not a number; None without one.

  NaN and infinity, also as texts, count as numbers. Only the first _LOOKED_AT
  values are searched.
  """
  for value in values[values.map(lambda v: v != '')].dropna().head(_LOOKED_AT):
    try:
      float(value)
    except (TypeError, ValueError):
      return value
    except OverflowError:
      continue
  return None


def numbers(values: pd.Series) -> pd.Series:
  """Return a column as float64; values that are not finite become NaN.

  The largest number of float32, in which trainers compute, counts as infinite.
  So do steps that are too large for float64 to tell them apart.
  """
  if values.dtype == object or str(values.dtype).startswith('str'):
    values = values.map(
        lambda v: _WORDS.get(v.lower(), v) if isinstance(v, str) else v
    )
  found = numeric(values).astype(np.float64)
  most = EXACT if values.name == 'step' else _INFINITE
  return found.where(found.abs() < most)


def merged(steps: pd.DataFrame) -> pd.DataFrame:
  """Return metrics with one row per step, in order.

  Adjacent rows of a step that have the same metrics are its mini-batches, and
  are averaged (lows and highs: the lowest and highest value). Of other rows,
  such as metrics and an evaluation, the last value of each metric counts.
  """
  steps = steps.reset_index(drop=True)
  by_step = steps.groupby('step')
  found, known, size = by_step.last(), by_step.count(), by_step.size()
  place = steps.index.to_series().groupby(steps['step'])
  adjacent = place.max() - place.min() + 1 == size
  alike = (known.eq(0) | known.eq(size, axis=0)).all(axis=1)
  several = adjacent & alike & (size > 1)
  if several.any():
    how = {'_high': 'max', '_low': 'min'}
    for name in found:
      ends = (way for end, way in how.items() if name.endswith(end))
      values = by_step[name].agg(next(ends, 'mean'))
      found[name] = found[name].where(~several, values)
  return found.reset_index()


def grouped(rollouts: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
  """Return rollouts with group numbers that are unique within the run.

  Without an id, a rollout belongs to the group of its prompt in its step. If it
  has no prompt either, while others have ids, it is left out.

  Args:
    rollouts: Rollouts with steps, and perhaps ids of groups within a step.
    notes: Gets a note of rollouts without an id.
  """
  ids = rollouts.get('group', pd.Series(None, rollouts.index, object))
  known = ids.notna() & (ids.astype(object) != '')
  if known.any() and not known.all():
    what = f'{(~known).sum()} of {len(known)} rollouts have no group'
    if 'prompt' not in rollouts:
      notes.append(f'{what}: they are left out')
      return grouped(rollouts[known].reset_index(drop=True), notes)
    notes.append(f'{what}: they are assigned by their prompts')
  ids = ids.astype(object).map(str)
  if not known.all():
    other = rollouts.get('prompt', pd.Series(range(len(rollouts))))
    ids[~known] = [f'prompt {value}' for value in other[~known]]
    if known.any():
      ids[~known] = _of_prompts(rollouts.assign(group=ids), known)
  keys = pd.MultiIndex.from_arrays([rollouts['step'], ids])
  return rollouts.assign(group=pd.factorize(keys)[0])


def _of_prompts(rollouts: pd.DataFrame, known: pd.Series) -> np.ndarray:
  """Return groups for the rollouts whose group is not known.

  It is the group with the same step and prompt if exactly one is known, and
  otherwise the value in their own column.

  Args:
    rollouts: Rollouts with steps, prompts and groups.
    known: Whether the group of a rollout is known.
  """
  keys = ['step', 'prompt']
  found = rollouts[known].groupby(keys)['group'].agg(['first', 'nunique'])
  found = found.loc[found['nunique'] == 1, 'first']
  others = rollouts[~known]
  same = found.reindex(pd.MultiIndex.from_frame(others[keys])).to_numpy()
  return np.where(pd.isna(same), others['group'].to_numpy(), same)
