"""Reward parts that tell no two completions of a group apart.

Such a part is an offset: it moves the mean reward and no advantage. Two terms
of EvoTrainer's best version covered ~99 % of rollouts (arXiv:2606.03108).
"""

import numpy as np

MIN_STD = 1e-3


def predict(before, after):
  """varies_<part>: share of the groups in which the part varies, after."""
  found = {}
  for name in after.columns:
    if name.startswith('part_'):
      part = after[name]
      there = after.valid & np.isfinite(part)
      low = np.where(there, part, np.inf).min(1)
      high = np.where(there, part, -np.inf).max(1)
      groups = there.sum(1) >= 2
      if groups.any():
        varies = (high - low)[groups] >= MIN_STD
        found[f'varies_{name.removeprefix("part_")}'] = float(varies.mean())
  return found
