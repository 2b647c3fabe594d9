"""A bag: items and how often each is in it."""


class Bag:
  """Counts items; none is ever in it less than once."""

  def __init__(self, items=()):
    """Make a bag of items."""
    self.counts = {}
    for item in items:
      self.add(item)

  def add(self, item, times=1):
    """Put an item in, some times; return how many there are now."""
    self.counts[item] = self.counts.get(item, 0) + times
    return self.counts[item]

  def take(self, item, times=1):
    """Take an item out; return how many came out.

    No more come out than there are.
    """
    found = min(times, self.counts.get(item, 0))
    if found:
      self.counts[item] -= found
      if self.counts[item] == 0:
        del self.counts[item]
    return found

  def size(self):
    """Return the number of items, each as often as it is there."""
    return sum(self.counts.values())

  def common(self, limit=3):
    """Return (item, count) pairs, the most frequent first, then by name."""
    pairs = sorted(self.counts.items(), key=lambda p: (-p[1], p[0]))
    return pairs[:limit]

  def within(self, other):
    """Tell if the other bag holds all that this one holds."""
    for item, count in self.counts.items():
      if count > other.counts.get(item, 0):
        return False
    return True
