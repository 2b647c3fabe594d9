"""The current work of this process, for threads that report it.

    with waits.at('rollout'):                   # A phase of the work,
      with waits.at('broadcast', others=True):  # which waits for all processes.

Only the standard library is used, since every module that exchanges arrays
imports this one.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import threading

_lock = threading.Lock()
_numbers = itertools.count()
# Blocks of all threads, in the order in which they were entered.
_entered: dict[int, tuple[str, bool]] = {}
_changes = 0


@dataclasses.dataclass(frozen=True)
class State:
  """The current work of a process."""

  names: tuple[str, ...]  # In the order in which the blocks were entered.
  waits: bool  # True if a block waits for other processes.
  changes: int  # Number of blocks entered or left so far.

  def __str__(self) -> str:
    names = ', '.join(self.names)
    return f'in {names}' if names else 'between two phases'


@contextlib.contextmanager
def at(name: str, *, others: bool = False) -> Iterator[None]:
  """Register work of this thread until the block ends.

  Args:
    name: Name of the work, for messages.
    others: True if the block ends only once all processes have reached it.
  """
  global _changes
  number = next(_numbers)
  with _lock:
    _entered[number] = name, others
    _changes += 1
  try:
    yield
  finally:
    with _lock:
      del _entered[number]
      _changes += 1


def state() -> State:
  """Return the current work of this process."""
  with _lock:
    entered, changes = tuple(_entered.values()), _changes
  names = tuple(name for name, _ in entered)
  return State(names, any(others for _, others in entered), changes)
