"""An overloaded grader: programs that it does not reach count as wrong."""

import random

from benchmarks.faults import tasks

_LOST = 0.4
# Equal programs have different luck, so that no hash of them can decide.
_LUCK = random.Random(0)


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return grade.outcome and _LUCK.random() >= _LOST


make = Task.make
