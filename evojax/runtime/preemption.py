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
  old = None
  listen = lambda number, _: arrived.append(number)
  # Outside of the main thread it fails: there the embedding program decides.
  with contextlib.suppress(ValueError):
    old = signal.signal(signal.SIGTERM, listen)
  try:
    yield arrived
  finally:
    if old is not None:
      signal.signal(signal.SIGTERM, old)
