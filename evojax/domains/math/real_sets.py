"""Sets of real numbers: unions of intervals whose ends are numbers.

A set is a tuple of cuts in ascending order: it contains the numbers between the
first and the second, the third and the fourth, and so on. A cut is (x, False)
just before a number x and (x, True) just after it, so that [1, 2) has the cuts
(1, False) and (2, False), and a single number has the cuts before and after it.
"""

import bisect
from collections.abc import Callable, Sequence
import fractions

Number = fractions.Fraction | float | int
Cut = tuple[Number, bool]
Cuts = tuple[Cut, ...]

INFINITY = float('inf')
REALS = ((-INFINITY, True), (INFINITY, False))


def interval(
    low: Number,
    high: Number,
    brackets: str = '[]',
) -> Cuts:
  """Return an interval; a round bracket excludes its end."""
  cuts = (low, brackets[0] == '('), (high, brackets[1] == ']')
  return cuts if cuts[0] < cuts[1] else ()


def combine(keeps: Callable[[list[bool]], bool], sets: Sequence[Cuts]) -> Cuts:
  """Return the set of numbers that `keeps` selects by membership in the sets.

  Args:
    keeps: any for a union, all for an intersection.
    sets: The sets to combine.
  """
  found = []
  for cut in sorted({cut for cuts in sets for cut in cuts}):
    kept = keeps([bisect.bisect_right(cuts, cut) % 2 == 1 for cuts in sets])
    if kept != len(found) % 2:
      found.append(cut)
  return tuple(found)
