"""Thousands of reward weightings of recorded rollouts at once.

A reward is linear in its weights, so W weightings of M parts are one matrix
product [W, M] x [M, P * G]. What follows, advantages and what they say about a
weighting, goes over blocks that stay in the processor's cache.
"""

from collections.abc import Callable
import dataclasses

from jaxtyping import Bool, Float, Float32
import numpy as np

from evojax.rl import filters

_EPS = np.float32(1e-6)
_BLOCK = 1 << 16  # Numbers of one array that are worked on at a time.


@dataclasses.dataclass(frozen=True)
class Weightings:
  """What each of W weightings makes of P x G rollouts."""

  rewards: Float32[np.ndarray, 'W P G']
  advantages: Float32[np.ndarray, 'W P G']
  # Share of groups with at least two valid members whose rewards do not vary.
  dead_groups: Float32[np.ndarray, 'W']
  # Over groups with a solved and an unsolved member: share of members whose
  # advantage is positive if solved, negative if not. NaN without such groups.
  sign_agreement: Float32[np.ndarray, 'W']
  # Share of sum |advantage| in groups whose outcomes do not vary: what shaping
  # alone would teach. 0 where all advantages are 0.
  phantom_share: Float32[np.ndarray, 'W']


def _group_norm(deviations, squares, count):
  std = np.sqrt(squares / np.maximum(count - 1, 1))
  return deviations / (std + _EPS)[:, None]


def _group_mean(deviations, squares, count):
  del squares, count
  return deviations


def _leave_one_out(deviations, squares, count):
  del squares
  return deviations * (count / np.maximum(count - 1, 1))


# As in rl.advantages, of deviations [w, G, P] from the mean of a group, sums of
# their squares [w, P] and the number of valid members [P].
_ADVANTAGES: dict[str, Callable[..., np.ndarray]] = {
    'group_norm': _group_norm,
    'group_mean': _group_mean,
    'leave_one_out': _leave_one_out,
}


def apply(
    parts: Float32[np.ndarray, 'M P G'],
    weights: Float[np.ndarray, 'W M'],
    outcomes: Bool[np.ndarray, 'P G'],
    valid: Bool[np.ndarray, 'P G'],
    *,
    advantage: str = 'group_norm',
) -> Weightings:
  """Rewards, advantages and their statistics under every weighting.

  rewards[w] = sum_m weights[w, m] parts[m] and advantages[w] as
  `rl.advantages` has them, but for the order of float32 sums.

  Args:
    parts: float32 [M, P, G], the reward parts, finite.
    weights: float [W, M].
    outcomes: bool [P, G], solved or not.
    valid: bool [P, G]. False members have advantage 0 and do not count.
    advantage: A name in `rl.advantages.ADVANTAGES`.

  Raises:
    ValueError: If the advantage is unknown, G < 2 or parts are not finite.
  """
  if advantage not in _ADVANTAGES:
    raise ValueError(f'{advantage=} is none of {sorted(_ADVANTAGES)}')
  count_parts, prompts, group = parts.shape
  if group < 2:
    raise ValueError(f'groups of {group}; set grpo.group_size to 2 or more')
  if not np.isfinite(parts).all():
    raise ValueError('parts hold NaN or infinity')
  # Members first, groups last: sums over a group then add whole rows.
  across = np.ascontiguousarray(parts.transpose(0, 2, 1))  # [M, G, P]
  flat = across.reshape(count_parts, -1)
  valid, outcomes = valid.T, outcomes.T  # [G, P]
  count = valid.sum(axis=0).astype(np.float32)  # [P]
  solved = (outcomes & valid).sum(axis=0)
  varies = (solved > 0) & (solved < count)  # [P]
  # +-1 where an advantage has a right sign, else 0.
  right = np.where(varies & valid, np.where(outcomes, 1, -1), 0)
  right = right.astype(np.float32)  # [G, P]
  live = max(np.count_nonzero(count >= 2), 1)
  known = np.count_nonzero(right)

  total = len(weights)
  result = Weightings(
      *(np.empty((total, prompts, group), np.float32) for _ in range(2)),
      *(np.empty(total, np.float32) for _ in range(3)),
  )
  size = max(1, _BLOCK // (prompts * group))
  for first in range(0, total, size):
    block = slice(first, first + size)
    rewards = weights[block].astype(np.float32) @ flat
    rewards = rewards.reshape(-1, group, prompts)  # [w, G, P]
    result.rewards[block] = rewards.transpose(0, 2, 1)

    # From the largest, as in rl.advantages: equal rewards differ by exactly 0.
    if valid.all():
      below = rewards - rewards.max(axis=1, keepdims=True)
    else:
      floor = np.where(valid, rewards, -np.inf).max(axis=1, keepdims=True)
      below = np.where(valid, rewards - floor, np.float32(0))
    mean = below.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    deviations = below - mean
    if not valid.all():
      deviations *= valid
    squares = np.einsum('wgp,wgp->wp', deviations, deviations)
    advantages = _ADVANTAGES[advantage](deviations, squares, count)
    result.advantages[block] = advantages.transpose(0, 2, 1)

    dead = squares <= np.float32(filters.MIN_STD**2) * count
    result.dead_groups[block] = (dead & (count >= 2)).sum(axis=1) / live
    agree = np.count_nonzero(advantages * right > 0, axis=(1, 2))
    result.sign_agreement[block] = agree / known if known else np.nan
    mass = np.abs(advantages).sum(axis=1)  # [w, P]
    all_mass = mass.sum(axis=1)
    phantom = mass[:, ~varies].sum(axis=1)
    result.phantom_share[block] = phantom / np.where(all_mass, all_mass, 1)
  return result
