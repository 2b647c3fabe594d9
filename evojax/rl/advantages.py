"""Group-relative advantages.

The order is: rewards of all P x G completions -> advantages over the valid
members of each group (here) -> filters drop whole groups (`rl/filters.py`) ->
loss. A filter changes no advantage: a dropped group leaves the loss mask, and
hence the denominator too, and its advantages are only logged.

Every estimator maps (rewards [P, G], valid [P, G]) to float32 [P, G], 0 where
invalid or where the group has fewer than two valid members. JAX arrays give JAX
arrays and NumPy arrays give NumPy arrays, so that the host can log the very
array that trains.
"""

from jaxtyping import Bool, Float, Float32, Int

from evojax.rl import masked

Rewards = Float[masked.AnyArray, 'P G']
Valid = Bool[masked.AnyArray, 'P G']
Advantages = Float32[masked.AnyArray, 'P G']


def group_norm(
    rewards: Rewards, valid: Valid, *, eps: float = 1e-6
) -> Advantages:
  """Centre and scale rewards within each group.

  A_pg = (r_pg - mean_g r) / (std_g r + eps), over valid g only
  (GRPO: Shao et al. 2024, arXiv:2402.03300, Sec. 4.1.2). std is the sample
  standard deviation (divisor n - 1), as in TRL, verl and tunix.

  Args:
    rewards: float [P, G], finite where valid.
    valid: bool [P, G]. False leaves a completion out (grading failed, ...).
    eps: Added to the standard deviation, in reward units. Must be > 0.

  Returns:
    float32 [P, G]; 0 where invalid or the group has fewer than two valid.
    Exactly 0 in a group of equal rewards.

  Raises:
    ValueError: If G < 2, the shapes differ or eps <= 0.
  """
  if eps <= 0:
    raise ValueError(f'{eps=} must be > 0.')
  xp = masked.array_namespace(rewards)
  centred, count = _centre(rewards, valid)
  squares = (centred * centred).sum(axis=1, keepdims=True)
  std = xp.sqrt(squares / xp.maximum(count - 1, 1))
  return centred / (std + eps)


def group_mean(rewards: Rewards, valid: Valid) -> Advantages:
  """Centre rewards within each group, without dividing by their spread.

  A_pg = r_pg - mean_g r, over valid g only (Dr. GRPO: Liu et al. 2025,
  arXiv:2503.20783). Unlike in `group_norm`, groups that are nearly all right or
  all wrong are not scaled up.

  Args:
    rewards: float [P, G], finite where valid.
    valid: bool [P, G]. False leaves a completion out.

  Returns:
    float32 [P, G]; 0 where invalid or the group has fewer than two valid.

  Raises:
    ValueError: If G < 2 or the shapes differ.
  """
  return _centre(rewards, valid)[0]


def leave_one_out(rewards: Rewards, valid: Valid) -> Advantages:
  """Subtract from each reward the mean of the others in its group.

  A_pg = r_pg - mean_{h != g} r_ph = n / (n - 1) * (r_pg - mean_h r_ph), over
  the n valid members (RLOO: Ahmadian et al. 2024, arXiv:2402.14740). Unbiased:
  the baseline does not depend on the completion that it is subtracted from.

  Args:
    rewards: float [P, G], finite where valid.
    valid: bool [P, G]. False leaves a completion out.

  Returns:
    float32 [P, G]; 0 where invalid or the group has fewer than two valid.

  Raises:
    ValueError: If G < 2 or the shapes differ.
  """
  xp = masked.array_namespace(rewards)
  centred, count = _centre(rewards, valid)
  return centred * (count / xp.maximum(count - 1, 1))


def per_turn(
    advantages: Float[masked.AnyArray, 'P G'],
    weights: Float[masked.AnyArray, 'P G A'],
    n_turns: Int[masked.AnyArray, 'P G'],
) -> Float[masked.AnyArray, 'P G A']:
  """Give every turn its share of its episode's advantage.

  A_pga = weights_pga A_pg, and 0 from turn n_turns_pg on, where padding begins.

  Args:
    advantages: float32 [P, G], of whole episodes.
    weights: float32 [P, G, A], credit of each turn, finite.
    n_turns: int32 [P, G], 0..A.

  Returns:
    float32 [P, G, A].
  """
  xp = masked.array_namespace(advantages)
  there = xp.arange(weights.shape[-1]) < n_turns[..., None]
  credit = advantages[..., None] * weights
  return xp.where(there, credit, xp.zeros_like(credit))


def _centre(rewards, valid):
  """Return float32 [P, G] deviations from the group mean, [P, 1] counts."""
  if rewards.shape != valid.shape or rewards.ndim != 2 or rewards.shape[1] < 2:
    raise ValueError(
        f'rewards {rewards.shape} and valid {valid.shape} must share a shape'
        ' [P, G] with G >= 2; set grpo.group_size to 2 or more.'
    )
  xp = masked.array_namespace(rewards)
  rewards = rewards.astype(xp.float32)
  count = valid.sum(axis=1, keepdims=True).astype(xp.float32)
  # Relative to the group's largest reward, the mean of equal rewards (or of
  # one) is exact. Otherwise its rounding over eps would be a phantom advantage.
  floor = xp.finfo(xp.float32).min
  largest = xp.where(valid, rewards, floor).max(axis=1, keepdims=True)
  below = xp.where(valid, rewards - largest, xp.zeros_like(rewards))
  mean = below.sum(axis=1, keepdims=True) / xp.maximum(count, 1)
  return xp.where(valid, below - mean, xp.zeros_like(rewards)), count


ADVANTAGES = {
    'group_norm': group_norm,
    'group_mean': group_mean,
    'leave_one_out': leave_one_out,
}
