"""The reward that trained."""

import numpy as np

LAYER = 'signal'
UNIT = 'reward'
WARN = {}
CRITICAL = {}


def measure(e):
  """reward_mean over all completions that have a reward."""
  there = e.valid & np.isfinite(e.reward)
  return {'reward_mean': float(e.reward[there].mean())} if there.any() else {}
