"""Forks: a new run starts from a version of another run."""

import dataclasses
import os
import pathlib
import shutil

from evojax.harness import spec
from evojax.ledger import history
from evojax.ledger import records
from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import run_files


@dataclasses.dataclass(frozen=True)
class Fork:
  """The version of another run that a new run starts from."""

  source: pathlib.Path  # Workdir of the other run.
  version: records.Version

  @property
  def name(self) -> str:
    """The name '<run>:<version>'."""
    return f'{self.source.name}:{self.version.version}'

  def copy(self, target: pathlib.Path) -> None:
    """Copy harness, evidence and checkpoints, completely or not at all.

    All of it is durable, because a row of the ledger will name it.
    """
    spec.write(
        spec.load(self.source / run_files.HARNESSES, self.version.harness),
        target / run_files.HARNESSES,
    )
    arm = target / run_files.ARMS / 'v0'
    if not arm.exists():
      # A copy that was interrupted keeps the name .tmp and is made again.
      temporary = target / run_files.ARMS / 'v0.tmp'
      shutil.rmtree(temporary, ignore_errors=True)
      for folder in (self.version.folder, self.version.checkpoint):
        mirror.fetch(self.source / folder)
      durable.copy_tree(self.source / self.version.folder, temporary)
      # The state of a merged or base policy is in none of the copied arms.
      state = pathlib.PurePath(self.version.checkpoint)
      shutil.rmtree(
          temporary / run_files.CHECKPOINTS / state.name, ignore_errors=True
      )
      durable.copy_tree(
          self.source / state, temporary / run_files.CHECKPOINTS / state.name
      )
      durable.sync_directory(temporary / run_files.CHECKPOINTS)
      os.replace(temporary, arm)
      durable.sync_directory(arm.parent)


def open_fork(source: pathlib.Path, version: str) -> Fork:
  """Return a version of another run, which stays unchanged.

  Args:
    source: Workdir of the other run.
    version: Name of the version; '' is the newest.

  Raises:
    ValueError: If there is no such version.
  """
  if not (source / run_files.LEDGER).exists():
    raise ValueError(
        f'--fork_from={source} is not the workdir of a run that evolves'
    )
  versions = history.read(source).versions
  found = {version.version: version for version in versions}
  if not found:
    raise ValueError(
        f'--fork_from={source}: it has no version yet; continue that run until'
        ' it has one'
    )
  if version and version not in found:
    raise ValueError(
        f'--fork_version={version}: {source} has the versions {list(found)}'
    )
  return Fork(source, found[version or list(found)[-1]])
