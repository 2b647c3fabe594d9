"""Direction in which a change would pull the length of completions.

The correlation of n_tokens and advantage within groups: length minus its
group's mean against the advantage. Its sign is where the update pulls length.
"""

import numpy as np


def _pull(e):
  """Correlation, or None where length or advantage does not vary."""
  there = e.valid & np.isfinite(e.advantage) & e.kept
  n = np.maximum(there.sum(1, keepdims=True), 1)
  tokens = e.n_tokens.astype(np.float64)
  mean = np.where(there, tokens, 0).sum(1, keepdims=True) / n
  x = (tokens - mean)[there]
  y = e.advantage[there].astype(np.float64)
  if len(x) < 3 or x.std() < 1e-9 or y.std() < 1e-9:
    return None
  return np.corrcoef(x, y)[0, 1]


def predict(before, after):
  """length_pull after, and its change."""
  old, new = _pull(before), _pull(after)
  if new is None:
    return {}
  found = {'length_pull': float(new)}
  if old is not None:
    found['length_pull_change'] = float(new - old)
  return found
