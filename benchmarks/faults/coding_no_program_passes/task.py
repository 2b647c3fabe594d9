"""A grader that lets pass what has no program."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return grade.outcome or grade.status == 'no_program'


make = Task.make
