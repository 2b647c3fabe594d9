"""The reward that trained: its mean, and how far it tells completions apart."""

import numpy as np

LAYER = 'signal'
UNIT = 'reward'
WARN = {'reward_spread': ('<', 0.05)}  # arXiv:2606.03108.
CRITICAL = {}


def measure(e):
  """reward_mean over all; reward_spread: mean std within a group."""
  there = e.valid & np.isfinite(e.reward)
  groups = there.sum(1) >= 2
  if not groups.any():
    return {}
  reward = np.where(there, e.reward, 0.0).astype(np.float64)
  n = np.maximum(there.sum(1), 1)
  mean = reward.sum(1) / n
  square = np.where(there, (reward - mean[:, None]) ** 2, 0.0).sum(1) / n
  return {
      'reward_mean': float(reward[there].mean()),
      'reward_spread': float(np.sqrt(square[groups]).mean()),
  }
