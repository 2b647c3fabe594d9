"""A data loader that begins anew at every step."""

from benchmarks.faults import tasks


class _Stuck:

  def __init__(self, source):
    self._source = source

  def __len__(self):
    return len(self._source)

  def take(self, cursor, count):
    del cursor
    return self._source.take(0, count)


class Task(tasks.Math):

  def source(self, split, seed):
    found = super().source(split, seed)
    return _Stuck(found) if split == 'train' else found


make = Task.make
