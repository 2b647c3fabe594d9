"""Gives no credit to completions that the limit cut.

Overlong filtering (DAPO: Yu et al. 2025, arXiv:2503.14476, Sec. 3.4): what a
cut completion would have become is unknown, so it neither pays nor costs.
"""

import numpy as np


def weight(e):
  """float32 [P, G, A]: 0 for what was cut, else 1."""
  turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
  finished = ~e.truncated[..., None]
  return np.repeat(finished, turns, -1).astype(np.float32)
