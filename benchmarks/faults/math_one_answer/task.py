"""Greatest common divisors that are all 1, which a shortcut solves."""

from benchmarks.faults import tasks

_ANSWER = '1'


class Task(tasks.Math):
  """Math problems with a single answer; `audit` asks all kinds."""

  def source(self, split, seed):
    found = super().source(split, seed)
    return tasks.Some(
        found, lambda p: p.answer == _ANSWER, length=len(found) // 4
    )


def make(**kwargs):
  return Task.make(**kwargs | {'families': ('gcd:0-1',)})
