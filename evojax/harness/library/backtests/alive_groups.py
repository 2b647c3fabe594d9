"""Change of the groups that have a gradient, on the same rollouts.

Groups alive by outcome carry what the evaluator says; groups alive by shaping
alone carry the shaping. In group-relative training the two are no substitute.
"""

import numpy as np

MIN_STD = 1e-3


def _alive(e):
  """(by outcome, by shaping alone): shares of the groups that are there."""
  there = e.valid & np.isfinite(e.advantage) & e.kept
  live = np.where(there, np.abs(e.advantage), 0).max(1) > MIN_STD
  solved = (e.outcome & there).sum(1)
  mixed = (solved > 0) & (solved < there.sum(1))
  groups = max(1, int(e.valid.any(1).sum()))
  return (live & mixed).sum() / groups, (live & ~mixed).sum() / groups


def predict(before, after):
  """Return the shares after, and their change."""
  old, new = _alive(before), _alive(after)
  return {
      'alive_by_outcome': float(new[0]),
      'alive_by_outcome_change': float(new[0] - old[0]),
      'alive_by_shaping': float(new[1]),
      'alive_by_shaping_change': float(new[1] - old[1]),
  }
