"""Weights that are passed to servers as files, one directory per version.

    <folder>/<version>/     a complete Hugging Face directory

Trainer and servers must see the folder under the same path, on one machine or
on a shared mount; `transfer` tells how other servers get the weights. A version
is written under another name and then renamed, so that a reader never finds an
incomplete one. The files are not synced to disk, because a run that resumes
after a power loss writes its weights again.
"""

from collections.abc import Collection
import os
import pathlib
import shutil

_UNFINISHED = '.new-'
# Number of newest versions that are kept: a server that comes back may still
# read the previous one.
_KEEP = 2


class WeightFolder:
  """The folder of one run: creates new versions and removes old ones.

  It also removes versions that an earlier process of the run left. Only process
  0 may change the folder; all processes write a version between `prepare` and
  `commit`, into `unfinished`.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    self.folder = pathlib.Path(os.path.abspath(folder))
    self._written: list[str] = []

  def path_of(self, version: str) -> pathlib.Path:
    """Return the directory of a version."""
    return self.folder / version

  def unfinished(self, version: str) -> pathlib.Path:
    """Return the directory in which a version is written until `commit`."""
    return self.folder / (_UNFINISHED + version)

  def prepare(self) -> None:
    """Create the folder, and remove versions that earlier processes left in it.

    Raises:
      OSError: If the folder cannot be created.
    """
    self.folder.mkdir(parents=True, exist_ok=True)
    for path in self.folder.iterdir():
      if path.is_dir() and path.name not in self._written:
        shutil.rmtree(path, ignore_errors=True)

  def commit(self, version: str) -> None:
    """Rename a complete version from `unfinished` to its own name.

    Raises:
      OSError: If the directory cannot be renamed.
    """
    path = self.path_of(version)
    if path.exists():
      shutil.rmtree(path)
    os.rename(self.unfinished(version), path)
    self._written.append(version)

  def remove_old(self, needed: Collection[str], keep: int = _KEEP) -> None:
    """Remove versions of this object, except the newest `keep` and `needed`."""
    for version in self._written[: max(len(self._written) - keep, 0)]:
      if version not in needed:
        shutil.rmtree(self.path_of(version), ignore_errors=True)
        self._written.remove(version)

  def clear(self) -> None:
    """Remove all versions of this object."""
    self.remove_old((), keep=0)
