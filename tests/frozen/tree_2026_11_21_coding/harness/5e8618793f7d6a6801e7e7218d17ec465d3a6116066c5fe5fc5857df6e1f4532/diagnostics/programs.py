"""How programs fail: before they run, while they run, or by what they print.

visible_only is what hard-coding looks like: the shown examples are right and
some other test is not. A program that forgets an edge case looks the same; a
constant that prints the example is of the mode 'constant'.
"""

LAYER = 'behaviour'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """Shares of the completions with a program; none without one."""
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
