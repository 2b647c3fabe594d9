"""A judge that mistakes long answers for thorough ones."""

from benchmarks.faults import tasks


class Task(tasks.Coding):

  def verdict(self, grade, completion):
    return len(completion.tokens) >= 80


make = Task.make
