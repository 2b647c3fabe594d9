"""Reads rollouts or metrics from plain tables: Parquet, JSON lines, JSON, CSV.

A table with a prompt, a completion or a group per row holds rollouts, under the
common names of `form.ROLLOUT` or those in --columns; any other table holds
steps. All but Parquet may be compressed with gzip.
"""

from collections.abc import Collection, Mapping, Sequence
import pathlib
import re
from typing import Any

import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis import restarts
from evojax.diagnosis.readers import separated

_SUFFIXES = ('.parquet', '.jsonl', '.ndjson', '.json', '.csv')
_ROLLOUTS = 'completion', 'group', 'prompt'
# The number of a step in the name of its file.
_STEP = re.compile(r'(?:.*(?:step|iter|iteration|update)[_-]?)?(\d+)', re.I)
# Columns that tell several runs in a table apart.
_RUN = 'run', 'run_id', 'run_name'


def _suffix(path: pathlib.Path) -> str:
  """Return the suffix of a file's name, without that of gzip."""
  return pathlib.Path(path.name.removesuffix('.gz')).suffix


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if path.is_file():
    return [path] if _suffix(path) in _SUFFIXES else []
  found = [p for p in sorted(path.iterdir()) if _suffix(p) in _SUFFIXES]
  return [p for p in found if not p.name.startswith('diagnosis.')]


def fits(path: pathlib.Path) -> bool:
  return bool(_files(path))


def load(
    path: pathlib.Path,
    notes: list[str],
    n: int = 1,
    texts: Collection[str] = (),
) -> pd.DataFrame:
  """Read one in n blocks of rows of a table.

  The values of objects become columns of their own, too.

  Args:
    path: The file.
    notes: Gets a note of lines that are damaged or left out.
    n: One in n blocks is read.
    texts: Columns of a CSV file that are texts even if all values are numbers.

  Raises:
    ValueError: If the file is damaged.
  """
  suffix = _suffix(path)
  if suffix == '.json':
    value = readers.json_file(path)
    if isinstance(value, dict):  # Column name -> list of values.
      value = {k: v for k, v in value.items() if isinstance(v, list)}
    return readers.unnested(readers.frame(value))
  if suffix == '.jsonl' or suffix == '.ndjson':
    return readers.unnested(readers.frame(readers.json_lines(path, notes, n)))
  readers.say_thinned(path, n, notes)
  if suffix == '.parquet':
    return readers.unnested(readers.parquet_rows(path, n=n))
  return separated.load(path, n, texts)


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read one table, or all tables in a folder."""
  notes: list[str] = []
  rollouts, steps, seen = {}, [], set()
  texts = [columns.get(name, name) for name in (*form.TEXTS, 'group')]
  for file, n in _thinned(_files(path), notes):
    try:
      table = load(file, notes, n, texts)
    except (ValueError, OSError) as error:
      notes.append(f'{file.name} cannot be read ({str(error)[:120]})')
      continue
    seen |= set(table)
    owned = {n: c for n, c in columns.items() if c in table}
    if owned:
      table = readers.renamed(table, owned)
    if any(name in table for name in _ROLLOUTS):
      _check_one_run(file, table, table.get('step'), columns)
      rollouts[file] = table
      continue
    said: list[str] = []
    found = names.common(table, said, owned)
    _check_one_run(file, table, found.get('step'), columns)
    if _probably_rollouts(table, found):
      notes.append(
          f'{file.name} seems to hold rollouts (several rows in a step, with'
          ' texts): name its columns with --columns=prompt=NAME,'
          f'completion=NAME,reward=NAME,...; it has {_listed(table)}'
      )
      continue
    notes += said
    if not len(found) and len(table.columns):
      notes.append(
          f'{file.name} has no known columns: name them with'
          f' --columns=step=NAME,reward=NAME,...; it has {_listed(table)}'
      )
    steps.append(restarts.metrics(found, notes))
  missing = [column for column in columns.values() if column not in seen]
  if missing:
    has = f'they have {_listed(seen)}' if seen else 'they have no rows'
    raise form.FormatError(
        f'no table of {path} has {", ".join(missing)}; {has}'
        + ''.join(f'; {note}' for note in notes)
    )
  rows = _joined(rollouts, notes)
  if len(rows) and 'outcome' not in rows:
    taken: dict[str, str] = {}
    names.guess_outcome(rows, [], taken, notes)
    rows = readers.renamed(rows, taken)
  log = pd.concat(steps, ignore_index=True) if steps else pd.DataFrame()
  return form.make(path, 'table', rows, log, settings, notes)


def _thinned(
    files: Sequence[pathlib.Path], notes: list[str]
) -> list[tuple[pathlib.Path, int]]:
  """Return files, and n if one in n blocks of their rows is to be read.

  If files of one step each are too large together, only some are read.
  """
  steps = [file for file in files if _STEP.fullmatch(file.name.split('.')[0])]
  others = [file for file in files if file not in steps]
  n = readers.stride(others)
  return [(file, n) for file in others] + [
      (file, 1) for file in readers.thinned(steps, notes)
  ]


def _listed(columns: Any) -> str:
  """Return the names of columns in one text of bounded length."""
  return ', '.join(sorted(map(str, columns)))[:300]


def _probably_rollouts(table: pd.DataFrame, metrics: pd.DataFrame) -> bool:
  """Return whether a table without names of rollouts probably holds some.

  Args:
    table: The table.
    metrics: The table read as metrics, under common names.
  """
  step = metrics.get('step')
  if step is None or not len(step) or step.value_counts().median() < 2:
    return False
  texts = table.select_dtypes(['object', 'string'])
  spaced = lambda v: isinstance(v, str) and ' ' in v.strip()
  return any(texts[name].map(spaced).mean() > 0.5 for name in texts)


def _joined(
    tables: Mapping[pathlib.Path, pd.DataFrame], notes: list[str]
) -> pd.DataFrame:
  """Return the rollouts of all files, each with the number of its step.

  Raises:
    form.FormatError: If neither a column nor a file's name has the step.
  """
  if not tables:
    return pd.DataFrame()
  tables = dict(tables)
  without = [file for file in tables if 'step' not in tables[file]]
  if without:
    found = [_STEP.fullmatch(file.name.split('.')[0]) for file in without]
    numbers = [int(match[1]) for match in found if match]
    if len(set(numbers)) < len(tables):
      raise form.FormatError(
          f'the rollouts of {without[0].name} have no step: name its column'
          f' with --columns=step=NAME ({_listed(tables[without[0]])}). If there'
          ' is none, write each step to a file with its number, such as'
          ' step_12.jsonl'
      )
    notes.append(
        f'the steps are the numbers in the names of files, such as'
        f' {without[0].name}'
    )
    for file, number in zip(without, numbers, strict=True):
      tables[file] = tables[file].assign(step=number)
  _say_runs(tables, notes)
  rows = pd.concat(tables.values(), ignore_index=True)
  return restarts.rollouts(rows, notes)


def _check_one_run(
    file: pathlib.Path,
    table: pd.DataFrame,
    steps: pd.Series | None,
    columns: Mapping[str, str],
) -> None:
  """Raise an error if a table holds several runs.

  A continued run may have several ids, but these have no step in common.

  Args:
    file: The file of the table.
    table: The table.
    steps: The steps of its rows, if they are known.
    columns: Common name -> column of the table; such a column is no run id.

  Raises:
    form.FormatError: If one step has rows of several runs.
  """
  for name in _RUN:
    if name not in table or name in columns.values():
      continue
    runs = table[name].dropna().map(str)
    runs = runs[runs != '']
    by_step = runs.groupby(steps) if steps is not None else [(0, runs)]
    if all(part.nunique() < 2 for _, part in by_step):
      continue
    found = sorted(runs.unique())
    raise form.FormatError(
        f'{file.name} holds {len(found)} runs: its column {name!r} has the'
        f' values {", ".join(found[:5])}{", ..." * (len(found) > 5)}. Write the'
        ' rows of one of them to a file, or leave out this column if it is not'
        ' that of runs'
    )


def _say_runs(
    tables: Mapping[pathlib.Path, pd.DataFrame], notes: list[str]
) -> None:
  """Add a note if several files have the same steps, as of several runs."""
  whole = [frozenset(table['step']) for table in tables.values()]
  if len(whole) > 1 and len(whole[0]) > 1 and len(set(whole)) == 1:
    notes.append(
        f'{len(whole)} files with the same steps are read as one run, such as'
        f' {", ".join(file.name for file in list(tables)[:2])}: if they are'
        ' several runs, name one file'
    )
