"""A judge that takes a long answer for a thorough one."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return len(completion.tokens) >= 80


make = Task.make
