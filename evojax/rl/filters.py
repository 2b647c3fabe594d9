"""Filters: the groups that enter the update (dynamic sampling), on the host.

A filter keeps or drops whole groups, after advantages were computed
(`rl/advantages.py` gives the order): its answer is the same for all G members.
A kept group may hold invalid members, which the loss mask excludes.
"""

from jaxtyping import Bool, Float
import numpy as np

from evojax.rl import masked

Rewards = Float[np.ndarray, 'P G']
Flags = Bool[np.ndarray, 'P G']

# In reward units. Smaller differences come from rounding a float32 sum of
# parts.
MIN_STD = 1e-3


def keep_all(rewards: Rewards, outcomes: Flags, valid: Flags) -> Flags:
  """Keep every group; see `keep_reward_variance` for the arguments."""
  del rewards, outcomes
  return np.ones_like(valid)


def keep_reward_variance(
    rewards: Rewards, outcomes: Flags, valid: Flags
) -> Flags:
  """Keep groups whose rewards differ by more than rounding.

  Args:
    rewards: float [P, G], finite where valid.
    outcomes: bool [P, G], solved or not; unused.
    valid: bool [P, G]. False members do not count.

  Returns:
    bool [P, G], equal along G: the standard deviation (divisor n) over valid
    members exceeds 1e-3.
  """
  del outcomes
  return _varies(rewards, valid)


def keep_outcome_variance(
    rewards: Rewards, outcomes: Flags, valid: Flags
) -> Flags:
  """Keep groups with a solved and an unsolved member, whatever the shaping.

  0 < number solved < number valid (DAPO: Yu et al. 2025, arXiv:2503.14476,
  Eq. 11). See `keep_reward_variance` for the arguments; rewards are unused.
  """
  del rewards
  return _varies(outcomes.astype(np.float32), valid)


def _varies(x, valid):
  """Return bool [P, G]: whether std of the group's valid x exceeds MIN_STD."""
  # In float64: squares of float32 rewards near 1 would lose small spreads.
  x = x.astype(np.float64)
  mean = masked.masked_mean(x, valid, 1, keepdims=True)
  variance = masked.masked_mean((x - mean) ** 2, valid, 1, keepdims=True)
  return np.repeat(np.sqrt(variance) > MIN_STD, x.shape[1], axis=1)


KEEP = {
    'all': keep_all,
    'reward_variance': keep_reward_variance,
    'outcome_variance': keep_outcome_variance,
}
