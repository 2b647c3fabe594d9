"""A grader that runs only the visible test."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return bool(grade.columns['visible_passed'])


make = Task.make
