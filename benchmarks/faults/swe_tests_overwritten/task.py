"""A grader that runs the tests as the agent left them."""

from benchmarks.faults import tasks


class Task(tasks.Swe):

  def verdict(self, grade):
    return grade.outcome or grade.columns['tests_touched'] > 0


make = Task.make
