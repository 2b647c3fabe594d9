"""Reads CSV files without changing the texts in them."""

from collections.abc import Collection
import itertools
import pathlib
from typing import Any
import zlib

import pandas as pd

from evojax.diagnosis import readers

_OTHERS = ';\t|'  # Separators that are not read.


def load(path: pathlib.Path, n: int, texts: Collection[str]) -> pd.DataFrame:
  """Read one in n blocks of rows of a CSV file.

  Args:
    path: The file.
    n: One in n blocks is read.
    texts: Columns that are texts even if all their values are numbers.

  Raises:
    ValueError: If the file is damaged, or not separated by commas.
  """
  header = next(readers.lines(path), '')
  other = next((mark for mark in _OTHERS if mark in header), ',')
  if ',' not in header and other != ',':
    raise ValueError(
        f'its columns are separated by {other!r}: write it with commas'
    )
  try:
    table = _parsed(path, n)
    plain = [c for c in table if c in texts or not _has_numbers(table[c])]
    if not plain:
      return table
    # In `table`, empty texts, None, null and NA are missing values, although a
    # policy may have answered so.
    exact = _parsed(path, n, dtype=str, keep_default_na=False)
  except (EOFError, zlib.error) as error:
    raise ValueError(str(error)) from error
  return table.assign(**{name: exact[name] for name in plain})


def _has_numbers(values: pd.Series) -> bool:
  return (
      pd.api.types.is_numeric_dtype(values)
      or pd.api.types.infer_dtype(values, skipna=True) == 'boolean'
  )


def _parsed(path: pathlib.Path, n: int, **how: Any) -> pd.DataFrame:
  how |= dict(encoding=readers.encoding(path), encoding_errors='replace')
  if n == 1:
    return pd.read_csv(path, **how)
  with pd.read_csv(path, chunksize=readers.BLOCK, **how) as blocks:
    return pd.concat(itertools.islice(blocks, 0, None, n))
