"""Evidence on disk: one Parquet file per split and step.

    <workdir>/evidence/<split>/step_000012.parquet

A file is complete or absent, and writing a step again replaces it, so that a
step repeated after a kill leaves no duplicate rows. pandas reads the files
without evojax.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import os
import pathlib
import re
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from evojax.evidence import schema
from evojax.runtime import durable
from evojax.runtime import run_files

# One value per row; for a list column, one list or array per row.
Values = Sequence[Any] | np.ndarray

_FILE = re.compile(r'step_(\d{6,})\.parquet')
_KINDS = {'bool': 'b', 'int32': 'iu', 'int64': 'iu'}


class EvidenceError(ValueError):
  """Rows do not match their declaration, or a file cannot be read."""


def path_of(
    workdir: str | os.PathLike[str], split: str, step: int
) -> pathlib.Path:
  """Return the path of the file of one step of a split."""
  folder = pathlib.Path(workdir, run_files.EVIDENCE, split)
  return folder / f'step_{step:06d}.parquet'


def list_steps(workdir: str | os.PathLike[str], split: str) -> list[int]:
  """Return the steps of the split that are on disk, ascending."""
  folder = pathlib.Path(workdir, run_files.EVIDENCE, split)
  names = os.listdir(folder) if folder.is_dir() else ()
  return sorted(int(m[1]) for name in names if (m := _FILE.fullmatch(name)))


def splits(workdir: str | os.PathLike[str]) -> list[str]:
  """Return the splits that have evidence on disk."""
  found = pathlib.Path(workdir, run_files.EVIDENCE).glob('*')
  return sorted(path.name for path in found if list_steps(workdir, path.name))


def _check_numbers(column: schema.Column, values: np.ndarray) -> np.ndarray:
  """Return values as the column's dtype; `values` has no nulls.

  Raises:
    EvidenceError: If the kind or range of values does not fit, or a value is
      NaN or an unknown code.
  """
  dtype = np.dtype(column.dtype)
  kinds = _KINDS.get(column.dtype, 'fiu')
  # The dtype of an empty list carries no information.
  if values.size and values.dtype.kind not in kinds:
    raise EvidenceError(
        f'has values of dtype {values.dtype}, e.g. {values[0]!r}; it is'
        f' declared {column.dtype}'
    )
  if dtype.kind == 'i' and values.size:
    low, high = values.min(), values.max()
    limits = np.iinfo(dtype)
    if low < limits.min or high > limits.max:
      raise EvidenceError(f'has values {low}..{high} beyond {column.dtype}')
  if dtype.kind == 'f' and np.isnan(values).any():
    raise EvidenceError(
        f'holds NaN (value {np.isnan(values).argmax()} of the column)'
    )
  if column.codes is not None:
    known = np.isin(values, list(column.codes.values()))
    if not known.all():
      raise EvidenceError(
          f'holds code {values[~known][0]}, which is not in its table'
          f' {dict(column.codes)}'
      )
  return values.astype(dtype, copy=False)


def _primitive(
    column: schema.Column, values: np.ndarray, null: np.ndarray | None = None
) -> pa.Array:
  """Return an Arrow array of numbers.

  It is built from buffers, since `pa.array` imports pandas, which would cost a
  training process a third of a second and memory.
  """
  packed = values
  if column.dtype == 'bool':
    packed = np.packbits(values, bitorder='little')
  mask = None
  if null is not None and null.any():
    mask = pa.py_buffer(np.packbits(~null, bitorder='little'))
  return pa.Array.from_buffers(
      pa.type_for_alias(column.dtype),
      len(values),
      [mask, pa.py_buffer(np.ascontiguousarray(packed))],
  )


def _offsets(lengths: Sequence[int]) -> pa.Buffer:
  """Return the offsets of the rows in the flat values."""
  offsets = np.zeros(len(lengths) + 1, np.int32)
  np.cumsum(lengths, out=offsets[1:])
  return pa.py_buffer(offsets)


def _lists(column: schema.Column, values: Values) -> pa.Array:
  """Return a list column from one array or list per row."""
  rows = [np.asarray(row) for row in values]
  for index, row in enumerate(rows):
    if row.ndim != 1:
      raise EvidenceError(
          f'has a value of shape {row.shape} in row {index}; it is declared a'
          f' list, [{column.shape}]'
      )
  filled = [row for row in rows if row.size]
  flat = np.concatenate(filled) if filled else np.zeros(0, column.dtype)
  return _list_array(
      column, rows, _primitive(column, _check_numbers(column, flat))
  )


def _text_lists(column: schema.Column, values: Values) -> pa.Array:
  """Return a list column from one sequence of texts per row."""
  rows = [list(row) for row in values]
  return _list_array(column, rows, _strings([t for row in rows for t in row]))


def _list_array(
    column: schema.Column, rows: Sequence[Any], flat: pa.Array
) -> pa.Array:
  offsets = _offsets([len(row) for row in rows])
  kind = schema.arrow_type(column)
  return pa.Array.from_buffers(
      kind, len(rows), [None, offsets], children=[flat]
  )


def _strings(values: Values) -> pa.Array:
  """Return a text column; lone surrogates, invalid in UTF-8, become '?'."""
  for index, value in enumerate(values):
    if not isinstance(value, str):
      raise EvidenceError(
          f'has {value!r} in row {index}; it is declared string'
      )
  rows = [value.encode(errors='replace') for value in values]
  text = pa.py_buffer(b''.join(rows))
  buffers = [None, _offsets([len(row) for row in rows]), text]
  return pa.Array.from_buffers(pa.string(), len(rows), buffers)


def _scalars(column: schema.Column, values: Values) -> pa.Array:
  """Return one number per row; None and NaN become null where allowed."""
  null = np.zeros(len(values), bool)
  if not isinstance(values, np.ndarray):
    null = np.array([value is None for value in values], bool)
    if null.any() and not column.nullable:
      raise EvidenceError(
          f'is not nullable, but row {null.argmax()} has no value'
      )
    if null.any():
      zero = next((v for v in values if v is not None), False)
      values = [zero if v is None else v for v in values]
  try:
    array = np.asarray(values)
  except ValueError as error:  # Rows of different lengths.
    raise EvidenceError(
        'is ragged but declared with one value per row'
    ) from error
  if array.ndim != 1:
    raise EvidenceError(
        f'has shape {array.shape}; it is declared with one value per row'
    )
  if column.nullable and array.dtype.kind == 'f':
    null |= np.isnan(array)
    array = np.where(null, 0, array)
  if null.all():
    array = np.zeros(len(array), column.dtype)
  return _primitive(column, _check_numbers(column, array), null)


def _to_arrow(column: schema.Column, values: Values) -> pa.Array:
  """Return one validated column.

  Raises:
    EvidenceError: If values do not fit; names the column.
  """
  try:
    if column.dtype == 'string':
      return _text_lists(column, values) if column.shape else _strings(values)
    if column.shape:
      return _lists(column, values)
    return _scalars(column, values)
  except EvidenceError as error:
    raise EvidenceError(f'evidence column {column.name!r} {error}') from None


def to_table(
    split: str,
    step: int,
    rows: Mapping[str, Values],
    columns: Sequence[schema.Column],
) -> pa.Table:
  """Return rows as an Arrow table that follows the declaration.

  Args:
    split: Value of the column `split`.
    step: Value of the column `step`.
    rows: One sequence per column, all of the same length; a list column has one
      array per row. Nullable columns may be left out.
    columns: The declaration; see `schema.declare`.

  Raises:
    EvidenceError: If a column is missing, undeclared, of another length, or
      does not match its declaration.
  """
  same = {'split': split, 'step': step}  # The same value in every row.
  unknown = sorted(rows.keys() - {column.name for column in columns})
  required = {column.name for column in columns if not column.nullable}
  missing = sorted(required - rows.keys() - same.keys())
  if unknown or missing:
    raise EvidenceError(
        f'evidence of {split} step {step}: {missing=} {unknown=}; a column is'
        ' declared in evidence/columns.toml or by the domain, and its stage'
        ' fills it'
    )
  lengths = {name: len(values) for name, values in rows.items()}
  count = lengths['problem_id']
  uneven = {name: n for name, n in lengths.items() if n != count}
  if uneven:
    raise EvidenceError(
        f'evidence of {split} step {step} has {count} rows, but these columns'
        f' differ: {uneven}'
    )
  arrays = []
  for column in columns:
    absent = () if column.shape else same.get(column.name)
    values = rows.get(column.name, [absent] * count)
    arrays.append(_to_arrow(column, values))
  for name, value in same.items():
    others = set(np.asarray(rows.get(name, value)).ravel().tolist()) - {value}
    if others:
      raise EvidenceError(
          f'evidence column {name!r} holds {sorted(others)} in the file of'
          f' {split} step {step}'
      )
  # A second row of an episode would count it twice in every statistic.
  if len(set(zip(rows['group'], rows['sample'], strict=True))) != count:
    raise EvidenceError(
        f'evidence of {split} step {step} has two rows with the same group and'
        ' sample'
    )
  return pa.Table.from_arrays(arrays, schema=schema.to_arrow_schema(columns))


def _write(path: pathlib.Path, table: pa.Table) -> pathlib.Path:
  """Write the table atomically; raise durable.DiskError on failure."""
  # Written to memory first, so that the file appears complete, by one rename.
  sink = pa.BufferOutputStream()
  # A dictionary encoding would only help repeated text, which zstd compresses
  # as well. Without checksums, a damaged number could be read as another one.
  parquet.write_table(
      table,
      sink,
      compression='zstd',
      use_dictionary=False,
      write_page_checksum=True,
  )
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise durable.error(path, sink.tell(), error) from error
  durable.write_atomic(path, memoryview(sink.getvalue()))
  return path


def write_step(
    workdir: str | os.PathLike[str],
    split: str,
    step: int,
    rows: Mapping[str, Values],
    columns: Sequence[schema.Column],
) -> pathlib.Path:
  """Validate and write the rows of one step, replacing an older file.

  Args:
    workdir: The run's directory.
    split: 'train', 'dev' or 'sealed'.
    step: >= 0.
    rows: See `to_table`.
    columns: The declaration; see `schema.declare`.

  Returns:
    The path of the file.

  Raises:
    EvidenceError: If the rows do not follow the declaration.
    durable.DiskError: If the disk is full; no partial file is left.
  """
  table = to_table(split, step, rows, columns)
  return _write(path_of(workdir, split, step), table)


def fill(
    workdir: str | os.PathLike[str],
    split: str,
    step: int,
    values: Mapping[str, Values],
) -> pathlib.Path:
  """Rewrite a step with values of columns that a later stage fills.

  Args:
    workdir: The run's directory.
    split: The split.
    step: A step that has been written.
    values: Columns of the stages reward or update, rows in the file's order.

  Returns:
    The path of the file.

  Raises:
    FileNotFoundError: If the step was not written.
    EvidenceError: If the file is damaged, or a column belongs to another stage
      or does not fit.
    durable.DiskError: If the disk is full; the old file stays.
  """
  path = path_of(workdir, split, step)
  table = _read_table(path, None)
  declared = {c.name: c for c in schema.from_arrow_schema(table.schema)}
  for name, column_values in values.items():
    column = declared.get(name)
    # Rewards may be recomputed; samples and grades are evidence and stay.
    if column is None or column.stage not in ('reward', 'update'):
      raise EvidenceError(
          f'evidence column {name!r} cannot be filled after the fact; what was'
          ' sampled and graded is never changed'
      )
    if len(column_values) != table.num_rows:
      raise EvidenceError(
          f'evidence column {name!r} has {len(column_values)} values for'
          f' {table.num_rows} rows of {path}'
      )
    index = table.schema.get_field_index(name)
    array = _to_arrow(column, column_values)
    table = table.set_column(index, table.schema.field(index), array)
  return _write(path, table)


def _read_table(path: pathlib.Path, columns: list[str] | None) -> pa.Table:
  """Return the table of one file; columns that it lacks are left out.

  Raises:
    EvidenceError: If it is damaged.
  """
  with _open_file(path) as file:
    return file.read(columns)


@contextlib.contextmanager
def _open_file(path: pathlib.Path) -> Iterator[parquet.ParquetFile]:
  """Open a file; raise EvidenceError if it is damaged."""
  try:
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
      yield file
  except FileNotFoundError:
    raise
  except (pa.ArrowInvalid, OSError) as error:
    raise EvidenceError(
        f'evidence file {path} is damaged ({error}); delete it, or restore it'
        ' from a copy'
    ) from error


def read(
    workdir: str | os.PathLike[str],
    split: str,
    steps: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
) -> 'pandas.DataFrame':
  """Return the rows of a split, by step and then in written order.

  Args:
    workdir: The run's directory.
    split: The split.
    steps: Steps to read; all by default.
    columns: Columns to read; all by default. A column that one file lacks, such
      as a later reward part, is null for its rows.

  Returns:
    One row per rollout; empty if nothing was written. List columns hold NumPy
    arrays.

  Raises:
    FileNotFoundError: If a step was not written.
    EvidenceError: If a file is damaged, or no file has a wanted column.
  """
  import pandas  # Imported here, since training needs no pandas.

  steps = list_steps(workdir, split) if steps is None else steps
  wanted = None if columns is None else list(columns)
  tables = [_read_table(path_of(workdir, split, s), wanted) for s in steps]
  if not tables:
    return pandas.DataFrame(columns=wanted)
  # Files of other runs may have other columns; missing values become null.
  table = pa.concat_tables(tables, promote_options='default')
  absent = set(wanted or ()) - set(table.column_names)
  if absent:
    raise EvidenceError(
        f'no evidence of {split} in {workdir} has the columns {sorted(absent)}'
    )
  return table.to_pandas()


def declaration(
    workdir: str | os.PathLike[str], split: str
) -> tuple[schema.Column, ...]:
  """Return the columns of the newest step of a split.

  Raises:
    FileNotFoundError: If nothing was written.
    EvidenceError: If the file is damaged.
  """
  newest = max(list_steps(workdir, split), default=0)
  with _open_file(path_of(workdir, split, newest)) as file:
    return schema.from_arrow_schema(file.schema_arrow)


def read_numbers(
    workdir: str | os.PathLike[str], split: str, step: int, *columns: str
) -> list[np.ndarray]:
  """Return number columns of one step, without pandas.

  Raises:
    FileNotFoundError: If the step was not written.
    EvidenceError: If the file is damaged.
    KeyError: If the file lacks a column.
  """
  table = _read_table(path_of(workdir, split, step), list(columns))
  return [_numbers(table[column].combine_chunks()) for column in columns]


def _numbers(column: pa.Array) -> np.ndarray:
  """Return numbers; missing floats become NaN.

  `to_numpy` would import pandas; see `_primitive`.
  """
  if pa.types.is_boolean(column.type):  # Packed bits, which NumPy cannot read.
    return np.from_dlpack(column.cast(pa.uint8())).astype(bool)
  if column.null_count:
    column = column.fill_null(np.nan)
  return np.from_dlpack(column)


def counts(
    workdir: str | os.PathLike[str], split: str, step: int
) -> tuple[int, int]:
  """Return the number of problems of a step, and of samples per problem.

  Raises:
    FileNotFoundError: If the step was not written.
    EvidenceError: If the file is damaged.
  """
  group, sample = read_numbers(workdir, split, step, 'group', 'sample')
  return int(group.max()) + 1, int(sample.max()) + 1


def are_all_graded(
    workdir: str | os.PathLike[str], split: str, step: int
) -> bool:
  """Return whether every problem of a step has a graded row.

  Raises:
    FileNotFoundError: If the step was not written.
    EvidenceError: If the file is damaged.
  """
  graded, group = read_numbers(workdir, split, step, 'graded', 'group')
  return set(group.tolist()) == set(group[graded].tolist())


def problem_scores(
    workdir: str | os.PathLike[str], split: str, step: int | None = None
) -> np.ndarray:
  """Return the mean outcome of each problem of one step.

  Only graded rows count. An evaluation has one for every problem; in a training
  step, groups may have none. The result ends with the last group that has one.

  Args:
    workdir: The run's directory.
    split: The split.
    step: The step; by default the only step of the split.

  Returns:
    float64 [P]; NaN: no row of the group was graded.

  Raises:
    ValueError: If no step is given and the split does not have exactly one.
    FileNotFoundError: If the step was not written.
    EvidenceError: If the file is damaged.
  """
  if step is None:
    (step,) = list_steps(workdir, split)
  columns = ('graded', 'group', 'outcome')
  graded, group, solved = read_numbers(workdir, split, step, *columns)
  group, solved = group[graded], solved[graded].astype(np.float64)
  with np.errstate(invalid='ignore'):  # 0 / 0: NaN for a group without grades.
    return np.bincount(group, solved) / np.bincount(group)


def mean_outcome(
    workdir: str | os.PathLike[str], split: str, step: int
) -> float:
  """Return the solved share of the graded rows of one step.

  Raises:
    FileNotFoundError: If the step was not written.
    EvidenceError: If the file is damaged.
  """
  graded, solved = read_numbers(workdir, split, step, 'graded', 'outcome')
  return float(solved[graded].mean())


def discard_after(
    workdir: str | os.PathLike[str], split: str, step: int
) -> list[int]:
  """Delete the files of later steps; return the numbers of these steps.

  A run that resumes from the checkpoint of `step` repeats later steps. Until
  then, no reader should count rows of a policy that no longer exists.
  """
  later = [s for s in list_steps(workdir, split) if s > step]
  for each in later:
    path_of(workdir, split, each).unlink()
  if later:
    durable.sync_directory(path_of(workdir, split, 0).parent)
  return later
