"""Greatest common divisors that are all 1, which a shortcut solves."""

from benchmarks.faults import tasks

_ANSWER = '1'


class Source:
  """The problems of another source that have one common answer."""

  def __init__(self, source):
    self._source, self._seen, self._found = source, 0, []

  def __len__(self):
    return len(self._source) // 4

  def take(self, cursor, count):
    chosen = {}
    while len(chosen) < count:
      problem = self._at(cursor)
      chosen.setdefault(problem.problem_id, problem)
      cursor += 1
    return list(chosen.values())

  def _at(self, place):
    while len(self._found) <= place:
      some = self._source.take(self._seen, 64)
      self._seen += len(some)
      self._found += [p for p in some if p.answer == _ANSWER]
    return self._found[place]


class Task(tasks.Math):
  """Math problems with a single answer; `audit` asks all kinds."""

  def source(self, split, seed):
    return Source(super().source(split, seed))


def make(**kwargs):
  return Task.make(**kwargs | {'families': ('gcd:0-1',)})
