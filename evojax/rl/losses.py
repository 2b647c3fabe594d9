"""The clipped policy-gradient loss with its variants.

A trainer accumulates gradients over micro-batches inside one jit. For the sum
over micro-batches to be the loss of the whole update, the loss of a micro-batch
is a sum over its tokens divided by a number that belongs to the *update*:

  d = denominator(mask of the whole update, aggregation, max_tokens)
  loss = sum over micro-batches m of policy_loss(m, ..., denominator=d)

and likewise for gradients. An average of averages would weight a token by the
size of its micro-batch. The mask holds sampled tokens of valid completions of
kept groups; dropped ones count neither in the numerator nor in the denominator.
The same holds for tokens that `importance.accepted` rejects.
"""

import dataclasses

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from evojax.rl import importance
from evojax.rl import masked

Scalar = Float[Array, ''] | float

RATIOS = ('token', 'sequence')
AGGREGATIONS = ('token', 'sequence', 'constant')


def count(
    mask: Bool[masked.AnyArray, '*B L'], aggregation: str, max_tokens: int
) -> Float32[masked.AnyArray, '']:
  """Return the number to average over; it is additive over micro-batches.

  'token': masked-in tokens (DAPO, arXiv:2503.14476, Eq. 12). 'sequence':
  sequences with at least one such token (GRPO, arXiv:2402.03300, Eq. 3).
  'constant': that number times max_tokens (Dr. GRPO, arXiv:2503.20783).

  Args:
    mask: bool [*B, L].
    aggregation: One of AGGREGATIONS.
    max_tokens: Limit of sampled tokens per completion, >= 1; 'constant' only.

  Returns:
    float32 scalar >= 0.

  Raises:
    ValueError: If aggregation is unknown.
  """
  if aggregation not in AGGREGATIONS:
    raise ValueError(f'{aggregation=} is not one of {AGGREGATIONS}.')
  xp = masked.array_namespace(mask)
  counted = mask if aggregation == 'token' else mask.any(axis=-1)
  total = counted.sum() * (max_tokens if aggregation == 'constant' else 1)
  return xp.asarray(total, dtype=xp.float32)


def denominator(
    mask: Bool[masked.AnyArray, '*B L'], aggregation: str, max_tokens: int
) -> Float32[masked.AnyArray, '']:
  """Return the divisor for the loss of one optimizer update.

  Args:
    mask: bool [*B, L] of the whole update, all its micro-batches.
    aggregation: See `count`.
    max_tokens: See `count`.

  Returns:
    float32 scalar >= 1, so that an update without tokens has loss 0.

  Raises:
    ValueError: If aggregation is unknown.
  """
  xp = masked.array_namespace(mask)
  return xp.asarray(xp.maximum(count(mask, aggregation, max_tokens), 1))


@dataclasses.dataclass(frozen=True)
class Objective:
  """The clipped surrogate that an update minimises; numbers may be traced."""

  clip_low: Scalar  # In [0, 1): the ratio is bounded below by 1 - clip_low,
  clip_high: Scalar  # and above by 1 + clip_high, >= 0.
  dual_clip: Scalar = 0.0  # > 1 + clip_high; <= 0 turns it off.
  kl_coef: Scalar = 0.0  # >= 0; weight of k3(logprobs, ref_logprobs).
  entropy_coef: Scalar = 0.0  # Weight of a bonus for entropy; < 0 punishes it.
  ratio: str = 'token'  # One of RATIOS.
  # One of AGGREGATIONS. 'token' and 'constant' sum over tokens; 'sequence' sums
  # the means of the sequences over their tokens.
  aggregation: str = 'sequence'

  def __post_init__(self):
    for name, kinds in (('ratio', RATIOS), ('aggregation', AGGREGATIONS)):
      if (kind := getattr(self, name)) not in kinds:
        raise ValueError(f'{name}={kind!r} is not one of {kinds}.')


def policy_loss(
    logprobs: Float[Array, '*B L'],
    old_logprobs: Float[Array, '*B L'],
    advantages: Float[Array, '*B'] | Float[Array, '*B L'],
    mask: Bool[Array, '*B L'],
    objective: Objective,
    *,
    denominator: Scalar,
    weights: Float[Array, '*B L'] | None = None,
    ref_logprobs: Float[Array, '*B L'] | None = None,
    entropy: Float[Array, '*B L'] | None = None,
) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
  """Return the clipped surrogate loss of one micro-batch.

  With the ratio r (see below), per token,

    l = -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
        + kl_coef k3 - entropy_coef H
    for A < 0 with dual_clip c: min(...) becomes max(min(...), c A)

  PPO (Schulman et al. 2017, arXiv:1707.06347, Eq. 7), with separate bounds
  (Clip-Higher: DAPO, arXiv:2503.14476, Eq. 10) and dual clip (Ye et al. 2020,
  arXiv:1912.09729; TRL's `delta`). ratio='token' is GRPO's
  r_t = exp(logprobs - old_logprobs); 'sequence' is GSPO-token (Zheng et al.
  2025, arXiv:2507.18071): r_t has the value of
  s = exp(mean_t(logprobs - old_logprobs)) and the gradient s grad logprobs_t,
  which equals GSPO when the tokens of a sequence share advantage and weight.
  The entropy H is that of A3C (Mnih et al. 2016, arXiv:1602.01783, Sec. 4): its
  gradient is exact at the given states, whose own probabilities stay fixed. A
  negative coefficient sharpens the policy (Agarwal et al. 2025,
  arXiv:2505.15134).

  Args:
    logprobs: float32 [*B, L], current policy, differentiable.
    old_logprobs: float32 [*B, L], trainer's policy at the start of the step;
      stop_gradient(logprobs) in the first epoch, which makes r exactly 1.
    advantages: float32 [*B], one per sequence, or [*B, L], one per token.
    mask: bool [*B, L], tokens in the loss. Other entries may hold anything and
      get gradient 0.
    objective: Bounds, coefficients and the kind of ratio and aggregation.
    denominator: Scalar from `denominator()` on the whole update's mask.
    weights: float32 [*B, L] w, from `importance.importance_weights`.
    ref_logprobs: float32 [*B, L], reference policy, or None without KL term.
    entropy: float32 [*B, L], of the current policy before each token, in nats,
      differentiable; None without that term.

  Returns:
    float32 scalar: this micro-batch's share of the update's loss.
    Metrics without gradient, each a *sum* over masked-in tokens; summed over
    micro-batches and divided by 'tokens' they are means: 'tokens',
    'clip_low', 'clip_high', 'clip_dual' (tokens whose gradient the bound
    removed), 'ratio', 'approx_kl' (k3 of old against current policy); with
    ref_logprobs 'ref_kl'.

  Raises:
    ValueError: If the advantages have neither shape.
  """
  if advantages.shape == mask.shape[:-1]:
    advantages = advantages[..., None]  # [*B, 1]
  elif advantages.shape != mask.shape:
    raise ValueError(
        f'advantages {advantages.shape} must be {mask.shape[:-1]} or'
        f' {mask.shape}, after mask.'
    )
  advantages = jnp.broadcast_to(advantages, mask.shape)

  # Masked before exp, since masked entries could overflow, and 0 * inf is NaN
  # in the backward pass.
  log_ratio = jnp.where(mask, logprobs - old_logprobs, 0.0)
  fixed_log_ratio = jax.lax.stop_gradient(log_ratio)
  if objective.ratio == 'sequence':
    mean = masked.masked_mean(fixed_log_ratio, mask, -1, keepdims=True)
    r = jnp.exp(mean + (log_ratio - fixed_log_ratio))
    token_ratio = jnp.exp(fixed_log_ratio)
  else:
    r = token_ratio = jnp.exp(log_ratio)

  bounded, clipped = _bounded(r, advantages, objective)
  loss = -bounded * advantages
  sums = {
      'tokens': jnp.ones_like(r),
      **clipped,
      'ratio': r,
      'approx_kl': token_ratio - 1 - fixed_log_ratio,
  }
  if weights is not None:
    loss = loss * weights
  if ref_logprobs is not None:
    ref_kl = importance.k3(jnp.where(mask, logprobs, 0.0), ref_logprobs)
    loss = loss + objective.kl_coef * ref_kl
    sums['ref_kl'] = ref_kl
  if entropy is not None:
    loss = loss - objective.entropy_coef * jnp.where(mask, entropy, 0.0)

  loss = _summed(loss, mask, objective.aggregation)
  metrics = {
      name: masked.masked_sum(jax.lax.stop_gradient(x).astype(r.dtype), mask)
      for name, x in sums.items()
  }
  return loss / denominator, metrics


def _summed(loss, mask, aggregation):
  """Return the sum over tokens, or over the sequences' means."""
  if aggregation == 'sequence':
    return jnp.sum(masked.masked_mean(loss, mask, -1))
  return masked.masked_sum(loss, mask)


def _bounded(r, advantages, objective):
  """Return the bounded ratio, and the tokens to which each bound applies.

  min(r A, clip(r) A) is r A with r bounded above where A >= 0 and below where
  A < 0; dual clip also bounds it above there. These are selections instead of
  jnp.minimum, which would halve the gradient at a tie.
  """
  negative = advantages < 0
  dual = jnp.where(objective.dual_clip > 0, objective.dual_clip, jnp.inf)
  below = negative & (r < 1 - objective.clip_low)
  above = (advantages > 0) & (r > 1 + objective.clip_high)
  dual_above = negative & (r > dual)
  bounded = jnp.where(below, 1 - objective.clip_low, r)
  bounded = jnp.where(above, 1 + objective.clip_high, bounded)
  bounded = jnp.where(dual_above, dual, bounded)
  return bounded, dict(clip_low=below, clip_high=above, clip_dual=dual_above)
