"""Agreement of the advantage with the outcome.

sign_agreement: among kept completions of mixed groups, weighted by |advantage|,
the share with a positive advantage where solved and a negative one where not.
phantom_share: the part of all |advantage| in groups whose outcomes are all
equal, so that only shaping can have made it.
"""

import numpy as np


def _agreement(e):
  """(weighted agreement or None, phantom share or None)."""
  there = e.valid & np.isfinite(e.advantage) & e.kept
  size = np.where(there, np.abs(e.advantage), 0).astype(np.float64)
  solved = (e.outcome & there).sum(1)
  mixed = ((solved > 0) & (solved < there.sum(1)))[:, None] & there
  agrees = (e.advantage > 0) == e.outcome
  total, in_mixed = size.sum(), size[mixed].sum()
  if total == 0:
    return None, None
  agreement = size[mixed & agrees].sum() / in_mixed if in_mixed > 0 else None
  return agreement, 1 - in_mixed / total


def predict(before, after):
  """Values after, and their change where there is a value before."""
  found = {}
  names = ('sign_agreement', 'phantom_share')
  for name, old, new in zip(
      names, _agreement(before), _agreement(after), strict=True
  ):
    if new is not None:
      found[name] = float(new)
      if old is not None:
        found[f'{name}_change'] = float(new - old)
  return found
