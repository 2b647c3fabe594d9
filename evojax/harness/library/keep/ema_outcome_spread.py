"""Keeps groups whose outcome varies at least half as much as is usual.

The usual spread is an exponential mean over steps (decay 0.9, as the filter of
EvoTrainer v4, arXiv:2606.03108), so the gate follows the policy as it learns:
strict where most groups are mixed, lenient where few are. Groups without any
spread are never kept.
"""

import numpy as np

ACROSS_GROUPS = ('keep',)
DECAY, SHARE = 0.9, 0.5


def init():
  """mean: the usual spread; steps: how many it was taken over."""
  return {'mean': np.zeros((), np.float32), 'steps': np.zeros((), np.float32)}


def keep(e, state):
  """bool [P, G], equal along G; and the state with this step in it."""
  valid = np.maximum(e.valid.sum(1), 1)
  rate = (e.outcome & e.valid).sum(1) / valid
  spread = np.sqrt(rate * (1 - rate))
  there = max(1, int(e.valid.any(1).sum()))
  mean = DECAY * state['mean'] + (1 - DECAY) * spread.sum() / there
  steps = state['steps'] + 1
  usual = mean / (1 - DECAY**steps)  # Adam's correction of the zero start.
  kept = (spread > 0) & (spread >= SHARE * usual)
  state = {'mean': np.float32(mean), 'steps': np.float32(steps)}
  return np.repeat(kept[:, None], e.valid.shape[1], 1), state
