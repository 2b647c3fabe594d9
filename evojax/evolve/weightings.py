"""Rewards of recorded rollouts under thousands of weightings at once.

A reward is linear in its weights, so W weightings of M parts are one matrix
product [W, M] x [M, P * G]. W weightings of P groups are then W * P groups for
the estimators and filters of `rl`, which take any number of groups.
"""

import dataclasses

from jaxtyping import Bool, Float, Float32
import numpy as np

from evojax.rl import advantages as advantages_lib
from evojax.rl import filters

# Number of rewards per block. A block and its copies fit into the cache of a
# processor; a few thousand weightings of a run would not.
_BLOCK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Weightings:
  """Rewards, advantages and statistics of W weightings of P x G rollouts."""

  rewards: Float32[np.ndarray, 'W P G']
  advantages: Float32[np.ndarray, 'W P G']
  # Share of groups whose rewards do not vary, among those with at least two
  # valid members.
  dead_groups: Float32[np.ndarray, 'W']
  # Over groups with a solved and an unsolved member: share of members whose
  # advantage is positive if solved, negative if not. NaN without such groups.
  sign_agreement: Float32[np.ndarray, 'W']
  # Share of sum |advantage| that lies in groups whose outcomes do not vary,
  # where only shaping can cause it. 0 where all advantages are 0.
  phantom_share: Float32[np.ndarray, 'W']


def apply(
    parts: Float32[np.ndarray, 'M P G'],
    weights: Float[np.ndarray, 'W M'],
    outcomes: Bool[np.ndarray, 'P G'],
    valid: Bool[np.ndarray, 'P G'],
    *,
    advantage: str = 'group_norm',
) -> Weightings:
  """Compute rewards, advantages and their statistics under every weighting.

  rewards[w] = sum_m weights[w, m] parts[m], and advantages[w] is the estimator
  of `rl.advantages` on them.

  Args:
    parts: float32 [M, P, G], the reward parts, finite.
    weights: float [W, M].
    outcomes: bool [P, G], solved or not.
    valid: bool [P, G]. False members have advantage 0 and do not count.
    advantage: A name in `rl.advantages.ADVANTAGES`.

  Returns:
    The rewards, advantages and statistics, one row per weighting.

  Raises:
    ValueError: If the advantage is unknown, G < 2 or parts are not finite.
  """
  if advantage not in advantages_lib.ADVANTAGES:
    raise ValueError(
        f'{advantage=} is none of {sorted(advantages_lib.ADVANTAGES)}'
    )
  count, prompts, group = parts.shape
  if group < 2:
    raise ValueError(f'groups of {group}; set grpo.group_size to 2 or more')
  if not np.isfinite(parts).all():
    raise ValueError('parts hold NaN or infinity')
  alive = valid.sum(axis=1) >= 2  # [P]
  mixed = filters.keep_outcome_variance(parts[0], outcomes, valid)
  right = np.where(outcomes, 1, -1) * (mixed & valid)  # [P, G]
  known = np.count_nonzero(right)
  size = max(1, _BLOCK // (prompts * group))
  blocks = []
  for first in range(0, len(weights), size):
    block = weights[first : first + size].astype(np.float32)
    rewards = (block @ parts.reshape(count, -1)).reshape(-1, group)  # [wP, G]
    # The estimators take w weightings of P groups as w * P groups.
    repeated = [np.tile(x, (len(block), 1)) for x in (outcomes, valid)]
    advantages = advantages_lib.ADVANTAGES[advantage](rewards, repeated[1])
    varies = filters.keep_reward_variance(rewards, *repeated)[:, 0]
    advantages = advantages.reshape(-1, prompts, group)
    dead = ~varies.reshape(-1, prompts) & alive
    agree = np.count_nonzero(advantages * right > 0, axis=(1, 2))
    mass = np.abs(advantages)
    total = mass.sum(axis=(1, 2))
    phantom = (mass * ~mixed).sum(axis=(1, 2))
    blocks.append(
        (
            rewards.reshape(advantages.shape),
            advantages,
            dead.sum(axis=1) / max(alive.sum(), 1),
            agree / known if known else np.full(len(block), np.nan),
            phantom / np.where(total, total, 1),
        )
    )
  return Weightings(
      *(np.concatenate(x).astype(np.float32) for x in zip(*blocks, strict=True))
  )
