"""SIGTERM asks a run to save its state and to end."""

from collections.abc import Iterator
import contextlib
import signal


class Preempted(SystemExit):
  """SIGTERM arrived; the state is saved and the same command continues.

  The exit code is 143, which a shell reports of a process that SIGTERM ended.
  """

  def __init__(self, code: int = 128 + signal.SIGTERM):
    super().__init__(code)


@contextlib.contextmanager
def sigterm_flag() -> Iterator[list[int]]:
  """Yield a list that is non-empty once SIGTERM has arrived."""
  arrived: list[int] = []
  try:
    old = signal.signal(
        signal.SIGTERM, lambda number, _: arrived.append(number)
    )
  except ValueError:  # Not the main thread: the embedding program decides.
    yield arrived
    return
  try:
    yield arrived
  finally:
    signal.signal(signal.SIGTERM, old)
