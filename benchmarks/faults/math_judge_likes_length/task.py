"""A judge that mistakes long answers for thorough ones."""

from benchmarks.faults import tasks


class Task(tasks.Math):

  def verdict(self, grade, completion):
    return len(completion.tokens) >= 40


make = Task.make
