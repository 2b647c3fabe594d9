"""Groups that have a gradient, by outcome or by shaping alone.

A group whose rewards are equal has advantage 0 everywhere (dead). One that is
alive only because shaping tells apart what the evaluator does not is counted on
its own: it can help (EvoTrainer v8, arXiv:2606.03108: 50 % -> 27.5 % dead
groups) and it can replace the goal by the shaping.
"""

import numpy as np

LAYER = 'signal'
UNIT = 'fraction'
# Std of a group's rewards < 1e-3 is dead: arXiv:2606.03108.
WARN = {'dead_group_ratio': ('>', 0.30)}
CRITICAL = {'dead_group_ratio': ('>', 0.50)}

MIN_STD = 1e-3


def _std(x, valid):
  """Standard deviation within each group, over what is valid; [P]."""
  n = np.maximum(valid.sum(1), 1)
  x = np.where(valid, x, 0.0).astype(np.float64)
  mean = x.sum(1) / n
  square = np.where(valid, (x - mean[:, None]) ** 2, 0.0).sum(1) / n
  return np.sqrt(square)


def measure(e):
  """Return shares of the groups with at least two valid completions."""
  rewarded = e.valid & np.isfinite(e.reward)
  groups = rewarded.sum(1) >= 2
  if not groups.any():
    return {}
  varies = _std(np.nan_to_num(e.reward), rewarded)[groups] >= MIN_STD
  by_outcome = _std(e.outcome, rewarded)[groups] >= MIN_STD
  return {
      'dead_group_ratio': float(np.mean(~varies)),
      'alive_by_outcome': float(np.mean(varies & by_outcome)),
      'alive_by_shaping': float(np.mean(varies & ~by_outcome)),
  }
