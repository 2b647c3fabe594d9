"""The space that a run takes on a host disk, where no tmpfs limits it.

A file takes space as long as it has a name in the slot's directory, or a
process has it open or mapped, or runs it. What cannot be measured counts as
more than is allowed: a closed directory, a path that is too long, a mapped file
that has neither a name nor a descriptor.
"""

import os
import stat
import time

from evojax.sandbox import processes

_GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError)
# A process that is starting or ending can only be measured a little later.
_AGAIN_SECONDS = (0.002, 0.005, 0.0)
_EXITING = 0x4  # PF_EXITING of include/linux/sched.h.


class _UnmeasuredError(Exception):
  """A file takes space, but its size cannot be found."""


class Disk:
  """The files of a slot: its directory, and nameless ones of its processes."""

  def __init__(self, folder: str, size: int, files: int, proc: int):
    """Store what to measure.

    Args:
      folder: The directory.
      size: Maximum number of bytes.
      files: Maximum number of names plus nameless files.
      proc: A descriptor of /proc of the host.
    """
    self._folder, self._proc = os.path.realpath(folder) + '/', proc
    self._size, self._files = size, files

  def room(self, running: bool = True) -> int:
    """Return the bytes that are left; -1 if the limit is exceeded.

    Args:
      running: Whether processes of the run may hold nameless files.
    """
    for seconds in _AGAIN_SECONDS:
      # (device, inode) -> bytes, as a file of several names takes space once.
      found: dict[tuple[int, int], int] = {}
      try:
        names = self._add_named(found)
        if running:
          names += self._add_nameless(found)
      except (OSError, _UnmeasuredError):
        time.sleep(seconds)
        continue
      left = self._size - sum(found.values())
      return -1 if names > self._files else max(-1, left)
    return -1

  def _add_named(self, found: dict[tuple[int, int], int]) -> int:
    """Add all files in the directory; return the number of their names."""
    names, folders = 0, [self._folder]
    while folders:
      try:
        with os.scandir(folders.pop()) as entries:
          for entry in entries:
            status = entry.stat(follow_symlinks=False)
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
              folders.append(entry.path)
            names += 1
            if names > self._files:
              return names
      except _GONE:  # Removed meanwhile.
        continue
    return names

  def _add_nameless(self, found: dict[tuple[int, int], int]) -> int:
    """Add the files that processes hold; return the number of these."""
    before, mapped = len(found), set()
    for process, task in processes.tasks_below(self._proc):
      # Threads can have their own descriptors and outlive the first thread.
      here = f'/proc/{process}/task/{task}'
      try:
        for path in (f'{here}/exe', *_descriptors(here)):
          self._add_open(path, found)
        mapped |= self._mapped(here)
      except _GONE:
        continue
      except PermissionError:
        if not _is_exiting(here):
          raise
    if mapped - {inode for _, inode in found}:
      raise _UnmeasuredError
    return len(found) - before

  def _add_open(self, link: str, found: dict[tuple[int, int], int]) -> None:
    """Add the file behind a link in /proc, if it belongs to this slot."""
    try:
      if os.readlink(link).startswith(self._folder):
        status = os.stat(link)
        found[status.st_dev, status.st_ino] = status.st_blocks * 512
    except _GONE:  # Closed meanwhile.
      pass

  def _mapped(self, task: str) -> set[int]:
    """Return the inodes of mapped files that no longer have a name."""
    with open(f'{task}/maps', errors='surrogateescape') as file:
      text = file.read()
    if self._folder not in text:
      return set()
    # Address, rights, offset, device, inode, path.
    rows = (line.split(None, 5) for line in text.split('\n'))
    return {
        int(row[4])
        for row in rows
        if row[5:]
        and row[5].startswith(self._folder)
        and row[5].endswith(' (deleted)')
    }


def _descriptors(task: str) -> list[str]:
  """Return the links to the open files of a task."""
  return [f'{task}/fd/{name}' for name in os.listdir(f'{task}/fd')]


def _is_exiting(task: str) -> bool:
  """Return whether a task is exiting, so that it cannot be inspected."""
  try:
    with open(f'{task}/stat', errors='replace') as file:
      # The fields come after the name in parentheses, which may hold anything.
      fields = file.read().rpartition(')')[2].split()
  except _GONE:
    return True
  return fields[0] in 'ZX' or bool(int(fields[6]) & _EXITING)
