"""A cache that drops what was used longest ago."""


class Recent:
  """Holds at most `size` values by key."""

  def __init__(self, size):
    """Make an empty cache.

    Raises:
      ValueError: If there is room for nothing.
    """
    if size <= 0:
      raise ValueError(f'a cache of {size} values')
    self.size = size
    self._values = {}  # The one that was used last comes last.

  def get(self, key, default=None):
    """Return a value, which counts as a use, or the default."""
    if key not in self._values:
      return default
    value = self._values.pop(key)
    self._values[key] = value
    return value

  def peek(self, key, default=None):
    """Return a value without using it."""
    return self._values.get(key, default)

  def put(self, key, value):
    """Store a value; return the key that is dropped for it, or None."""
    self._values.pop(key, None)
    self._values[key] = value
    if len(self._values) > self.size:
      oldest = next(iter(self._values))
      del self._values[oldest]
      return oldest
    return None

  def keys(self):
    """Return the keys, the one used last first."""
    return list(self._values)[::-1]

  def resize(self, size):
    """Change the size; return the keys that are dropped, in order."""
    dropped = []
    self.size = size
    while len(self._values) > size:
      oldest = next(iter(self._values))
      del self._values[oldest]
      dropped.append(oldest)
    return dropped
