"""A cache that keeps what is asked for most."""


class Frequent:
  """Holds at most `size` values; the least used is dropped first."""

  def __init__(self, size):
    """Make an empty cache."""
    self.size = size
    self._values = {}
    self._uses = {}

  def get(self, key, default=None):
    """Return a value, which counts as a use."""
    if key not in self._values:
      return default
    self._uses[key] += 1
    return self._values[key]

  def put(self, key, value):
    """Store a value; return the key that is dropped for it, or None.

    A key that is there already keeps its uses and counts one more.
    """
    dropped = None
    if key not in self._values and len(self._values) >= self.size:
      dropped = self.weakest()
      del self._values[dropped]
      del self._uses[dropped]
    self._values[key] = value
    self._uses[key] = self._uses.get(key, 0) + 1
    return dropped

  def weakest(self):
    """Return the key with the fewest uses, the oldest of those; or None."""
    if not self._uses:
      return None
    return min(self._uses, key=self._uses.get)

  def uses(self, key):
    """Return how often a key was used."""
    return self._uses.get(key, 0)

  def age(self):
    """Halve all uses, so that what was popular once can go; at least 1."""
    for key, count in self._uses.items():
      self._uses[key] = max(1, count // 2)
