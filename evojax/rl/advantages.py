"""Group-relative advantages.

Order of things: rewards of all P x G completions -> advantages over the valid
members of each group (here) -> filters drop whole groups (`rl/filters.py`) ->
loss. A filter never changes the advantage of a group that it keeps; a dropped
group gets advantage 0 and leaves the loss mask, hence also the denominator.

Every estimator: (rewards [P, G], valid [P, G]) -> float32 [P, G], 0 where
invalid or where the group has fewer than two valid members. JAX in, JAX out;
NumPy in, NumPy out, so that the host can log the very array that trains.

An estimator centres the rewards of each group and scales the deviations. The
scales stand alone in SCALES, for callers that lay out many groups at once.
"""

from typing import Any

from jaxtyping import Bool, Float, Float32, Int

from evojax.rl import masked


def group_norm(
    rewards: Float[masked.AnyArray, 'P G'],
    valid: Bool[masked.AnyArray, 'P G'],
    *,
    eps: float = 1e-6,
) -> Float32[masked.AnyArray, 'P G']:
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
  return _scaled(rewards, valid, lambda *given: by_std(*given, eps=eps))


def group_mean(
    rewards: Float[masked.AnyArray, 'P G'], valid: Bool[masked.AnyArray, 'P G']
) -> Float32[masked.AnyArray, 'P G']:
  """Centre rewards within each group, without dividing by their spread.

  A_pg = r_pg - mean_g r, over valid g only (Dr. GRPO: Liu et al. 2025,
  arXiv:2503.20783). Groups that are nearly all right or wrong get no boost.

  Args:
    rewards: float [P, G], finite where valid.
    valid: bool [P, G]. False leaves a completion out.

  Returns:
    float32 [P, G]; 0 where invalid or the group has fewer than two valid.

  Raises:
    ValueError: If G < 2 or the shapes differ.
  """
  return _scaled(rewards, valid, unscaled)


def leave_one_out(
    rewards: Float[masked.AnyArray, 'P G'], valid: Bool[masked.AnyArray, 'P G']
) -> Float32[masked.AnyArray, 'P G']:
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
  return _scaled(rewards, valid, by_count)


def by_std(
    deviations: Any, squares: Any, count: Any, *, eps: float = 1e-6
) -> Any:
  """Divide deviations by the sample standard deviation of their group.

  Args:
    deviations: float32, rewards minus the mean of their group; 0 where invalid.
    squares: float32, sum of a group's squared deviations.
    count: float32, valid members of a group. Both broadcast to `deviations`.
    eps: Added to the standard deviation, in reward units.

  Returns:
    float32, shaped as `deviations`.
  """
  xp = masked.array_namespace(deviations)
  return deviations / (xp.sqrt(squares / xp.maximum(count - 1, 1)) + eps)


def unscaled(deviations: Any, squares: Any, count: Any) -> Any:
  """Return the deviations as they are; see `by_std` for the arguments."""
  del squares, count
  return deviations


def by_count(deviations: Any, squares: Any, count: Any) -> Any:
  """Multiply deviations by n / (n - 1); see `by_std` for the arguments."""
  del squares
  xp = masked.array_namespace(deviations)
  return deviations * (count / xp.maximum(count - 1, 1))


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
  """
  xp = masked.array_namespace(advantages)
  there = xp.arange(weights.shape[-1]) < n_turns[..., None]
  credit = advantages[..., None] * weights
  return xp.where(there, credit, xp.zeros_like(credit))


def _scaled(rewards, valid, scale):
  """Return float32 [P, G], scaled deviations from the mean of the group."""
  centred, count = _centre(rewards, valid)
  squares = (centred * centred).sum(axis=1, keepdims=True)
  return scale(centred, squares, count)


def _centre(rewards, valid):
  """Return float32 [P, G] deviations from the group's mean, [P, 1] counts."""
  if rewards.shape != valid.shape or rewards.ndim != 2 or rewards.shape[1] < 2:
    raise ValueError(
        f'rewards {rewards.shape} and valid {valid.shape} must share a shape'
        ' [P, G] with G >= 2; set grpo.group_size to 2 or more.'
    )
  xp = masked.array_namespace(rewards)
  rewards = rewards.astype(xp.float32)
  count = valid.sum(axis=1, keepdims=True).astype(xp.float32)
  # Counted from the group's largest reward: the mean of equal rewards (or of
  # one) is then exact. Else its rounding over eps would be a phantom advantage.
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
# By the same names: (deviations, squares, count) -> advantages.
SCALES = {
    'group_norm': by_std,
    'group_mean': unscaled,
    'leave_one_out': by_count,
}
