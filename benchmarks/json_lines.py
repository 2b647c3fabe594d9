"""Rows in a file of JSON lines; an interrupted benchmark can add further
rows."""

from collections.abc import Iterable, Mapping
import fcntl
import json
import os
import pathlib
from typing import Any


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Return the rows of a file; [] if there is none.

  Lines that begin with # are comments. A last row that a kill cut off does not
  count.
  """
  data = path.read_bytes() if path.exists() else b''
  lines = data[: _end(data)].splitlines()
  return [json.loads(line) for line in lines if not line.startswith(b'#')]


def append(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> None:
  """Add rows to a file, in place of a last row that a kill cut off.

  Several processes may add rows to one file at the same time.
  """
  with path.open('a+b') as file:
    # Otherwise a row that another process adds now would look cut off.
    fcntl.flock(file, fcntl.LOCK_EX)  # Until the file is closed.
    file.seek(0)
    data = file.read()
    end = _end(data)
    file.truncate(end)
    if end and data[end - 1 : end] != b'\n':
      file.write(b'\n')
    for row in rows:
      file.write(json.dumps(row).encode() + b'\n')
    file.flush()
    os.fsync(file.fileno())


def _end(data: bytes) -> int:
  """Return where the last whole row ends; its newline may be missing."""
  start = data.rfind(b'\n') + 1
  try:
    json.loads(data[start:])
  except ValueError:
    return start
  return len(data)
