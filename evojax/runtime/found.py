"""A record of a workdir before a start, to restore it if the start fails."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import time

from evojax.runtime import durable
from evojax.runtime import locks
from evojax.runtime import run_files

# Files that a start may replace or append to before its first step: those of
# the run and of its arms, and the scores of the untrained policy.
_REPLACED = ('*', 'arms/*/*', 'evidence/*/step_000000.parquet')
# Not restored: the user may leave files in the inbox at any moment.
_NOT_OURS = (run_files.INBOX,)
_ATTEMPTS = 20


def missing(path: pathlib.Path) -> list[pathlib.Path]:
  """Return those of a directory and its parents that do not exist."""
  return [each for each in (path, *path.parents) if not each.exists()]


def remove(folders: list[pathlib.Path]) -> None:
  """Remove empty directories, deepest first, up to the first non-empty one."""
  with contextlib.suppress(OSError):
    for folder in folders:
      folder.rmdir()


class Found:
  """The contents of a directory before a start."""

  def __init__(self, root: pathlib.Path, new: list[pathlib.Path]):
    """Read the contents; the caller holds the directory's lock.

    Args:
      root: The directory.
      new: The directory and its parents, if this start has created them.
    """
    self.new, self._root = new, root
    self._names = set(_below(root))
    found = (path for pattern in _REPLACED for path in root.glob(pattern))
    self._contents = {
        path: path.read_bytes()
        for path in found
        if path.is_file() and path != root / locks.NAME
    }

  def put_back(self) -> None:
    """Restore the directory; repeat while other threads still write to it."""
    for _ in range(_ATTEMPTS):
      if not self._restore():
        return
      time.sleep(0.02)

  def _restore(self) -> bool:
    """Undo all differences; return True if there were any."""
    # Deepest first, because a directory must be empty to be removed.
    new = [path for path in _below(self._root) if path not in self._names]
    for path in reversed(new):
      with contextlib.suppress(OSError):
        path.rmdir() if path.is_dir() and not path.is_symlink() else (
            path.unlink()
        )
    changed = {
        path: data
        for path, data in self._contents.items()
        if not path.exists() or path.read_bytes() != data
    }
    for path, data in changed.items():
      durable.write_atomic(path, data)
    return bool(new or changed)


def _below(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yield all paths below a directory, parents first; not lock and inbox."""
  for folder, folders, files in os.walk(root):
    top = pathlib.Path(folder)
    if top == root:
      folders[:] = [name for name in folders if name not in _NOT_OURS]
      files = [name for name in files if name != locks.NAME]
    yield from (top / name for name in (*folders, *files))
