"""Gives all processes of a run the files that process 0 writes.

If the workdir is in an object store, the processes share no directory, see
`mirror`: process 0 writes the run's files, and the others download those that
they read. With a shared directory, there is nothing to do.
"""

from collections.abc import Callable
import os
import pathlib

import jax

from evojax.runtime import decisions
from evojax.runtime import mirror
from evojax.runtime import sharding


def writes(path: str | os.PathLike[str]) -> bool:
  """Return True if this process writes data that is equal in all processes.

  Process 0 does; the others do if they have copies of the directory.
  """
  return sharding.is_primary() or mirror.divided(path) is not None


def fetch(
    path: pathlib.Path, wanted: Callable[[str], bool] = lambda name: True
) -> None:
  """Download the missing files of a folder; all processes call it together.

  Files that process 0 has written since the start are uploaded first.

  Args:
    path: The folder, below the run's workdir.
    wanted: Takes a file's name relative to the folder; returns True if this
      process needs the file.

  Raises:
    OSError: If the store does not answer, the disk is full, or another process
      has taken the workdir over.
  """
  if copy := mirror.divided(path):
    sizes = decisions.decide(lambda: copy.published(path))
    if jax.process_index():
      copy.learn(sizes)
  mirror.fetch(path, wanted)
