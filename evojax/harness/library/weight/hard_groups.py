"""Counts hard groups more: 1.5 - solve rate, so 0.5 (easy) to 1.5 (hard).

Difficulty-aware reweighting of the advantage (GRPO-LEAD: Zhang & Zuo 2025,
arXiv:2504.09696), linear instead of logistic: nothing to tune.
"""

import numpy as np


def weight(e):
  """float32 [P, G, A], equal over a group's completions and their turns."""
  valid = np.maximum(e.valid.sum(1), 1)
  rate = (e.outcome & e.valid).sum(1) / valid
  turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
  shape = (*e.valid.shape, turns)
  return np.broadcast_to((1.5 - rate)[:, None, None], shape).astype(np.float32)
