"""A list of fixed size that forgets its oldest items."""


class Ring:
  """Keeps the last `size` items."""

  def __init__(self, size):
    """Make an empty ring.

    Raises:
      ValueError: If there is no room for one item.
    """
    if size < 1:
      raise ValueError(f'a ring of {size} items')
    self.size = size
    self.count = 0
    self._cells = [None] * size

  def push(self, item):
    """Add an item; return the one that is forgotten, or None."""
    place = self.count % self.size
    forgotten = self._cells[place]
    self._cells[place] = item
    self.count += 1
    return forgotten

  def items(self):
    """Return the items, the oldest first."""
    if self.count <= self.size:
      return self._cells[: self.count]
    start = self.count % self.size
    return self._cells[start:] + self._cells[:start]

  def last(self, back=0):
    """Return the newest item, or one that is `back` items older.

    Raises:
      IndexError: If the ring does not hold it.
    """
    kept = self.items()
    if back >= len(kept):
      raise IndexError(f'only {len(kept)} items are kept')
    return kept[-1 - back]
