"""A cache whose values expire; the time is told to it."""


class Expiring:
  """Holds values for some seconds."""

  def __init__(self, seconds=60):
    """Make an empty cache."""
    self.seconds = seconds
    self._values = {}

  def put(self, key, value, now, seconds=None):
    """Store a value from now on, for its own time if one is given."""
    lasts = self.seconds if seconds is None else seconds
    self._values[key] = (value, now + lasts)

  def get(self, key, now, default=None):
    """Return a value that has not expired; its last second is over."""
    value, end = self._values.get(key, (default, None))
    if end is not None and now >= end:
      del self._values[key]
      return default
    return value

  def left(self, key, now):
    """Return the seconds that a value has left; 0 if there is none."""
    if key not in self._values:
      return 0
    return max(0, self._values[key][1] - now)

  def touch(self, key, now):
    """Let a value that has not expired begin anew; tell if there was one."""
    if self.left(key, now) == 0:
      return False
    self.put(key, self._values[key][0], now)
    return True

  def sweep(self, now):
    """Remove what has expired; return how many values that were."""
    expired = [key for key, (_, end) in self._values.items() if now >= end]
    for key in expired:
      del self._values[key]
    return len(expired)
