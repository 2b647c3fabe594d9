"""Workspaces that are used again: starting one costs more than clearing it."""

from collections.abc import Iterator
import contextlib
import queue

from evojax.domains.swe import survey
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe
from evojax.sandbox import repository
from evojax.sandbox import shared as shared_lib
from evojax.sandbox import wire


class Pool:
  """Empty workspaces, at most so many at the same time; thread-safe."""

  def __init__(
      self,
      tier: str,
      size: int,
      *,
      entry: wire.Entry = survey.ENTRY,
      limits: limits_lib.Limits = repository.LIMITS,
  ):
    """Make room for workspaces; each starts when it is first needed.

    Args:
      tier: See `probe.tier`.
      size: How many are lent at the same time. Each is two processes.
      entry: What runs in the box.
      limits: Of every command.

    Raises:
      ValueError: If there is no room for one.
    """
    if size < 1:
      raise ValueError(f'{size=}: a pool lends at least one workspace')
    self._size = size
    self._make = lambda: repository.Workspace(
        tier=tier, limits=limits, entry=entry
    )
    self._all: set[repository.Workspace] = set()
    self._free: queue.LifoQueue[repository.Workspace | None] = queue.LifoQueue()
    for _ in range(size):
      self._free.put(None)

  def __enter__(self) -> 'Pool':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @contextlib.contextmanager
  def lend(self) -> Iterator[repository.Workspace]:
    """Yield an empty workspace; wait if all are lent."""
    box = self._free.get()
    try:
      box = self._empty(box)
      yield box
    finally:
      self._free.put(box)

  def _empty(self, box: repository.Workspace | None) -> repository.Workspace:
    if box is not None:
      try:
        box.clear()
        return box
      except repository.WorkspaceError:  # Its tree is lost.
        box.close()
        self._all.discard(box)
    box = self._make()
    self._all.add(box)
    return box

  @property
  def lent(self) -> int:
    """How many workspaces are lent."""
    return self._size - self._free.qsize()

  def close(self) -> None:
    """End all workspaces, those that are lent too."""
    for box in tuple(self._all):
      box.close()


def shared(purpose: str, size: int, entry: wire.Entry = survey.ENTRY) -> Pool:
  """Return the pool of this process for a purpose, opened once.

  Args:
    purpose: E.g. 'episodes'. Who holds a workspace while it waits for another
      one takes that from another pool.
    size: See `Pool`.
    entry: See `Pool`.
  """
  return shared_lib.opened(_pool, probe.tier(), purpose, size, entry)


def _pool(tier: str, purpose: str, size: int, entry: wire.Entry) -> Pool:
  del purpose  # Pools of two purposes are two.
  return Pool(tier, size, entry=entry)
