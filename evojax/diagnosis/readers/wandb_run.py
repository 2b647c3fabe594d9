"""Reads metrics of Weights & Biases: an offline run or an exported history.

An offline run is a file run-ID.wandb of protobuf records in LevelDB's log
format: blocks of 32 KiB, records with a checksum, a length and a type (whole,
first, middle, last). Only the history and the config are read, by the few field
numbers below (wandb/proto/wandb_internal.proto). An export is `history` as CSV
or JSON with a column `_step`, or the CSV files of charts: an axis, and for each
run the columns 'RUN - METRIC', 'RUN - METRIC__MIN' and 'RUN - METRIC__MAX'.
Rollouts in W&B tables are not read.
"""

from collections.abc import Iterator, Mapping
import json
import pathlib
import re
import struct
from typing import Any

import pandas as pd

from evojax.diagnosis import arguments
from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis import restarts
from evojax.diagnosis.readers import table
from evojax.runtime import numerals

_STEP_COLUMN = re.compile(r'(^|[",])_step[",]', re.MULTILINE)
_CHART_COLUMN = re.compile(r' - [^",\n]+__MIN[",]')
_LOW, _HIGH, _OF_RUN = '__MIN', '__MAX', ' - '
_BLOCK = 1 << 15
_HEADER = 7  # Bytes, both of the file's header and of each record's.
_FULL, _FIRST, _LAST = 1, 2, 4
# Numbers of fields: Record.history, HistoryRecord.item and .step, of the items
# of a history or a config key, nested_key and value_json, HistoryStep.num.
_HISTORY, _ITEM, _STEP, _KEY, _NESTED, _VALUE, _NUM = 2, 1, 2, 1, 2, 16, 1
# Errors of records that are damaged, or whose fields are of other types.
_DAMAGE = (
    AttributeError, IndexError, RecursionError, TypeError, ValueError,
    struct.error,
)  # fmt: skip
# Record.config and .run, RunRecord.config, ConfigRecord.update.
_CONFIG, _RUN, _OF_THE_RUN, _UPDATE = 5, 17, 4, 1


def _offline(path: pathlib.Path) -> list[pathlib.Path]:
  if path.is_file():
    return [path] if path.suffix == '.wandb' else []
  found = [*path.glob('*.wandb'), *path.glob('*run-*/*.wandb')]
  return sorted(found) or sorted(path.glob('wandb/*run-*/*.wandb'))


def _exported(path: pathlib.Path) -> bool:
  """Return whether a file looks like an export."""
  with path.open(encoding=readers.encoding(path), errors='replace') as file:
    beginning = file.read(1 << 16)
  header = beginning.partition('\n')[0] + '\n'
  chart = path.suffix == '.csv' and _CHART_COLUMN.search(header)
  return bool(chart or _STEP_COLUMN.search(beginning))


def fits(path: pathlib.Path) -> bool:
  if _offline(path):
    return True
  files = [path] if path.is_file() else sorted(path.iterdir())
  return any(
      f.suffix in ('.csv', '.json', '.jsonl') and f.is_file() and _exported(f)
      for f in files
  )


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read the metrics of one run."""
  notes: list[str] = []
  files = _offline(path)
  if len({f.parent for f in files}) > 1:
    raise form.FormatError(
        f'{path} holds {len(files)} runs; name one:'
        f' {", ".join(str(f) for f in files[:5])}'
    )
  known: dict[str, Any] = {}
  if files:
    rows, config = [], {}
    for file in files:
      rows += _history(file, config, notes)
    log = pd.DataFrame(rows)
    known = arguments.of_config(config)
  else:
    exported = [path] if path.is_file() else sorted(path.iterdir())
    exported = [
        f
        for f in exported
        if f.suffix in ('.csv', '.json', '.jsonl')
        and not f.name.startswith('diagnosis.')
    ]
    charts = _Charts(notes)
    load = lambda file: charts.metrics(table.load(file, notes))
    log = readers.tables(exported, load, notes)
  log = readers.renamed(log, columns)
  steps = names.common(log, notes, columns)
  if files or len(exported) == 1:  # Each chart has a file.
    steps = restarts.metrics(steps, notes)
  known |= settings
  return form.make(path, 'wandb', pd.DataFrame(), steps, known, notes)


class _Charts:
  """Reads the CSV files of charts, which must all show the same run."""

  def __init__(self, notes: list[str]):
    self._notes = notes
    self._axis = self._run = ''

  def metrics(self, log: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics of one chart; any other table as it is.

    Raises:
      form.FormatError: If it has several runs.
    """
    names = [str(name) for name in log]
    drawn = [n for n in names if _OF_RUN in n and f'{n}{_LOW}' in names]
    if not drawn:
      return log
    runs = {name.rpartition(_OF_RUN)[0] for name in drawn} | {self._run}
    runs = sorted(runs - {''})
    if len(runs) > 1:
      raise form.FormatError(
          f'curves of {len(runs)} runs, {", ".join(runs[:3])}: export only one'
      )
    axis, self._run = names[0], runs[0] if runs else ''
    self._axis = self._axis or axis
    if axis != self._axis:
      self._notes.append(
          f'left out a chart over {axis!r}, since another one is over'
          f' {self._axis!r}'
      )
      return pd.DataFrame()
    renamed = {name: name.rpartition(_OF_RUN)[2] for name in drawn}
    if axis == 'Step':
      renamed[axis] = '_step'
    return log[[axis, *drawn]].rename(columns=renamed)


def _history(
    file: pathlib.Path, config: dict[str, Any], notes: list[str]
) -> Iterator[dict[str, Any]]:
  """Yield the rows of an offline run; an incomplete end is left out.

  Args:
    file: The run.
    config: Gets the run's config.
    notes: Gets a note if the file or some of its records are damaged.
  """
  damaged = 0
  try:
    for record in _records(file):
      try:
        rows, values = _parsed(record)
      except _DAMAGE:
        damaged += 1
        continue
      config |= values
      yield from rows
  except (ValueError, struct.error) as error:
    notes.append(f'{file.name} is damaged; its beginning is read ({error})')
  if damaged:
    what = numerals.counted(damaged, 'damaged record')
    notes.append(f'{file.name}: left out {what}')


def _parsed(record: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
  """Return the rows of the history and the values of the config in a record."""
  rows, config = [], {}
  for number, value in _fields(record):
    if number == _HISTORY:
      rows.append(_row(value))
    elif number == _CONFIG:
      config |= _items(value, _UPDATE)
    elif number == _RUN:
      for inner, part in _fields(value):
        config |= _items(part, _UPDATE) if inner == _OF_THE_RUN else {}
  return rows, config


def _row(history: bytes) -> dict[str, Any]:
  row = _items(history, _ITEM)
  for number, value in _fields(history):
    if number == _STEP:
      row['_step'] = dict(_fields(value)).get(_NUM, 0)
  return row


def _items(message: bytes, field: int) -> dict[str, Any]:
  """Return the values of a message's items, in its field of that number."""
  found: dict[str, Any] = {}
  for number, value in _fields(message):
    if number == field:
      keys, text = [], 'null'
      for inner, part in _fields(value):
        if inner in (_KEY, _NESTED):
          keys.append(part.decode(errors='replace'))
        elif inner == _VALUE:
          text = part.decode(errors='replace')
      found['.'.join(keys)] = json.loads(text)
  return found


def _records(file: pathlib.Path) -> Iterator[bytes]:
  """Yield the records of a LevelDB log that follows a file header."""
  whole = b''
  with file.open('rb') as data:
    if data.read(_HEADER)[:4] != b':W&B':
      raise ValueError('no header of W&B')
    place = _HEADER
    while True:
      left = _BLOCK - place % _BLOCK
      if left < _HEADER:  # Padding at the end of a block.
        data.read(left)
        place += left
        continue
      header = data.read(_HEADER)
      if len(header) < _HEADER:
        return
      _, length, kind = struct.unpack('<IHB', header)
      body = data.read(length)
      place += _HEADER + length
      if len(body) < length or not 1 <= kind <= _LAST:
        raise ValueError(f'a torn record at byte {place}')
      whole = body if kind in (_FULL, _FIRST) else whole + body
      if kind in (_FULL, _LAST):
        yield whole


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
  """Yield the numbers and values of the fields of a protobuf message."""
  place = 0
  while place < len(message):
    tag, place = _varint(message, place)
    number, kind = tag >> 3, tag & 7
    if kind == 0:
      value, place = _varint(message, place)
    elif kind == 2:
      length, place = _varint(message, place)
      value, place = message[place : place + length], place + length
    elif kind in (1, 5):
      size = 8 if kind == 1 else 4
      value, place = message[place : place + size], place + size
    else:
      raise ValueError(f'field of kind {kind}')
    yield number, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte = message[place]
    place += 1
    value |= (byte & 127) << shift
    if byte < 128:
      return value, place
    shift += 7
