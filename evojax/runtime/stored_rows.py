"""The rows of a ledger in an object store: one object for each row.

A row is written by a request that never replaces an object. Therefore, if two
processes write the same ledger, the second one fails instead of adding a row.
"""

from collections.abc import Sequence
import pathlib

from evojax.runtime import lease
from evojax.runtime import storage
from evojax.runtime import stored_names as stored


class Rows:
  """The rows in a store and the ledger file with them on this machine."""

  def __init__(self, store: storage.Store, path: pathlib.Path):
    """Start without rows; there is no request to the store.

    Args:
      store: The folder in the store.
      path: The ledger, a file with one row per line.
    """
    self._store, self._path = store, path
    self._rows: list[bytes] = []  # All rows in the store, in order.

  def __len__(self) -> int:
    """Return the number of rows in the store."""
    return len(self._rows)

  def pull(self, names: Sequence[str]) -> None:
    """Write the ledger from the rows in the store.

    Args:
      names: Names of all rows, in the order of the ledger.

    Raises:
      storage.StorageError: If a row is missing.
    """
    for number, name in enumerate(names):
      if name != stored.row(number):
        raise storage.StorageError(
            f'{self._store.url} has {name} and no {stored.row(number)}: restore'
            ' the row from a copy, or delete those after it'
        )
    found = storage.in_parallel(self._store.read, names)
    self._rows = [found[name] for name in names]
    if names:
      self._path.write_bytes(b''.join(self._rows))

  def publish(self) -> None:
    """Create an object for each new row of the ledger.

    Raises:
      lease.LeaseError: If another process has written a row.
    """
    same, rows = self._compare()
    # Rows that are no longer in the ledger were damaged; they were moved to
    # another file, which is uploaded like any other.
    for number in reversed(range(same, len(self._rows))):
      self._store.remove(stored.row(number))
    del self._rows[same:]
    for number, row in enumerate(rows, same):
      if not self._store.create(stored.row(number), row):
        raise lease.LeaseError(
            f'{self._store.url}/{stored.row(number)} was written by another'
            ' process: stop it, then run the same command again',
            'another process',
        )
      self._rows.append(row)

  def _compare(self) -> tuple[int, list[bytes]]:
    """Return how many rows in the store the ledger has, and its new rows."""
    # The ledger is only appended to, unless rows at its end were damaged. If
    # the last row in the store is at its place in the ledger, so are the rows
    # before it. These are not read again: otherwise the cost of a row would
    # grow with the number of rows before it.
    last = self._rows[-1] if self._rows else b''
    end = sum(map(len, self._rows))
    with self._path.open('rb') as file:
      file.seek(end - len(last))
      kept = file.read(len(last)) == last
      if not kept:
        file.seek(0)
      rows = file.read().splitlines(keepends=True)
    if rows and not rows[-1].endswith(b'\n'):  # The last one is being written.
      rows.pop()
    if kept:
      return len(self._rows), rows
    pairs = enumerate(zip(rows, self._rows, strict=False))
    fewer = min(len(rows), len(self._rows))
    same = next((n for n, (a, b) in pairs if a != b), fewer)
    return same, rows[same:]
