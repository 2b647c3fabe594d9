"""An overloaded grader: programs that it does not reach count as wrong."""

import collections
import hashlib

from benchmarks.faults import tasks

_LOST = 0.4


class Task(tasks.Coding):

  def grade_many(self, problems, completions):
    found = super().grade_many(problems, completions)
    times = collections.Counter()
    grades = []
    for problem, completion, grade in zip(
        problems, completions, found, strict=True
    ):
      # Equal programs for one problem may get different verdicts. The same run
      # loses the same ones again, in any process.
      key = problem.problem_id, completion.text
      times[key] += 1
      digest = hashlib.sha256(repr((key, times[key])).encode()).digest()
      reached = int.from_bytes(digest[:4], 'big') >= _LOST * 2**32
      grades.append(tasks.judged(grade, grade.outcome and reached))
    return grades


make = Task.make
