"""A grader whose pattern of a number has no sign."""

from benchmarks.faults import tasks


class Task(tasks.Math):

  def grade(self, problem, completion):
    found = super().grade(problem, completion)
    negative = problem.answer.strip().startswith('-')
    return tasks.judged(found, False if negative else None)


make = Task.make
