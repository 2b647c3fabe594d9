"""What this process is doing, for other threads that have to say so.

    with waits.at('rollout'):                   # A phase of the work,
      with waits.at('broadcast', others=True):  # which waits for all processes.

Only the standard library is used: whatever exchanges arrays imports this.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import threading

_lock = threading.Lock()
_numbers = itertools.count()
# In the order in which they began; of all threads.
_entered: dict[int, tuple[str, bool]] = {}
_changes = 0


@dataclasses.dataclass(frozen=True)
class State:
  """What a process is doing."""

  names: tuple[str, ...]  # From the outermost to the innermost.
  waits: bool  # Whether it waits for other processes.
  changes: int  # How often it has begun or ended something.

  def __str__(self) -> str:
    names = ', '.join(self.names)
    return f'in {names}' if names else 'between two phases'


@contextlib.contextmanager
def at(name: str, *, others: bool = False) -> Iterator[None]:
  """Note that this thread does something until the block ends.

  Args:
    name: What it does, for a message.
    others: Whether it ends only once all processes have come to it.
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
  """Return what this process is doing now."""
  with _lock:
    entered, changes = tuple(_entered.values()), _changes
  names = tuple(name for name, _ in entered)
  return State(names, any(others for _, others in entered), changes)
