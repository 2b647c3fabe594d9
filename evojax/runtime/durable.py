"""Durable file writes; a write that fails leaves the old file unchanged."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
from typing import Any


class DiskError(OSError):
  """A file could not be written; an older version of it is intact."""


def sync_directory(path: pathlib.Path) -> None:
  """Make a rename or unlink inside a directory durable."""
  fd = os.open(path, os.O_RDONLY)
  try:
    os.fsync(fd)
  finally:
    os.close(fd)


def copy_tree(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copy a directory, whose files are durable once this returns.

  Args:
    source: The directory to copy.
    target: Its copy, which must not exist; missing parents are created.
  """
  shutil.copytree(source, target)
  sync_tree(target)


def sync_tree(path: pathlib.Path) -> None:
  """Make all files and directories below a directory durable."""
  for folder, _, names in os.walk(path):
    for name in names:
      fd = os.open(os.path.join(folder, name), os.O_RDONLY)
      try:
        os.fsync(fd)
      finally:
        os.close(fd)
    sync_directory(pathlib.Path(folder))


def error(path: pathlib.Path, size: int, problem: OSError) -> DiskError:
  """Return the error for a write that failed, with a remedy for its cause."""
  parent = next(p for p in (path.parent, *path.parents) if p.exists())
  free = shutil.disk_usage(parent).free
  return DiskError(
      problem.errno,
      f'cannot write {path} ({size:,} bytes needed, {free:,} free):'
      f' {problem.strerror or problem}. {remedy(problem.errno)}, then run the'
      ' same command again: it resumes from the last checkpoint',
  )


def remedy(number: int | None) -> str:
  """Return a sentence with the remedy for a write that failed with an errno."""
  if number in (errno.ENOSPC, errno.EDQUOT):
    return 'Free space there or raise the quota'
  if number in (errno.EACCES, errno.EPERM, errno.EROFS):
    return f'Let user {os.getuid()} write there'
  return 'Make sure that the directory is there and that its disk works'


def write_all(fd: int, data: bytes | memoryview) -> None:
  """Write everything; `os.write` stops short on a disk that fills up."""
  view = memoryview(data)
  while view:
    view = view[os.write(fd, view) :]


def write_atomic(
    path: str | os.PathLike[str], data: bytes | memoryview
) -> None:
  """Write a file that is either complete and durable or unchanged.

  Args:
    path: The file, which is replaced if it exists; its directory must exist.
    data: The whole content.

  Raises:
    DiskError: If the disk is full or the path cannot be written.
  """
  path = pathlib.Path(path)
  # A fixed name, so that the next write replaces what a killed one has left.
  temporary = path.with_name(f'.{path.name}.tmp')
  try:
    with temporary.open('wb', buffering=0) as file:
      write_all(file.fileno(), data)
      os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
  except OSError as problem:
    with contextlib.suppress(OSError):  # A read-only file system refuses this.
      temporary.unlink()
    raise error(path, len(data), problem) from problem


def write_json(path: pathlib.Path, value: Any, **options: Any) -> None:
  """Write JSON as `write_atomic` does; `options` are those of `json.dumps`."""
  options = {'indent': 2, 'allow_nan': False} | options
  write_atomic(path, (json.dumps(value, **options) + '\n').encode())
