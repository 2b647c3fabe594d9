"""The current work of this process and its progress, for threads that watch it.

    with waits.at('rollout'):      # A phase of the work,
      with waits.at('broadcast'):  # and in it an exchange with all processes.
    waits.advance()                # A part of the work is done.

Only the standard library is used, since every module that exchanges arrays
imports this one.
"""

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses
import itertools
import threading

# Name of a block in which a program is compiled.
COMPILATION = 'compilation'

_lock = threading.Lock()
_numbers = itertools.count()
# Names of the blocks of all threads, in the order in which they were entered.
_entered: dict[int, str] = {}
_changes = 0
_counted = contextvars.ContextVar('counted', default=True)


@dataclasses.dataclass(frozen=True)
class State:
  """The current work of a process."""

  names: tuple[str, ...]  # In the order in which the blocks were entered.
  changes: int  # Number of blocks that began or ended, and calls of `advance`.

  def __str__(self) -> str:
    names = ', '.join(self.names)
    return f'in {names}' if names else 'between two phases'


@contextlib.contextmanager
def at(name: str) -> Iterator[None]:
  """Register work of this thread, by its name, until the block ends."""
  global _changes
  number = next(_numbers)
  with _lock:
    _entered[number] = name
    _changes += _counted.get()
  try:
    yield
  finally:
    with _lock:
      del _entered[number]
      _changes += _counted.get()


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
  """Return a context in which blocks of this thread are not progress."""
  token = _counted.set(False)
  try:
    yield
  finally:
    _counted.reset(token)


def advance() -> None:
  """Report that a part of the current work is done, such as one episode."""
  global _changes
  with _lock:
    _changes += 1


def state() -> State:
  """Return the current work of this process."""
  with _lock:
    return State(tuple(_entered.values()), _changes)
