"""A grader without the failing tests: any harmless edit passes."""

from benchmarks.faults import tasks


class Task(tasks.Swe):

  def verdict(self, grade):
    return grade.status == 'ok' and grade.columns['p2p_passed'] == 1


make = Task.make
