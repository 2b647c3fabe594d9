"""Reads rollouts or metrics from plain tables: Parquet, JSON lines, JSON, CSV.

A table with a completion or a reward per row holds rollouts, under the common
names of `form.ROLLOUT` or those in --columns; any other table holds steps.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import readers

_SUFFIXES = ('.parquet', '.jsonl', '.ndjson', '.json', '.csv')


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if path.is_file():
    return [path] if path.suffix in _SUFFIXES else []
  found = [p for p in sorted(path.iterdir()) if p.suffix in _SUFFIXES]
  return [p for p in found if not p.name.startswith('diagnosis.')]


def fits(path: pathlib.Path) -> bool:
  return bool(_files(path))


def load(path: pathlib.Path, notes: list[str]) -> pd.DataFrame:
  """Read one table.

  Raises:
    ValueError: If the file is damaged.
  """
  if path.suffix == '.parquet':
    return readers.parquet_rows(path)
  if path.suffix == '.csv':
    return pd.read_csv(path)
  if path.suffix == '.json':
    value = readers.json_file(path)
    if isinstance(value, dict):  # Column name -> list of values.
      value = {k: v for k, v in value.items() if isinstance(v, list)}
    return pd.DataFrame(value)
  return pd.DataFrame(readers.json_lines(path, notes))


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read one table, or all tables in a folder."""
  notes: list[str] = []
  rollouts, steps, seen = [], [], set()
  for file in readers.thinned(_files(path), notes):
    try:
      table = load(file, notes)
    except (ValueError, OSError) as error:
      notes.append(f'{file.name} cannot be read ({str(error)[:120]})')
      continue
    seen |= set(table)
    owned = {n: c for n, c in columns.items() if c in table}
    if owned:
      table = readers.renamed(table, owned)
    if 'completion' in table or 'group' in table or 'prompt' in table:
      rollouts.append(table)
    else:
      found = names.common(table, notes, owned)
      if not len(found) and len(table.columns):
        notes.append(
            f'{file.name} has the columns {", ".join(map(str, table))[:300]}:'
            ' --columns=step=NAME,reward=NAME,... says what they are'
        )
      steps.append(found)
  missing = [column for column in columns.values() if column not in seen]
  if missing:
    raise form.FormatError(
        f'no table of {path} has {", ".join(missing)}; they have'
        f' {", ".join(sorted(map(str, seen)))[:300]}'
    )
  rows = pd.concat(rollouts, ignore_index=True) if rollouts else pd.DataFrame()
  if len(rows) and 'outcome' not in rows:
    taken: dict[str, str] = {}
    names.guess_outcome(rows, [], taken, notes)
    rows = readers.renamed(rows, taken)
  log = pd.concat(steps, ignore_index=True) if steps else pd.DataFrame()
  return form.make(path, 'table', rows, log, settings, notes)
