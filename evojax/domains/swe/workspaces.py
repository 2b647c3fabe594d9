"""Workspaces for reuse: starting one costs more than clearing it."""

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
  """A limited number of empty workspaces to lend; thread-safe."""

  def __init__(
      self,
      tier: str,
      size: int,
      *,
      entry: wire.Entry = survey.ENTRY,
      limits: limits_lib.Limits = repository.LIMITS,
  ):
    """Set up the pool; each workspace starts when it is first needed.

    Args:
      tier: See `probe.tier`.
      size: Maximum number lent at a time. Each has three processes.
      entry: The entry that runs in the box.
      limits: Limits of every command.

    Raises:
      ValueError: If size is less than 1.
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
    """The number of workspaces that are lent."""
    return self._size - self._free.qsize()

  def close(self) -> None:
    """End all workspaces, including those that are lent."""
    for box in tuple(self._all):
      box.close()


def shared(purpose: str, size: int, entry: wire.Entry = survey.ENTRY) -> Pool:
  """Return this process's pool for a purpose; it is opened once.

  Args:
    purpose: For example 'episodes'. Code that holds one workspace while it
      waits for another must take the other from a different pool.
    size: See `Pool`.
    entry: See `Pool`.
  """
  return shared_lib.opened(_pool, probe.tier(), purpose, size, entry)


def _pool(tier: str, purpose: str, size: int, entry: wire.Entry) -> Pool:
  del purpose  # It makes the pools of two purposes distinct.
  return Pool(tier, size, entry=entry)
