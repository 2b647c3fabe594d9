"""Locks of folders on this machine; each lock file names its holder.

    <folder>/.lock    'pid 7 on host since ...' while process 7 holds the lock

The kernel drops a lock when its process dies. For folders in an object store,
see `lease`.
"""

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import os
import pathlib
import time

from evojax.runtime import durable

NAME = '.lock'
# Errors of file systems without locks, such as Lustre mounted without them.
_NONE = errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP
# Attempts to lock a file that is in use, and the seconds between them.
_TRIES, _PAUSE = 4, 0.02
_held: set[int] = set()


class HeldError(OSError):
  """Another process holds the lock."""

  def __init__(self, folder: pathlib.Path, holder: str):
    """Record the holder.

    Args:
      folder: The folder.
      holder: Text that the other process has written into the lock file.
    """
    super().__init__(f'{folder} is in use by {holder}')
    self.holder = holder


class NoLocksError(OSError):
  """The file system of a folder has no locks."""


@dataclasses.dataclass
class Lock:
  """A lock that is held.

  The file names the holder until the release, which restores the old file.
  """

  path: pathlib.Path
  fd: int
  found: bytes | None  # Earlier content; None: there was no file.

  def write(self, text: bytes) -> None:
    """Replace the text; if the disk is full, the old text stays."""
    os.pwrite(self.fd, text, 0)
    os.ftruncate(self.fd, len(text))

  def release(self) -> None:
    """Release the lock."""
    with contextlib.suppress(OSError):
      if self.found is None:
        self.path.unlink()
      elif os.pread(self.fd, 4096, 0) != self.found:
        self.write(self.found)
    _held.discard(self.fd)
    os.close(self.fd)


def take(folder: pathlib.Path, holder: str) -> Lock:
  """Take the lock of a folder.

  Args:
    folder: The folder, which exists.
    holder: Text that names the holder to other processes.

  Raises:
    HeldError: If another process holds it.
    NoLocksError: If the file system has no locks.
    durable.DiskError: If the disk is full.
  """
  path, text = folder / NAME, holder.encode()
  lock = None
  try:
    lock = _lock(path)
    lock.write(text)
  except (HeldError, NoLocksError):
    raise
  except OSError as error:
    if lock is not None:
      lock.release()
    raise durable.error(path, len(text), error) from error
  return lock


def _lock(path: pathlib.Path) -> Lock:
  """Lock a file; try again for a moment, as `is_held` holds it that long.

  Raises:
    HeldError: If another process holds it all the time.
    OSError: If it cannot be locked.
  """
  for attempt in itertools.count(1):
    try:
      if lock := _try(path):
        return lock
    except HeldError:
      if attempt >= _TRIES:
        raise
      time.sleep(_PAUSE)


def _try(path: pathlib.Path) -> Lock | None:
  """Lock a file; return None if its last holder has just removed it."""
  new = not path.exists()
  fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if path.stat().st_ino != os.fstat(fd).st_ino:
      os.close(fd)
      return None
  except FileNotFoundError:  # Its last holder has just removed it.
    os.close(fd)
    return None
  except BlockingIOError as error:
    holder = os.read(fd, 4096).decode() or 'a process that just started'
    os.close(fd)
    raise HeldError(path.parent, holder) from error
  except OSError as error:
    os.close(fd)
    if error.errno not in _NONE:
      raise
    if new:
      path.unlink(missing_ok=True)
    raise NoLocksError(
        f'{path.parent} cannot be locked ({error.strerror}), so that two'
        ' processes could write there: its file system must be mounted with'
        ' locks (Lustre: -o flock; NFS: with its lock service), or name a'
        ' directory on another one'
    ) from error
  _held.add(fd)
  # The file is not truncated yet: it may hold the last holder's text, which
  # `release` restores.
  return Lock(path, fd, None if new else os.read(fd, 4096))


def is_held(folder: pathlib.Path) -> bool:
  """Return True if a process holds the lock of a folder; changes nothing."""
  try:
    fd = os.open(folder / NAME, os.O_RDONLY)
  except OSError:  # Nobody has locked it.
    return False
  try:
    # A shared lock, released at once, so that several processes can test.
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno in _NONE:
      return False
    if isinstance(error, BlockingIOError):
      return True
    raise
  finally:
    os.close(fd)
  return False


def _close_in_child() -> None:
  """Close the locks in a forked child, which would otherwise keep them held."""
  for fd in _held:
    os.close(fd)
  _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
