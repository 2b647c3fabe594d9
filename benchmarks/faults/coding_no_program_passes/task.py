"""A grader that accepts answers without a program."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return grade.outcome or grade.status == 'no_program'


make = Task.make
