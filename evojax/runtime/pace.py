"""Limits how often a run does work besides training, such as its page."""

from collections.abc import Callable
import time

# Work is due again after this many times the seconds that it took, so that it
# takes at most 1 % of a run.
_TIMES = 100


class Pace:
  """Decides when work is due again: the longer it takes, the less often."""

  def __init__(
      self, least: float, clock: Callable[[], float] = time.monotonic
  ):
    """Set the pace.

    Args:
      least: Minimum number of seconds until the work is first due, and between
        two times.
      clock: Returns the present time in seconds.
    """
    self._least, self._clock = least, clock
    self._due: float | None = None
    self.wait = least  # Seconds until the work is due again.

  def is_due(self) -> bool:
    """Return whether the work is due; the first call starts the clock."""
    now = self._clock()
    if self._due is None:
      self._due = now + self.wait
    return now >= self._due

  def took(self, seconds: float) -> None:
    """Record that the work has just ended, after this many seconds."""
    self.wait = max(self._least, _TIMES * seconds)
    self._due = self._clock() - seconds + self.wait
