"""Read-only views of the evidence of one step, for harness functions.

A reward part, a filter or a diagnostic receives a `View`: arrays of shape
[P, G], or [P, G, A] for one value per turn, restricted to the columns that the
declaration opens to this kind of reader.
"""

from collections.abc import Mapping, Sequence
import types
from typing import Any

import numpy as np

from evojax.evidence import schema

# Padding of lists: valid codes, tokens and counts are never negative.
_PADDING = {'b': False, 'i': -1, 'f': 0.0, 'U': ''}


class EvidenceAccessError(ValueError):
  """A function read a column that does not exist or is closed to it."""


class View:
  """Read-only evidence of P groups of G completions.

  Columns are attributes: `e.outcome` is bool [P, G]; `e.actions` is int32
  [P, G, A], padded with -1. `e.codes['finish_reason']['length']` is the code
  of that name. A null float reads as NaN, another null number as 0, a null flag
  as False and a null text as ''.

  Attributes:
    valid: bool [P, G]. False where there is no completion, or one that does not
      count; its other values are zero (lists: padding).
    max_tokens: The sampling limit, in tokens.
    codes: Code tables of the columns that are open to the reader.
  """

  def __init__(
      self,
      rows: Mapping[str, Sequence[Any] | np.ndarray],
      columns: Sequence[schema.Column],
      *,
      prompts: int,
      group_size: int,
      max_tokens: int,
      reader: str = 'reward',
      valid: Sequence[bool] | np.ndarray | None = None,
  ):
    """Arrange rows by their columns `group` and `sample`.

    Args:
      rows: One sequence of B values per column, in any order, as in the store.
        Nullable columns may be left out.
      columns: The declaration; see `schema.declare`.
      prompts: P. Every group is < P.
      group_size: G. Every sample is < G.
      max_tokens: The sampling limit, in tokens.
      reader: One of schema.READERS.
      valid: bool [B]; False drops a row; all True by default. Rows that could
        not be graded are always dropped.

    Raises:
      ValueError: If the reader is unknown, a row lies outside of [P, G], or two
        rows have the same place.
    """
    if reader not in schema.READERS:
      raise ValueError(f'{reader=} is not one of {schema.READERS}')
    group = np.asarray(rows['group'], np.int64)
    sample = np.asarray(rows['sample'], np.int64)
    present = np.zeros((prompts, group_size), np.int64)
    inside = (group >= 0) & (group < prompts)
    inside &= (sample >= 0) & (sample < group_size)
    if not inside.all():
      row = int(np.argmin(inside))
      raise ValueError(
          f'row {row} has group={group[row]} sample={sample[row]}, outside'
          f' {prompts=} {group_size=}'
      )
    np.add.at(present, (group, sample), 1)
    if (present > 1).any():
      where = np.argwhere(present > 1)[0].tolist()
      raise ValueError(f'two rows have [group, sample] = {where}')
    mask = np.zeros((prompts, group_size), bool)
    mask[group, sample] = np.asarray(rows['graded'], bool)
    if valid is not None:
      mask[group, sample] &= np.asarray(valid, bool)
    # Functions share the view, so none may change what the next one sees.
    mask.flags.writeable = False
    kept = np.flatnonzero(mask[group, sample])
    self._rows = {
        name: (
            values[kept]
            if isinstance(values, np.ndarray)
            else [values[i] for i in kept]
        )
        for name, values in rows.items()
    }
    self._place = group[kept], sample[kept]
    self.valid = mask
    self.max_tokens = max_tokens
    self._reader = reader
    self._all = {column.name: column for column in columns}
    self._cache = {}
    self.codes = types.MappingProxyType(
        {
            name: types.MappingProxyType(dict(self._all[name].codes))
            for name in self.columns
            if self._all[name].codes is not None
        }
    )

  @property
  def columns(self) -> tuple[str, ...]:
    """Names of the columns that are open to the reader."""
    return tuple(
        name
        for name, column in self._all.items()
        if self._reader in column.readers
    )

  def __getitem__(self, name: str) -> np.ndarray:
    """Return a column by name, as in `e[name] for name in e.columns`."""
    if name not in self._all:
      raise EvidenceAccessError(f'evidence {name!r} is not a column')
    return getattr(self, name)

  def __dir__(self) -> list[str]:
    return [*super().__dir__(), *self.columns]

  def __getattr__(self, name: str) -> np.ndarray:
    # Copying and pickling look up methods and expect a plain AttributeError if
    # there is none. `_all` does not exist yet while a copy is being filled.
    if name.startswith('_'):
      raise AttributeError(name)
    if name not in self._cache:
      self._cache[name] = self._array(name)
    return self._cache[name]

  def _array(self, name: str) -> np.ndarray:
    """Return the column as a read-only array [P, G] or [P, G, longest list]."""
    column = self._all.get(name)
    if column is None or self._reader not in column.readers:
      why = f'is closed to {self._reader}s' if column else 'is not a column'
      raise EvidenceAccessError(
          f'evidence {name!r} {why}; a {self._reader} may read'
          f' {", ".join(self.columns)}'
      )
    dtype = np.dtype(str if column.dtype == 'string' else column.dtype)
    values = self._rows.get(name)
    if values is None:  # A nullable column, not filled yet.
      values = [None] * len(self._place[0])
    if column.shape:
      array = self._padded(values, dtype)
    else:
      null = np.nan if dtype.kind == 'f' else dtype.type()
      if not isinstance(values, np.ndarray):
        values = [null if value is None else value for value in values]
      values = np.asarray(values, None if dtype.kind == 'U' else dtype)
      array = np.zeros(self.valid.shape, values.dtype if values.size else dtype)
      array[self._place] = values
    array.flags.writeable = False
    return array

  def _padded(
      self, values: Sequence[Any] | np.ndarray, dtype: np.dtype
  ) -> np.ndarray:
    """Return lists as an array [P, G, longest], padded on the right.

    A null list, from a file without the column, counts as empty.
    """
    values = [() if row is None else row for row in values]
    lengths = np.array([len(row) for row in values], np.int64)
    longest = int(lengths.max(initial=0))
    found = [np.asarray(row, dtype) for row in values if len(row)]
    joined = np.concatenate(found) if found else np.zeros(0, dtype)
    dtype = joined.dtype  # For texts, wide enough for the longest.
    flat = np.full((len(values), longest), _PADDING[dtype.kind], dtype)
    flat[np.arange(longest) < lengths[:, None]] = joined
    array = np.full((*self.valid.shape, longest), _PADDING[dtype.kind], dtype)
    array[self._place] = flat
    return array
