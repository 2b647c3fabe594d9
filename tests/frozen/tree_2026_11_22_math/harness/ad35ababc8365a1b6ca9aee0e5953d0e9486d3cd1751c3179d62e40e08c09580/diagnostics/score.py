"""Share of solved completions, and what sampling again would add.

pass_at_g: groups with at least one solved completion. headroom: what is solved
by some sample of a group but not by the average one; reinforcement has this
much to select from.
"""

import numpy as np

LAYER = 'score'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """outcome, pass_at_g, headroom: of the groups with a valid completion."""
  counts = e.valid.sum(1)
  there = counts > 0
  if not there.any():
    return {}
  solved = (e.outcome & e.valid).sum(1)[there]
  mean = float(np.mean(solved / counts[there]))
  passed = float(np.mean(solved > 0))
  return {'outcome': mean, 'pass_at_g': passed, 'headroom': passed - mean}
