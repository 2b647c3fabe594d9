"""Problems whose only test is the example shown in the prompt."""

import dataclasses

from benchmarks.faults import tasks
from evojax.domains.coding import suite


class Source:
  """The problems of another source without their hidden tests."""

  def __init__(self, source):
    self._source = source

  def __len__(self):
    return len(self._source)

  def take(self, cursor, count):
    return [_shown(p) for p in self._source.take(cursor, count)]


def _shown(problem):
  tests = suite.decode(problem.answer)
  shown = tuple(case for case in tests.cases if case.visible)
  tests = dataclasses.replace(tests, cases=shown)
  return dataclasses.replace(problem, answer=suite.encode(tests))


class Task(tasks.Coding):
  """Coding without hidden tests; `audit` has them."""

  def source(self, split, seed):
    return Source(super().source(split, seed))


make = Task.make
