"""A lease on the folder of a store: one process at a time works there.

    <folder>/.lease/000007.json    the lease of the folder's seventh process

Unlike a kernel, a store does not drop locks when a process dies. Therefore the
holder of a lease renews its object regularly. Another process that wants the
folder watches this object, and takes over once it has not changed for
TTL_SECONDS on the watcher's own clock: it creates the object with the next
number, by a write that succeeds for only one of several processes. A holder
that was paused for too long finds a higher number and stops writing.
"""

import dataclasses
import json
import os
import pathlib
import secrets
import socket
import threading
import time
from typing import Any

from evojax.runtime import storage

TTL_SECONDS = 45.0
RENEW_SECONDS = 10.0
_WATCH_SECONDS = 1.0
_FOLDER = '.lease'


class LeaseError(OSError):
  """Another process holds the lease, or has taken it over."""

  def __init__(self, message: str, holder: str):
    super().__init__(message)
    self.holder = holder


def _place() -> dict[str, Any]:
  """Return values that identify this process; {} if the system has none."""
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id')
  if not boot.exists():
    return {}
  # The namespace is included because each container numbers its own processes.
  namespace = os.readlink('/proc/self/ns/pid')
  return {
      'machine': f'{boot.read_text().strip()} {namespace}',
      'pid': os.getpid(),
      'started': _start_of(os.getpid()),
  }


def _start_of(pid: int) -> str:
  """Return a process's start in ticks since boot; '' if it has ended."""
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return ''
  fields = text.rpartition(')')[2].split()
  return '' if fields[0] == 'Z' else fields[19]


def _has_ended(content: dict[str, Any]) -> bool:
  """Return True if a holder has released its lease or is known to be dead.

  Only processes of this machine can be known to be dead.
  """
  if content['released']:
    return True
  here = _place()
  if not here or content['place'].get('machine') != here['machine']:
    return False
  return _start_of(content['place']['pid']) != content['place']['started']


@dataclasses.dataclass(frozen=True)
class _Seen:
  """The newest lease object of a folder."""

  number: int  # 0: there was none.
  data: bytes
  content: dict[str, Any]


def _newest(store: storage.Store) -> _Seen:
  while True:
    numbers = sorted(int(name[-11:-5]) for name in store.list(_FOLDER))
    if not numbers:
      return _Seen(0, b'', {'holder': '', 'released': True, 'place': {}})
    try:
      return _Seen(
          numbers[-1], *store.read_json(_name(numbers[-1]), 'released')
      )
    except FileNotFoundError:
      continue  # A later holder has deleted it.


def _name(number: int) -> str:
  return f'{_FOLDER}/{number:06d}.json'


def is_held(store: storage.Store) -> bool:
  """Return True if a process holds a lease renewed within TTL_SECONDS."""
  seen = _newest(store)
  if _has_ended(seen.content):
    return False
  return time.time() - seen.content['renewed'] < TTL_SECONDS


def check(store: storage.Store, number: int) -> None:
  """Raise an error if a lease is no longer the newest one.

  Args:
    store: The folder.
    number: Number of the lease, which another process may hold.

  Raises:
    LeaseError: If another process has taken the folder over, or the lease was
      deleted.
  """
  seen = _newest(store)
  # If the whole folder was deleted, the number is 0.
  if seen.number != number:
    raise _taken(store, seen)


def _taken(store: storage.Store, seen: _Seen) -> LeaseError:
  holder = seen.content['holder'] or 'nobody: its lease was deleted'
  return LeaseError(f'{store.url} is in use by {holder}', holder)


def take(store: storage.Store, seconds: float = 0.0) -> 'Lease':
  """Take the lease of a folder.

  Args:
    store: The folder.
    seconds: Time to wait for a holder that renews its lease, since a process
      that is being stopped releases its lease only after it has saved.

  Raises:
    LeaseError: If another process holds the lease for longer.
    storage.StorageError: As `Lease` does.
  """
  deadline = time.monotonic() + seconds
  while True:
    try:
      return Lease(store)
    except LeaseError:
      if time.monotonic() >= deadline:
        raise
      time.sleep(_WATCH_SECONDS)


class Lease:
  """A lease that this process holds; a thread renews it.

  Attributes:
    number: Number of the lease among those of the folder, from 1.
  """

  def __init__(self, store: storage.Store):
    """Take the lease; wait TTL_SECONDS if its holder may be dead.

    Raises:
      LeaseError: If another process holds it.
      storage.StorageError: If the store does not answer, or if its `create`
        replaces an existing object.
    """
    self._store = store
    seen = self._wait()
    self.number = seen.number + 1
    self._content = {
        'holder': (
            f'pid {os.getpid()} on {socket.gethostname()} since'
            f' {time.strftime("%Y-%m-%dT%H:%M:%S%z")}'
        ),
        'place': _place(),
        'token': secrets.token_hex(8),
        'released': False,
    }
    self._stop, self._lock = threading.Event(), threading.Lock()
    if not store.create(_name(self.number), self._data()):
      raise _taken(store, _newest(store))
    if store.create(_name(self.number), b'{}'):
      store.remove(_name(self.number))  # An invalid lease would block others.
      raise storage.StorageError(
          f'{store.url}: its file system lets two processes create one object,'
          ' so that a run cannot be kept to one of them; gs:// and s3:// can be'
          ' used'
      )
    for number in range(max(1, self.number - 8), self.number):
      store.remove(_name(number))
    threading.Thread(target=self._renew, daemon=True).start()

  def check(self) -> None:
    """Raise an error if this process has lost the lease.

    Raises:
      LeaseError: If another process has taken it over, or it was deleted.
    """
    check(self._store, self.number)

  def release(self) -> None:
    """Release the lease, if it is still held."""
    self._stop.set()
    with self._lock:
      if _newest(self._store).number == self.number:
        self._content['released'] = True
        self._store.write(_name(self.number), self._data())

  def _data(self) -> bytes:
    content = self._content | {'renewed': time.time()}
    return json.dumps(content, indent=2, sort_keys=True).encode()

  def _wait(self) -> _Seen:
    """Wait until the newest lease has ended or expired; return it.

    Raises:
      LeaseError: If its holder renews it.
    """
    seen, since = _newest(self._store), time.monotonic()
    first = seen
    while not _has_ended(seen.content):
      if seen.data != first.data:  # The holder has renewed its lease.
        raise _taken(self._store, seen)
      if time.monotonic() - since > TTL_SECONDS:
        break
      time.sleep(_WATCH_SECONDS)
      seen = _newest(self._store)
    return seen

  def _renew(self) -> None:
    """Renew the lease until it is given back or lost."""
    while not self._stop.wait(RENEW_SECONDS):
      with self._lock:
        try:
          self.check()
          if not self._stop.is_set():
            self._store.write(_name(self.number), self._data())
        except LeaseError:
          return  # The thread that writes notices this by its own `check`.
        except OSError:
          continue  # The store may answer again in time.
