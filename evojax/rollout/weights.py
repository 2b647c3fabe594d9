"""Weights on their way to servers: one directory per version.

    <folder>/<version>/     a Hugging Face directory, complete

Trainer and servers see the folder under the same path: one machine, or a
mount that all of them share. A version is written under another name and
renamed, so that a reader never finds a part of it. Nothing waits for a disk: a
run that goes on after a loss of power writes its weights anew.
"""

from collections.abc import Collection
import os
import pathlib
import shutil

_UNFINISHED = '.new-'
_KEEP = 2  # A server that comes back may still read the previous version.


class WeightFolder:
  """The writer of versions, which also removes old ones.

  It belongs to one run and removes what an earlier process of the run left.
  Only process 0 calls the methods; all processes write between `prepare` and
  `commit`.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    self.folder = pathlib.Path(os.path.abspath(folder))
    self._written: list[str] = []

  def path_of(self, version: str) -> pathlib.Path:
    """Return the directory of a version."""
    return self.folder / version

  def unfinished(self, version: str) -> pathlib.Path:
    """Return the directory in which a version is written, until `commit`."""
    return self.folder / (_UNFINISHED + version)

  def prepare(self) -> None:
    """Make the folder, and remove what an earlier process left in it.

    Raises:
      OSError: If the folder cannot be made.
    """
    self.folder.mkdir(parents=True, exist_ok=True)
    for path in self.folder.iterdir():
      if path.is_dir() and path.name not in self._written:
        shutil.rmtree(path, ignore_errors=True)

  def commit(self, version: str) -> None:
    """Give a version its name once it is complete.

    Raises:
      OSError: If the directory cannot be renamed.
    """
    path = self.path_of(version)
    if path.exists():
      shutil.rmtree(path)
    os.rename(self.unfinished(version), path)
    self._written.append(version)

  def remove_old(self, needed: Collection[str], keep: int = _KEEP) -> None:
    """Remove what was written here, but for the newest `keep` and `needed`."""
    for version in self._written[: max(len(self._written) - keep, 0)]:
      if version not in needed:
        shutil.rmtree(self.path_of(version), ignore_errors=True)
        self._written.remove(version)

  def clear(self) -> None:
    """Remove all that was written here."""
    self.remove_old((), keep=0)
