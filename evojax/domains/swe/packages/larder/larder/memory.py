"""Remembers results of functions."""

from larder import recent


class Memory:
  """A function with a memory."""

  def __init__(self, function, size=100):
    """Wrap a function of hashable arguments."""
    self.function = function
    self.hits = 0
    self.misses = 0
    self._cache = recent.Recent(size)

  def __call__(self, *arguments):
    """Return the result, from memory where it is there."""
    missing = object()
    found = self._cache.get(arguments, missing)
    if found is not missing:
      self.hits += 1
      return found
    self.misses += 1
    result = self.function(*arguments)
    self._cache.put(arguments, result)
    return result

  def rate(self):
    """Return which part of the calls was in memory, in percent."""
    calls = self.hits + self.misses
    if calls == 0:
      return 0
    return round(100 * self.hits / calls)


def replay(keys, size):
  """Return (hits, misses) of a cache that is asked for keys in turn."""
  memory = Memory(str, size)
  for key in keys:
    memory(key)
  return memory.hits, memory.misses


def best_size(keys, limit, wanted=50):
  """Return the smallest cache that has a wanted part of hits, or None."""
  for size in range(1, limit + 1):
    hits, misses = replay(keys, size)
    if 100 * hits >= wanted * (hits + misses):
      return size
  return None
