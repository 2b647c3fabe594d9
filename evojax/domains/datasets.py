"""Problems from data sets: rows, distinct problems, disjoint splits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import glob
import importlib
import json
import pathlib
from typing import Any

from absl import logging
import pyarrow as pa
from pyarrow import parquet

from evojax import records
from evojax.domains import splits

# The rows of a data set, each with its location, such as 'path:line'; an error
# stands for an unreadable row.
Rows = Iterable[tuple[str, Mapping[str, Any] | ValueError]]
_COMPRESSED = ('.gz', '.bz2', '.zst')
# First bytes of files that are often taken for JSON lines -> what they are.
_FORMS = {
    b'\xff\xfe': 'UTF-16 text; write it as UTF-8',
    b'\xfe\xff': 'UTF-16 text; write it as UTF-8',
    b'\x1f\x8b': 'compressed by gzip; let its name end in .gz',
    b'BZh': 'compressed by bzip2; let its name end in .bz2',
    b'\x28\xb5\x2f\xfd': 'compressed by zstd; let its name end in .zst',
    b'PAR1': 'a Parquet file; name it in domain.kwargs.parquet',
}
_PLACES = 5  # Number of broken rows that a message names.


class Numeral(str):
  """A number as it is written in the file."""

  __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Reader:
  """A kind of data set that a domain can read, given as argument of `make`."""

  # (path or split, system_prompt=..., **options) -> problems of one split; with
  # own_grader=True if the user's own grader compares the answers.
  read: Callable[..., list[records.Problem]]
  options: tuple[str, ...] = ()  # Fields of the argument, besides the splits.
  required: tuple[str, ...] = ('train',)  # Fields that must be given.


def jsonl_rows(
    path: str,
) -> Iterator[tuple[str, Mapping[str, Any] | ValueError]]:
  """Yield ('path:line', object) for each line of a JSONL file.

  A line that is not a JSON object yields the error instead. Blank lines are
  skipped. Numbers are returned as `Numeral`, the text in the file, so that
  7.140 does not become 7.14.

  Args:
    path: Files in UTF-8, from domain.kwargs.jsonl; see `_files`. Those whose
      names end as in `_COMPRESSED` are decompressed.

  Raises:
    ValueError: If a file is missing, damaged or not UTF-8 text.
  """
  for file in _files('jsonl', path):
    try:
      with pa.input_stream(str(file), compression='detect') as stream:
        text = stream.read()
    except (pa.ArrowException, OSError) as error:
      raise ValueError(
          f'domain.kwargs.jsonl: {str(file)!r} cannot be read: {error}'
      ) from error
    for start, form in _FORMS.items():
      if text.startswith(start):
        raise ValueError(f'domain.kwargs.jsonl: {str(file)!r} is {form}')
    for number, line in enumerate(text.splitlines(), 1):
      if not line.strip():
        continue
      where = f'{file}:{number}'
      try:
        row = _loads(line)
      # Text that is not UTF-8 raises a ValueError too. A line of 100,000
      # brackets is nested more deeply than the parser can follow.
      except (ValueError, RecursionError) as error:
        yield where, ValueError(f'not JSON: {error}')
        continue
      if not isinstance(row, dict):
        row = ValueError(f'a {type(row).__name__}, not an object')
      yield where, row


def parquet_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yield ('path[index]', row) for each row of a Parquet file.

  Numbers are returned as `Numeral`, as in `jsonl_rows`.

  Args:
    path: Files, from domain.kwargs.parquet; see `_files`.

  Raises:
    ValueError: If a file is missing, damaged or not Parquet.
  """
  for file in _files('parquet', path):
    try:
      batches = parquet.ParquetFile(file).iter_batches()
      rows = (r for batch in batches for r in _widened(batch).to_pylist())
      for index, row in enumerate(rows):
        yield f'{file}[{index}]', _loads(json.dumps(row, default=_plain))
    except (pa.ArrowException, OSError, UnicodeError) as error:
      raise ValueError(
          f'domain.kwargs.parquet: {str(file)!r} is not a Parquet file, or is'
          f' damaged: {error}'
      ) from error


def _widened(batch: pa.RecordBatch) -> pa.RecordBatch:
  """Return a batch whose float32 0.1 is 0.1, not 0.10000000149011612."""
  for index, field in enumerate(batch.schema):
    if field.type in (pa.float16(), pa.float32()):
      digits = batch.column(index).cast(pa.string())
      column = digits.cast(pa.float64())
      batch = batch.set_column(index, field.name, column)
  return batch


def _plain(value: Any) -> str | None:
  """Return bytes as the text that they hold; dates and the like as text."""
  if not isinstance(value, bytes):
    return str(value)
  try:
    return value.decode()
  except UnicodeDecodeError:  # An image, for example.
    return None


def family(path: str) -> str:
  """Return the family of rows without a tag: 'sums' for 'sums.jsonl.gz'."""
  file = pathlib.Path(path)
  return (file.with_suffix('') if file.suffix in _COMPRESSED else file).stem


def _files(name: str, path: str) -> list[pathlib.Path]:
  """Return the file of a path, or the files that a pattern names, by name.

  Args:
    name: Argument of the domain that has the path.
    path: A file, or a pattern such as 'train-*.parquet'.

  Raises:
    ValueError: If there is none.
  """
  file = pathlib.Path(path).expanduser()
  if file.is_file():
    return [file]
  matched = map(pathlib.Path, sorted(glob.glob(str(file))))
  if found := [file for file in matched if file.is_file()]:
    return found
  if file.is_dir():
    raise ValueError(
        f'domain.kwargs.{name}: {path!r} is a directory; name a file, or'
        f" several by a pattern: '{path}/train-*'"
    )
  raise ValueError(
      f'domain.kwargs.{name}: {path!r} does not exist or is not a file,'
      f' relative to {pathlib.Path.cwd()}'
  )


def _loads(text: str | bytes) -> Any:
  """Parse JSON, with numbers as `Numeral`."""
  return json.loads(
      text, parse_int=Numeral, parse_float=Numeral, parse_constant=Numeral
  )


def values(tree: Any) -> Any:
  """Return a row, or a part of one, with numbers instead of `Numeral`s."""
  if isinstance(tree, Numeral):
    # Python refuses integers of more than 4,300 digits.
    with contextlib.suppress(ValueError):
      return json.loads(tree)
    return str(tree)
  if isinstance(tree, Mapping):
    return {name: values(value) for name, value in tree.items()}
  return list(map(values, tree)) if isinstance(tree, list) else tree


def tfds_rows(
    name: str, split: str, data_dir: str | None, module: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yield ('name:split[index]', features as text) of a TFDS data set.

  The data set is prepared if it is not there yet. TensorFlow is not needed.

  Args:
    name: As in `tfds.builder`, e.g. 'gsm8k'.
    split: The data set's own split, e.g. 'train' or 'test[:50%]'.
    data_dir: Directory of prepared data sets; TFDS's default if empty.
    module: Module of the user's own builder, imported first.

  Raises:
    ValueError: If there is no such data set or split.
  """
  # Imported here because it takes a second, and only these runs need it.
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  try:
    if module:
      importlib.import_module(module)
    # Only array_record (and parquet) can be read without TensorFlow.
    builder = tfds.builder(
        name, data_dir=data_dir or None, file_format='array_record'
    )
  except (ModuleNotFoundError, tfds.core.DatasetNotFoundError) as error:
    raise ValueError(
        f'TFDS has no data set {name!r} ({error}). The module of a builder of'
        f' your own is named by domain.kwargs.tfds.module ({module!r})'
    ) from error
  if not builder.is_prepared():
    builder.download_and_prepare()
  for index, example in enumerate(builder.as_data_source(split=split)):
    yield f'{name}:{split}[{index}]', {
        # Text comes as bytes, numbers as NumPy scalars.
        key: value.decode() if isinstance(value, bytes) else str(value)
        for key, value in example.items()
    }


def tag(row: Mapping[str, Any], family: str) -> str:
  """Return the family in a row's "tag", or else `family`.

  Raises:
    ValueError: If the tag is not a string, or is empty.
  """
  found = row.get('tag', family)
  if not isinstance(found, str) or not found:
    raise ValueError(f'tag={found!r} must be a non-empty string')
  return found


def distinct(
    rows: Rows,
    parse: Callable[[Mapping[str, Any]], records.Problem],
    source: str,
    *,
    skip_broken: bool | None = None,
) -> list[records.Problem]:
  """Return the problems of a data set; a repeated problem is kept once.

  All rows are read before an error is raised, so that it counts all broken
  rows: those that `parse` refuses, and those that repeat a question with
  another answer.

  Args:
    rows: The data set.
    parse: Makes a problem of a row; its ValueErrors get the row's location.
    source: Name of the data set in error messages.
    skip_broken: Whether broken rows are left out, with a warning; None means
      no, for callers whose users have no such option.

  Raises:
    ValueError: If a row is broken and may not be skipped, or none is left.
  """
  found: dict[str, records.Problem] = {}
  broken = []
  for where, row in rows:
    try:
      if isinstance(row, ValueError):
        raise row
      problem = parse(row)
      twin = found.setdefault(problem.problem_id, problem)
      if twin.answer != problem.answer:
        raise ValueError(
            f'the question {problem.question[:80]!r} has the answers'
            f' {twin.answer!r:.80} and {problem.answer!r:.80}; keep one of them'
        )
    except ValueError as error:
      broken.append((where, error))
  if broken:
    message = _describe(broken)
    if not skip_broken:
      if skip_broken is not None:
        message += (
            ". Repair them, or leave them out with 'skip_broken': True beside"
            ' the path'
        )
      raise ValueError(message) from broken[0][1]
    logging.warning('left out: %s', message)
  if not found:
    raise ValueError(f'{source} holds no problem')
  return list(found.values())


def _describe(broken: Sequence[tuple[str, ValueError]]) -> str:
  """Return the first error with its location, and the number of others."""
  message = '{}: {}'.format(*broken[0])
  if len(broken) > 1:
    places = ', '.join(where for where, _ in broken[1:_PLACES])
    more = ', ...' if len(broken) > _PLACES else ''
    message += f' ({len(broken)} broken rows; also {places}{more})'
  return message


def given(
    tables: Mapping[str, Mapping[str, Any] | None],
) -> dict[str, dict[str, Any]]:
  """Return the non-empty arguments, such as jsonl, that give a data set.

  Empty fields do not count: a config only declares them so that they can be set
  on the command line.

  Args:
    tables: Argument of a domain -> its fields, all strings, or None.

  Raises:
    ValueError: If one is not a table of strings (skip_broken is a bool).
  """
  found = {}
  for name, table in tables.items():
    if table is not None and not isinstance(table, Mapping):
      raise ValueError(
          f"domain.kwargs.{name}={table!r} must be a table such as {{'train':"
          ' ...}'
      )
    fields = {k: v for k, v in (table or {}).items() if v}
    for field, value in fields.items():
      if field == 'skip_broken':
        if value is not True:
          raise ValueError(
              f'domain.kwargs.{name}.{field}={value!r} must be True or False'
          )
      elif not isinstance(value, str):
        raise ValueError(f'domain.kwargs.{name}.{field}={value!r} must be text')
    if fields:
      found[name] = fields
  return found


def read(
    name: str,
    reader: Reader,
    fields: Mapping[str, str | bool],
    **more: str | bool,
) -> dict[str, tuple[records.Problem, ...]]:
  """Read a data set and divide it into train, dev and sealed.

  Args:
    name: The argument that gives the data set, such as 'jsonl'.
    reader: The reader to use.
    fields: The non-empty fields of the argument.
    **more: Further options of the reader; system_prompt is the first message
      of problems without a system message.

  Raises:
    ValueError: If a field is unknown or missing, or the data set is broken.
  """
  accepted = (*splits.SHARES, *reader.options)
  unknown = sorted(fields.keys() - accepted)
  missing = [field for field in reader.required if field not in fields]
  if unknown or missing:
    raise ValueError(
        f'domain.kwargs.{name}: {unknown=}, {missing=}; it takes'
        f' {", ".join(accepted)}'
    )
  options = {k: v for k, v in fields.items() if k not in splits.SHARES}
  options |= more
  members = {s: fields[s] for s in splits.SHARES if s in fields}
  return divide({s: reader.read(v, **options) for s, v in members.items()})


def divide(
    members: Mapping[str, Sequence[records.Problem]],
) -> dict[str, tuple[records.Problem, ...]]:
  """Fill every split; splits without data get their share of train by hash.

  Args:
    members: Problems of 'train', and of 'dev' and 'sealed' if they have their
      own data.

  Returns:
    Problems of train, dev and sealed.

  Raises:
    ValueError: If a problem is in two given splits, or a split stays empty.
  """
  owner = {}
  for split, problems in members.items():
    shared = [p for p in problems if p.problem_id in owner]
    if shared:
      raise ValueError(
          f'{len(shared)} problems of {split!r} are also in'
          f' {owner[shared[0].problem_id]!r}, e.g. {shared[0].question[:80]!r}.'
          ' A split must not leak into another: remove them from one of the two'
      )
    owner.update((p.problem_id, split) for p in problems)
  divided = {s: list(members.get(s, ())) for s in splits.SHARES}
  if carved := splits.SHARES.keys() - members:
    divided['train'] = []
    for problem in members['train']:
      split = splits.split_of(problem.problem_id)
      divided[split if split in carved else 'train'].append(problem)
  for split, problems in divided.items():
    if not problems:
      raise ValueError(
          f'split {split!r} is empty: {len(members["train"])} problems in'
          f' train, of which {splits.SHARES[split]} % go there by hash. Give'
          ' more problems, or a file for each of train, dev and sealed'
      )
  return {split: tuple(problems) for split, problems in divided.items()}
