"""The ledger: the append-only record of a run that evolves, as a hash chain.

`<workdir>/ledger.jsonl` has one line per step of the meta-loop:

    {"hash": ..., "measured": {...}, "measured_sha256": ..., "payload": {...}}

payload, {'n', 'step', ...}, holds findings and decisions: the same run gives
the same payloads, byte for byte. hash = sha256(previous hash + payload), so the
last hash identifies all payloads. measured (seconds, memory) differs between
runs, so it is not part of the chain and has its own checksum.

Every line is canonical JSON (sorted keys, no spaces, ASCII, floats as Python's
repr, no NaN) and is compared as bytes, so a change of any byte is detected. Two
processes must not append to one ledger; `runtime.workdir` holds the lock.
"""

from collections.abc import Mapping, Sequence
import errno
import hashlib
import json
import math
import os
import pathlib
from typing import Any

from absl import logging

from evojax.runtime import durable
from evojax.runtime import mirror

START = 64 * '0'  # The hash before the first row.

Row = dict[str, Any]


class LedgerError(ValueError):
  """A row cannot be written, or another process changed the ledger."""


def canonical_json(value: Any) -> str:
  """Return the canonical text of a JSON value.

  Raises:
    LedgerError: If the value holds NaN, infinity, a key that is not text, or
      an object that is not JSON, such as an array; the message names its place.
  """
  _check(value, '')
  return json.dumps(value, sort_keys=True, separators=(',', ':'))


def _check(value: Any, place: str) -> None:
  if isinstance(value, Mapping):
    for key, item in value.items():
      if not isinstance(key, str):
        where = place or 'the row'
        raise LedgerError(f'the key {key!r} in {where} is not text')
      _check(item, f'{place}.{key}' if place else key)
  elif isinstance(value, (list, tuple)):
    for index, item in enumerate(value):
      _check(item, f'{place}[{index}]')
  elif isinstance(value, float):
    if not math.isfinite(value):
      raise LedgerError(
          f'{place} = {value}: the ledger holds finite numbers; a failure is a'
          ' status, and what is not known is null'
      )
  elif not isinstance(value, (str, int, type(None))):
    raise LedgerError(
        f'{place} = {value!r} ({type(value).__name__}) is not JSON; convert'
        ' arrays with .tolist() and NumPy numbers with .item()'
    )


def _sha256(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


def _make(previous: str, payload: Row, measured: Row) -> Row:
  return {
      'hash': _sha256(previous + canonical_json(payload)),
      'payload': payload,
      'measured': measured,
      'measured_sha256': _sha256(canonical_json(measured)),
  }


def _line(row: Row) -> bytes:
  return canonical_json(row).encode() + b'\n'


def _parse(line: bytes, previous: str, n: int) -> Row | None:
  """Return the row, or None if the line is not the n-th of this chain."""
  try:
    row = json.loads(line)
    true = _make(previous, row['payload'], row['measured'])
    # The bytes are compared: equal JSON in another spelling was not written by
    # this code.
    if true['payload']['n'] == n and _line(true) == line:
      return true
  # A damaged line may be anything; deep nesting raises RecursionError.
  except (ValueError, KeyError, TypeError, RecursionError):
    pass
  return None


def _longest_true_prefix(data: bytes) -> tuple[list[Row], int]:
  """Return the rows of the longest valid prefix and its length in bytes."""
  rows, end, head = [], 0, START
  while newline := data.find(b'\n', end) + 1:
    row = _parse(data[end:newline], head, len(rows))
    if row is None:
      break
    rows.append(row)
    end, head = newline, row['hash']
  return rows, end


def read(path: str | os.PathLike[str]) -> list[Row]:
  """Return the rows of the longest valid prefix; change nothing on disk.

  It is safe while a run still appends, so reports use it.

  Raises:
    FileNotFoundError: If there is no ledger.
  """
  return _longest_true_prefix(pathlib.Path(path).read_bytes())[0]


class Ledger:
  """A ledger to append to."""

  def __init__(self, path: str | os.PathLike[str], sandbox: str = ''):
    """Open or create the ledger.

    A kill may leave an incomplete last line. That line, and all else after the
    valid prefix, is moved to `<path>.damaged-<n>` and a warning is logged.

    Args:
      path: The file, whose directory must exist.
      sandbox: Tier of the box that runs untrusted code, which is added to every
        new row; '' if no untrusted code runs.
    """
    self._sandbox = sandbox
    self._path = pathlib.Path(path)
    data = self._path.read_bytes() if self._path.exists() else None
    self._rows, self._end = _longest_true_prefix(data or b'')
    if data is None:
      self._write(0, b'')
      durable.sync_directory(self._path.parent)
    elif self._end < len(data):
      self._set_aside(data[self._end :])

  def _set_aside(self, tail: bytes) -> None:
    """Move the bytes after the valid prefix into another file."""
    taken = {p.name for p in self._path.parent.iterdir()}
    name = lambda n: f'{self._path.name}.damaged-{n}'
    aside = self._path.with_name(
        next(name(n) for n in range(len(taken) + 1) if name(n) not in taken)
    )
    durable.write_atomic(aside, tail)
    with open(self._path, 'r+b') as file:
      file.truncate(self._end)
      os.fsync(file.fileno())
    logging.warning(
        '%s is damaged from byte %d: %d valid rows stay, the %d bytes after'
        ' them (%d lines, begun or whole) are now in %s',
        self._path,
        self._end,
        len(self._rows),
        len(tail),
        len(tail.splitlines()),
        aside.name,
    )

  def _write(self, at: int, data: bytes) -> None:
    """Append bytes and fsync; after an error the file is unchanged."""
    fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
      # Rows of a second writer would break the chain.
      size = os.fstat(fd).st_size
      if size != at:
        raise LedgerError(
            f'{self._path} has {size} bytes, not the {at} that this process'
            ' wrote or read; stop whatever else writes to it, then resume'
        )
      try:
        done = 0
        while done < len(data):
          done += os.pwrite(fd, data[done:], at + done)
        os.fsync(fd)
      except OSError as error:
        # Half a row would count as damage when the ledger is opened again.
        os.ftruncate(fd, at)
        raise OSError(
            error.errno or errno.EIO,
            f'cannot write a row of {len(data):,} bytes to {self._path}:'
            f' {error.strerror}. {durable.remedy(error.errno)}, then run the'
            ' same command again: it resumes from the last row',
        ) from error
    finally:
      os.close(fd)

  def append(
      self, step: str, data: Mapping[str, Any], measured: Mapping[str, Any]
  ) -> Row:
    """Add a row; it is on disk when this returns.

    Args:
      step: Name of the step: 'train', 'diagnose', 'verify', ...
      data: Findings and decisions, JSON values. The keys 'n', 'step' and
        'sandbox' are reserved.
      measured: Times and memory, numbers.

    Returns:
      The row, as read back from the file (tuples are lists).

    Raises:
      LedgerError: If a value is not JSON, or another process wrote to the file.
      OSError: If the disk is full; the ledger is unchanged then. Also if the
        workdir is in an object store that does not answer or that another
        process uses.
    """
    if taken := {'n', 'step', 'sandbox'} & data.keys():
      raise LedgerError(f'{sorted(taken)} are set by the ledger; rename yours')
    payload = {**data, 'n': len(self._rows), 'step': step}
    if self._sandbox:
      payload['sandbox'] = self._sandbox
    payload, measured = (
        json.loads(canonical_json(value)) for value in (payload, measured)
    )
    row = _make(self.head, payload, measured)
    line = _line(row)
    self._write(self._end, line)
    mirror.publish(self._path)
    self._rows.append(row)
    self._end += len(line)
    return row

  @property
  def path(self) -> pathlib.Path:
    """The file."""
    return self._path

  @property
  def rows(self) -> Sequence[Row]:
    """All rows, oldest first."""
    return tuple(self._rows)

  @property
  def head(self) -> str:
    """Hash of the last row; 64 zeros before the first."""
    return self._rows[-1]['hash'] if self._rows else START
