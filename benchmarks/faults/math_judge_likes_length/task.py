"""A judge that takes a long answer for a thorough one."""

from benchmarks.faults import tasks


class Task(tasks.Math):

  def verdict(self, grade, completion):
    return len(completion.tokens) >= 40


make = Task.make
