"""An overloaded grader: programs that it does not reach count as wrong."""

import random

from benchmarks.faults import tasks

_LOST = 0.4
# A generator decides and not a hash of the program, since equal programs may
# get different verdicts.
_LUCK = random.Random(0)


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return grade.outcome and _LUCK.random() >= _LOST


make = Task.make
