"""A grader that looks at exit codes, not at output."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return grade.status == 'ok'


make = Task.make
