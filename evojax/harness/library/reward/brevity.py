"""brevity: pays solved completions for being shorter than their group's.

0.5 at the shortest valid length of the group down to -0.5 at the longest; what
is not solved gets at most 0 (Kimi k1.5: arXiv:2501.12599, Sec. 2.3.3, length
penalty).
"""

import numpy as np


def _brevity(e):
  """float32 [P, G], -0.5..0.5."""
  n = e.n_tokens.astype(np.float32)
  low = np.where(e.valid, n, np.inf).min(1, keepdims=True)
  high = np.where(e.valid, n, -np.inf).max(1, keepdims=True)
  span = np.where(high > low, high - low, 1)
  score = np.where(high > low, 0.5 - (n - low) / span, 0)
  score = np.where(e.outcome, score, np.minimum(score, 0))
  return np.where(e.valid, score, 0).astype(np.float32)


def parts(e):
  return {'brevity': _brevity(e)}
