"""A queue that hands out the smallest item first: a binary heap."""


class Queue:
  """Items with ranks; of equal ranks the one that came first goes first."""

  def __init__(self):
    """Make an empty queue."""
    self._heap = []
    self._arrived = 0

  def __len__(self):
    return len(self._heap)

  def put(self, item, rank=0):
    """Add an item."""
    self._heap.append((rank, self._arrived, item))
    self._arrived += 1
    child = len(self._heap) - 1
    while child > 0:
      parent = (child - 1) // 2
      if self._heap[parent] <= self._heap[child]:
        break
      self._swap(parent, child)
      child = parent

  def get(self):
    """Remove and return the item of the lowest rank.

    Raises:
      IndexError: If the queue is empty.
    """
    if not self._heap:
      raise IndexError('the queue is empty')
    self._swap(0, len(self._heap) - 1)
    item = self._heap.pop()[2]
    self._sink(0)
    return item

  def _sink(self, parent):
    size = len(self._heap)
    while True:
      child = 2 * parent + 1
      if child >= size:
        return
      if child + 1 < size and self._heap[child + 1] < self._heap[child]:
        child += 1
      if self._heap[parent] <= self._heap[child]:
        return
      self._swap(parent, child)
      parent = child

  def _swap(self, one, other):
    heap = self._heap
    heap[one], heap[other] = heap[other], heap[one]


def drain(queue, limit=None):
  """Take items out, at most `limit` of them, and return them."""
  taken = []
  while len(queue) and (limit is None or len(taken) < limit):
    taken.append(queue.get())
  return taken
