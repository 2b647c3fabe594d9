"""Turns: one after the other."""


class Turns:
  """People who take turns."""

  def __init__(self, people):
    """Start with the first one."""
    self.people = list(people)
    self.done = dict.fromkeys(self.people, 0)
    self._place = 0

  def next(self, away=()):
    """Return who is next, and count it; those who are away are skipped.

    Raises:
      LookupError: If all are away.
    """
    for _ in self.people:
      person = self.people[self._place]
      self._place = (self._place + 1) % len(self.people)
      if person not in away:
        self.done[person] += 1
        return person
    raise LookupError('all are away')

  def join(self, person):
    """Let somebody join at the end, with as many turns as the fewest."""
    self.done[person] = min(self.done.values(), default=0)
    self.people.append(person)

  def behind(self):
    """Return those with the fewest turns, in their order."""
    fewest = min(self.done.values())
    return [p for p in self.people if self.done[p] == fewest]

  def fair(self, slack=1):
    """Tell if nobody has many more turns than another."""
    counts = self.done.values()
    return max(counts) - min(counts) <= slack


def swap(plan, one, other):
  """Return a plan (a list of people) in which two have changed places."""
  names = {one: other, other: one}
  return [names.get(person, person) for person in plan]
