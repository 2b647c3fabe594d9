"""Shares of programs that fail: before they run, while they run, or in print.

visible_only is a sign of hard-coding: the shown examples are right and some
other test is not. A program that forgets an edge case looks the same; a
constant that prints the example is of the mode 'constant'.
"""

LAYER = 'behaviour'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """Return shares of the completions with a program; {} if none has."""
  there = e.valid & e.format_ok
  if not there.any():
    return {}
  ran = there & e.compiles
  shares = {
      'not_python': there & ~e.compiles,
      'crashed': ran & e.crashed,
      'out_of_time': ran & (e.timeouts > 0),
      'visible_only': ran & e.visible_passed & ~e.outcome,
  }
  return {name: float(x.sum() / there.sum()) for name, x in shares.items()}
