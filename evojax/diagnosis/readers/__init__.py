"""Readers: one module per format, each with `fits(path)` and `read(path, ...)`.

`fits` tells from names, and for exports of W&B from the first lines, whether a
directory or a file may have the format; `read` returns a `form.Run`, or raises
`form.FormatError`. A damaged file is left out, with a note.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import gzip
import importlib
import itertools
import json
import math
import pathlib
from typing import Any
import zlib

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from evojax.diagnosis import columns as columns_lib
from evojax.diagnosis import form
from evojax.runtime import numerals

# Name -> module. Without --format, the first that fits is used.
FORMATS = {
    'evojax': 'workdir',
    'trl': 'trl',
    'verl': 'verl',
    'prime-rl': 'prime_rl',
    'wandb': 'wandb_run',
    'table': 'table',
}
# Limit of the memory that reading takes, in bytes, for a laptop with 16 GB. Of
# larger logs, only every n-th file or block of rows is read.
MOST_MEMORY = 6 << 30
# Bytes of memory per byte of a log: of text (measured: 8), of compressed files
# (24 to 40 for Parquet), and of a Parquet file's uncompressed columns, since
# repetitive texts are compressed more.
_PER_BYTE, _PER_COMPRESSED, _PER_COLUMN = 10, 40, 12
# Adjacent rows of a large file that are read or left out together, so that most
# groups stay whole.
BLOCK = 64
_MOST_KEYS = 100  # An object with more keys is data, not a set of metrics.


def read(
    path: pathlib.Path,
    format_: str = '',
    columns: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> form.Run:
  """Read the logs of a run.

  Args:
    path: A directory or a file.
    format_: A name of FORMATS; '' detects it.
    columns: Common name -> name in the logs, if they differ.
    settings: Settings that the logs lack, by name.

  Raises:
    form.FormatError: If there is nothing to read.
  """
  if not path.exists():
    raise form.FormatError(
        f'there is no file or directory {path}; name the directory of a run,'
        ' or one of its log files'
    )
  unknown = [
      name
      for name in columns or {}
      if name not in (*form.ROLLOUT, *form.STEP)
      and not name.startswith(form.PART)
  ]
  if unknown:
    raise form.FormatError(
        f'--columns={unknown[0]}=...: the names are'
        f' {", ".join(dict.fromkeys((*form.ROLLOUT, *form.STEP)))},'
        f' {form.PART}NAME'
    )
  modules = {
      name: importlib.import_module(f'evojax.diagnosis.readers.{module}')
      for name, module in FORMATS.items()
  }
  if not format_:
    fitting = [name for name, module in modules.items() if module.fits(path)]
    if not fitting:
      below = [p.name for p in _folders(path) if _any_fits(modules, p)]
      if below:
        raise form.FormatError(
            f'{path} holds several runs; name one of them, such as'
            f' {path / below[0]}'
        )
      raise form.FormatError(
          f'{path} holds no log of {", ".join(list(FORMATS)[:-1])}, and no'
          ' table (Parquet, JSON lines, JSON, CSV); name the directory that a'
          ' trainer writes to, or one of its log files'
      )
    format_, remedy = fitting[0], '--columns=reward=NAME,... names columns'
  else:
    remedy = 'without --format, the format is detected'
  run = modules[format_].read(path, columns or {}, settings or {})
  if not len(run.rollouts) and not len(run.steps):
    raise form.FormatError(
        f'{path} holds neither rollouts nor metrics in the format {format_};'
        f' {"; ".join((remedy, *run.notes))}'
    )
  return run


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
  """Return the folders in a directory, at most 20; [] for a file."""
  if not path.is_dir():
    return []
  return sorted(p for p in path.iterdir() if p.is_dir())[:20]


def _any_fits(modules: Mapping[str, Any], path: pathlib.Path) -> bool:
  """Return whether a path looks like a log of any format."""
  return any(module.fits(path) for module in modules.values())


def memory(paths: Iterable[pathlib.Path]) -> int:
  """Return about how many bytes of memory it takes to read files."""
  return sum(map(_memory, paths))


def _memory(path: pathlib.Path) -> int:
  size = path.stat().st_size
  if path.suffix == '.gz':
    return _PER_COMPRESSED * size
  if path.suffix != '.parquet':
    return _PER_BYTE * size
  try:
    found = parquet.read_metadata(path)
  except (pa.ArrowException, OSError):
    return 0  # It is damaged, and left out.
  columns = sum(
      found.row_group(i).total_byte_size for i in range(found.num_row_groups)
  )
  return max(_PER_COMPRESSED * size, _PER_COLUMN * columns)


def stride(paths: Iterable[pathlib.Path]) -> int:
  """Return n such that one in n parts of files takes at most MOST_MEMORY."""
  return max(1, math.ceil(memory(paths) / MOST_MEMORY))


def thinned(
    paths: Sequence[pathlib.Path], notes: list[str]
) -> Sequence[pathlib.Path]:
  """Return every n-th file, such that they take at most MOST_MEMORY."""
  n = stride(paths)
  if n == 1 or len(paths) < 2:  # A single file is thinned by its rows.
    return paths
  size = sum(path.stat().st_size for path in paths)
  notes.append(f'{_said_size(size)}: read one in {n} rollout files')
  return paths[::n]


def _said_size(size: int) -> str:
  return f'{size / 1e9:.1f} GB' if size >= 1e8 else f'{size / 1e6:.1f} MB'


def say_thinned(path: pathlib.Path, n: int, notes: list[str]) -> None:
  """Add a note if only one in n blocks of the rows of a file is read."""
  if n > 1:
    notes.append(
        f'{path.name}, {_said_size(path.stat().st_size)}: read one in {n}'
        f' blocks of {BLOCK} rows'
    )


def tables(
    paths: Sequence[pathlib.Path],
    load: Callable[[pathlib.Path], pd.DataFrame],
    notes: list[str],
) -> pd.DataFrame:
  """Return the rows of all files except damaged ones."""
  found = []
  for path in thinned(paths, notes):
    try:
      found.append(load(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
      said = str(error).splitlines()[0][:120] if str(error) else repr(error)
      notes.append(f'{path.name} cannot be read ({said})')
  found = [table for table in found if len(table)]
  return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def parquet_rows(
    path: pathlib.Path,
    wanted: Callable[[str], bool] = lambda name: True,
    n: int = 1,
) -> pd.DataFrame:
  """Return the wanted columns of one in n blocks of rows of a Parquet file.

  The index of a stored data frame becomes a column, too.
  """
  try:
    with parquet.ParquetFile(path) as file:
      names = [name for name in file.schema_arrow.names if wanted(name)]
      if n == 1:
        return file.read(names).to_pandas(ignore_metadata=True)
      blocks = file.iter_batches(BLOCK, columns=names)
      found = list(itertools.islice(blocks, 0, None, n))
      return pa.Table.from_batches(found).to_pandas(ignore_metadata=True)
  except pa.ArrowException as error:
    raise ValueError(str(error)) from error


def _parsed(text: str) -> Any:
  """Return a JSON value; ? replaces lone surrogates, which pandas refuses."""
  value = json.loads(text)
  if '\\ud' in text.lower():
    whole = json.dumps(value, ensure_ascii=False)
    value = json.loads(whole.encode(errors='replace'))
  return value


def encoding(path: pathlib.Path) -> str:
  """Return the encoding of a text file; UTF-8 without a byte order mark."""
  opened = gzip.open if path.suffix == '.gz' else open
  try:
    with opened(path, 'rb') as file:
      mark = file.read(2)
  except (EOFError, zlib.error):
    return 'utf-8'
  marks = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
  return 'utf-16' if mark in marks else 'utf-8-sig'


def lines(path: pathlib.Path) -> Iterator[str]:
  """Yield the lines of a text file, which gzip may have compressed.

  If a compressed file is damaged or still being written, its readable lines are
  followed by one that is not JSON, so that it counts as a damaged line.
  """
  how = dict(encoding=encoding(path), errors='replace')
  if path.suffix != '.gz':
    with path.open(**how) as file:
      yield from file
    return
  with gzip.open(path, 'rt', **how) as file:
    try:
      yield from file
    except (EOFError, zlib.error) as error:
      yield f'{path.name} is damaged: {error}'


def json_lines(
    path: pathlib.Path, notes: list[str], n: int = 0
) -> Iterator[dict]:
  """Yield the objects in a JSON lines file; count damaged lines in a note.

  Args:
    path: The file.
    notes: Gets a note of lines that are damaged or left out.
    n: Read one in n blocks of lines; 0: such that it takes at most MOST_MEMORY.
  """
  n = n or stride([path])
  say_thinned(path, n, notes)
  damaged = 0
  for i, line in enumerate(lines(path)):
    if i // BLOCK % n:
      continue
    try:
      value = _parsed(line)
    except (ValueError, RecursionError):
      value = None
    if isinstance(value, dict):
      yield value
    else:
      damaged += bool(line.strip())
  if damaged:
    notes.append(
        f'{path.name}: left out {numerals.counted(damaged, "line")} without a'
        ' JSON object'
    )


def json_file(path: pathlib.Path) -> Any:
  """Return the value of a JSON file.

  Raises:
    form.FormatError: If it is damaged.
  """
  try:
    return _parsed(''.join(lines(path)))
  except (ValueError, RecursionError) as error:
    raise form.FormatError(f'{path} is damaged: {error}') from error


def frame(values: Any) -> pd.DataFrame:
  """Return a table of JSON values; large integers keep their digits.

  pandas would convert a column of integers with a missing value to float64,
  which cannot tell all 64-bit group ids apart.

  Args:
    values: Objects, one per row; or a list of values per column name.
  """
  values = values if isinstance(values, Mapping) else list(values)
  table = pd.DataFrame(values)
  for name in table.select_dtypes('float64'):
    if not (table[name].abs() >= columns_lib.EXACT).any():
      continue
    if isinstance(values, Mapping):
      given = values[name]
    elif all(isinstance(row, Mapping) for row in values):
      given = [row.get(name) for row in values]
    else:
      continue
    if all(v is None or v != v or isinstance(v, int) for v in given):
      table[name] = pd.Series(given, table.index, object)
  return table


def unnested(table: pd.DataFrame) -> pd.DataFrame:
  """Return a table with the values of its objects as further columns.

  The value of `correct` in the column `scores` becomes `scores.correct`.
  """
  found = [table]
  for name in table:
    values = table[name].dropna()
    if not len(values) or not isinstance(values.iloc[0], dict):
      continue
    keys = {key for v in values if isinstance(v, dict) for key in v}
    keys = {key for key in keys if f'{name}.{key}' not in table}
    if not 0 < len(keys) <= _MOST_KEYS:
      continue
    objects = [v if isinstance(v, dict) else {} for v in table[name]]
    inner = {f'{name}.{k}': [o.get(k) for o in objects] for k in sorted(keys)}
    found.append(unnested(frame(inner).set_axis(table.index)))
  return pd.concat(found, axis=1) if len(found) > 1 else table


def renamed(table: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
  """Return a table with its columns under common names.

  Raises:
    form.FormatError: If a column does not exist.
  """
  missing = sorted(set(columns.values()) - set(table.columns))
  if missing and len(table):
    raise form.FormatError(
        f'--columns names {", ".join(missing)}, which the logs lack; they'
        f' have {", ".join(map(str, table.columns))}'
    )
  # One column may have several common names: a score may be both the reward and
  # the outcome.
  return table.assign(
      **{new: table[old] for new, old in columns.items() if old in table}
  )
