"""What a start finds in a workdir, to be put back if it comes to nothing."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import time

from evojax.runtime import durable
from evojax.runtime import locks

# Files that are replaced or appended to before the first step: those of the run
# and of its arms, and the scores of policies that are not trained.
_REPLACED = ('*', 'arms/*/*', 'evidence/*/step_000000.parquet')
# The user may leave a file there at any moment.
_NOT_OURS = ('inbox',)
_ATTEMPTS = 20


def missing(path: pathlib.Path) -> list[pathlib.Path]:
  """Return a directory and its parents as far as they are not there."""
  return [each for each in (path, *path.parents) if not each.exists()]


def remove(folders: list[pathlib.Path]) -> None:
  """Remove directories, from the deepest up to the first that is not empty."""
  with contextlib.suppress(OSError):
    for folder in folders:
      folder.rmdir()


class Found:
  """The contents of a directory before a start."""

  def __init__(self, root: pathlib.Path, new: list[pathlib.Path]):
    """Read them, while no other process can change them.

    Args:
      root: The directory.
      new: It and its parents as far as this start has made them.
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
    """Make the directory what it was; other threads may still be writing."""
    for _ in range(_ATTEMPTS):
      if not self._restore():
        return
      time.sleep(0.02)

  def _restore(self) -> bool:
    """Undo what differs; return whether anything did."""
    # The deepest first: a directory has to be empty.
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
  """Yield everything below a directory but its lock, parents first."""
  for folder, folders, files in os.walk(root):
    top = pathlib.Path(folder)
    if top == root:
      folders[:] = [name for name in folders if name not in _NOT_OURS]
      files = [name for name in files if name != locks.NAME]
    yield from (top / name for name in (*folders, *files))
