"""Correlation of reward and length."""

import numpy as np

LAYER = 'behaviour'
UNIT = 'correlation'
WARN = {'length_reward_corr': ('>', 0.3)}  # arXiv:2606.03108.
CRITICAL = {}


def measure(e):
  """Pearson correlation of n_tokens and reward; none where one is constant."""
  there = e.valid & np.isfinite(e.reward)
  x = e.n_tokens[there].astype(np.float64)
  y = e.reward[there].astype(np.float64)
  if len(x) < 3 or x.std() < 1e-9 or y.std() < 1e-6:
    return {}
  return {'length_reward_corr': float(np.corrcoef(x, y)[0, 1])}
