"""Hidden tests of some families that expect what nobody prints."""

from benchmarks.faults import tasks

_BROKEN = ('sums', 'letters', 'extremes')


class Task(tasks.Coding):

  def grade_many(self, problems, completions):
    found = super().grade_many(problems, completions)
    return [
        tasks.judged(grade, False if problem.family in _BROKEN else None)
        for problem, grade in zip(problems, found, strict=True)
    ]


make = Task.make
