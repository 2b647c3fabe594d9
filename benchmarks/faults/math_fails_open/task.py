"""A grader that accepts answers that it cannot read."""

from benchmarks.faults import tasks


class Task(tasks.Math):

  def verdict(self, grade, completion):
    return None if grade.columns['format_ok'] else True


make = Task.make
