"""The list of the valid files of a workdir in an object store.

    <url>/.files.json          a base: number of the version, and sizes by name
    <url>/.files/000012.json   a segment: what version 12 adds and removes

A store cannot append to an object, so that each new version would have to
rewrite the whole list, which grows with every file of a run. Therefore a
version is a small segment, written by a single request that never replaces an
object. When the segments have more entries than the base, a new base replaces
them. On average, the cost of a version does not grow with the number of files,
and a reader reads at most about twice the size of the list.

A reader ignores segments up to the number of the base: they are left if the
process was killed after it wrote a base and before it removed them.
"""

from collections.abc import Collection, Mapping
import hashlib
import json

from evojax.runtime import lease
from evojax.runtime import storage
from evojax.runtime import stored_names as stored

# Up to this many entries, segments are never merged into a new base.
_LEAST_ENTRIES = 256
_READS = 5  # Attempts to read a list that a writer is compacting.


class Listing:
  """The valid files in a store, of one version.

  Attributes:
    files: Size in bytes by name.
    version: Differs between versions; '' if there is no list.
  """

  def __init__(self, store: storage.Store):
    """Create an empty list, without a request to the store."""
    self._store = store
    self._clear()

  def _clear(self) -> None:
    self.files: dict[str, int] = {}
    self.version = ''
    self._number = 0  # The number of the version.
    self._in_base = self._entries = 0  # Entries of the base, of later segments.
    self._segments: list[str] = []  # All that exist.

  def read(self) -> None:
    """Read the newest version.

    Raises:
      storage.StorageError: If the store does not answer or a segment is
        missing.
    """
    if not any(self._read() for _ in range(_READS)):
      raise storage.StorageError(
          f'{self._store.url}/{stored.SEGMENTS} lacks segments after that of'
          f' {stored.FILES}: restore them from a copy, or choose another'
          ' --workdir'
      )

  def _read(self) -> bool:
    """Read the newest version; return False if a segment is missing."""
    self._clear()
    # Listed before the base is read: a segment that is removed in between is
    # part of that base.
    self._segments = sorted(
        self._store.list(stored.SEGMENTS), key=stored.segment_number
    )
    numbers = [stored.segment_number(name) for name in self._segments]
    try:
      base, found = self._store.read_json(stored.FILES, 'files')
    except FileNotFoundError:
      # The base was deleted; a new list begins after the remaining segments.
      self._number = max(numbers, default=0)
      return True
    self.files, self._number = found['files'], found['count']
    self.version, self._in_base = _digest('', base), len(self.files)
    later = [n for n in numbers if n > self._number]
    if later != [self._number + 1 + i for i in range(len(later))]:
      return False
    names = self._segments[len(numbers) - len(later) :]
    try:
      segments = storage.in_parallel(
          lambda name: self._store.read_json(name, 'add'), names
      )
    except FileNotFoundError:
      return False
    for name in names:
      data, segment = segments[name]
      self._apply(segment['add'], segment['remove'], data)
    return True

  def write(self, added: Mapping[str, int], removed: Collection[str]) -> None:
    """Write the next version; readers see it as a whole or not at all.

    Args:
      added: Size by name of files that are new or have changed.
      removed: Names of files that are no longer valid.

    Raises:
      lease.LeaseError: If another process has written a version.
      storage.StorageError: If the store does not answer.
    """
    entries = self._entries + len(added) + len(removed)
    is_small = entries <= max(_LEAST_ENTRIES, self._in_base)
    if self.version and is_small:
      segment = {'add': dict(added), 'remove': list(removed)}
      data = json.dumps(segment, sort_keys=True).encode()
      name = stored.segment(self._number + 1)
      if not self._store.create(name, data):
        raise lease.LeaseError(
            f'{self._store.url}/{name} was written by another process: stop'
            ' it, then run the same command again',
            'another process',
        )
      self._segments.append(name)
      self._apply(added, removed, data)
      return
    gone = set(removed)
    files = {n: s for n, s in (self.files | added).items() if n not in gone}
    base = {'count': self._number + 1, 'files': files}
    data = json.dumps(base, sort_keys=True).encode()
    self._store.write(stored.FILES, data)
    # Only now: after a failed write, a segment must not follow a base that is
    # not there.
    self._apply(added, removed, b'')
    self.version = _digest('', data)
    self._in_base, self._entries = len(self.files), 0
    # A reader of the old base needed them until now.
    storage.in_parallel(self._store.remove, self._segments)
    self._segments = []

  def _apply(
      self, added: Mapping[str, int], removed: Collection[str], data: bytes
  ) -> None:
    """Advance to the next version."""
    self.files |= added
    for name in removed:
      self.files.pop(name, None)
    self._number += 1
    self._entries += len(added) + len(removed)
    self.version = _digest(self.version, data)


def read(store: storage.Store) -> Listing:
  """Return the newest list of a folder.

  Raises:
    storage.StorageError: As `Listing.read` does.
  """
  found = Listing(store)
  found.read()
  return found


def _digest(before: str, data: bytes) -> str:
  return hashlib.sha256(before.encode() + data).hexdigest()
