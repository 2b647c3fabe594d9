"""few_turns: pays for fewer turns than the rest of the group, solved or not.

0.5 at the fewest turns of a group down to -0.5 at the most; a negative weight
pays for going on. A known trap: paid too much, agents end at once (EvoTrainer,
arXiv:2606.03108: exits after one turn).
"""

import numpy as np


def _few_turns(e):
  """float32 [P, G], -0.5..0.5."""
  n = e.n_turns.astype(np.float32)
  low = np.where(e.valid, n, np.inf).min(1, keepdims=True)
  high = np.where(e.valid, n, -np.inf).max(1, keepdims=True)
  span = np.where(high > low, high - low, 1)
  score = np.where(high > low, 0.5 - (n - low) / span, 0)
  return np.where(e.valid, score, 0).astype(np.float32)


def parts(e):
  return {'few_turns': _few_turns(e)}
