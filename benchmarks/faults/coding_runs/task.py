"""A grader that checks exit codes instead of output."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return grade.status == 'ok'


make = Task.make
