"""Stock: how many of each thing there are, and what they cost."""


class Stock:
  """Things by name; what came in first goes out first."""

  def __init__(self):
    """Start with empty shelves."""
    self._lots = {}

  def receive(self, name, count, cost=0):
    """Put a lot on the shelf: so many things, each at a cost.

    Raises:
      ValueError: If nothing comes in.
    """
    if count <= 0:
      raise ValueError(f'{count} of {name} come in')
    self._lots.setdefault(name, []).append([count, cost])

  def count(self, name):
    """Return how many there are of a thing."""
    return sum(count for count, _ in self._lots.get(name, []))

  def issue(self, name, count):
    """Take things out, the oldest first; return what they cost together.

    Raises:
      ValueError: If there are not so many.
    """
    if count > self.count(name):
      raise ValueError(f'only {self.count(name)} of {name}')
    total = 0
    while count > 0:
      lot = self._lots[name][0]
      taken = min(lot[0], count)
      total += taken * lot[1]
      lot[0] -= taken
      count -= taken
      if lot[0] == 0:
        self._lots[name].pop(0)
    return total

  def worth(self):
    """Return what all things on the shelves cost together."""
    return sum(
        count * cost for lots in self._lots.values() for count, cost in lots
    )

  def names(self):
    """Return the names of things of which there is at least one."""
    return sorted(name for name in self._lots if self.count(name) > 0)
