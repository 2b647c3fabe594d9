"""Corrections for a sampler that is not the trainer's policy, and KL.

A sampler has its own kernels, its own precision, or older weights, so that its
log-probs differ from those that the trainer computes for the same tokens. Based
on the ratio old / sampler of each token, or of a whole sequence, tokens can be
weighted (`importance_weights`) or left out of the update (`accepted`). Weighted
tokens stay in the denominator of the loss, tokens that are left out do not. A
sequence is an episode; tokens that were not sampled count in neither case.
"""

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float

from evojax.rl import masked

Scalar = Float[Array, ''] | float
Sums = dict[str, Float[Array, '']]

# Level of the weights, and treatment of those beyond the bounds, in TRL's
# terms.
MODES = ('token_truncate', 'token_mask', 'sequence_truncate', 'sequence_mask')
REJECTIONS = ('none', 'token', 'sequence', 'geometric')
# Bound on the absolute log-ratios, as in verl, so that no ratio is infinite.
LOG_BOUND = 20.0


def _log_ratios(
    old_logprobs: Float[Array, '*B L'],
    sampler_logprobs: Float[Array, '*B L'],
    mask: Bool[Array, '*B L'],
    level: str = 'token',
) -> Float[Array, '*B _']:
  """Return log(old / sampler) of tokens [*B, L], or of sequences [*B, 1].

  Args:
    old_logprobs: float [*B, L].
    sampler_logprobs: float [*B, L].
    mask: bool [*B, L], sampled tokens; the log-ratio of others is 0.
    level: 'token', 'sequence' (the sum over tokens) or 'geometric' (the mean).
  """
  logs = jnp.where(mask, old_logprobs - sampler_logprobs, 0.0)
  if level == 'sequence':
    logs = logs.sum(-1, keepdims=True)
  elif level == 'geometric':
    logs = masked.masked_mean(logs, mask, -1, keepdims=True)
  return jnp.clip(logs, -LOG_BOUND, LOG_BOUND)


def importance_weights(
    old_logprobs: Float[Array, '*B L'],
    sampler_logprobs: Float[Array, '*B L'],
    mask: Bool[Array, '*B L'],
    *,
    mode: str,
    cap: Scalar,
    floor: Scalar = 0.0,
) -> tuple[Float[Array, '*B L'], Sums, Float[Array, '']]:
  """Return weights that correct for the sampler's policy, without gradient.

  With r = old / sampler of each token, or the product of these ratios over a
  sequence, which all of its tokens share:

    *_truncate   w = min(max(r, floor), cap)
    *_mask       w = r if floor <= r <= cap, else 0

  token_truncate is truncated importance sampling (Yao et al. 2025,
  https://fengyao.notion.site/off-policy-rl; truncation: Ionides 2008) and
  verl's `rollout_is`; the four are TRL's `vllm_importance_sampling_mode`.
  token_mask is IcePop (arXiv:2510.18855), sequence_mask the masked sequence
  weights of Liu et al. 2025 (https://richardli.xyz/rl-collapse). The product is
  unbiased until it is bounded, but its variance grows with the length; a
  token's own ratio ignores that the tokens before it came from another policy.

  Args:
    old_logprobs: float [*B, L], trainer's, at the start of the step.
    sampler_logprobs: float [*B, L], returned by the rollout service.
    mask: bool [*B, L], sampled tokens. Elsewhere the weight is 1.
    mode: One of MODES.
    cap: float32 scalar, traced; <= 0 turns the correction off: weights are 1.
    floor: float32 scalar, traced, below cap; 0 bounds nothing.

  Returns:
    float [*B, L], in [0, cap]; 1 where off, and where the mask is False.
    Sums over the tokens of the mask: 'weight', 'weight_square', 'bounded'
    (tokens with a ratio beyond the bounds), 'bounded_sequences' (sequences with
    such a token). The largest r of a token, before floor and cap; 0 where off.

  Raises:
    ValueError: If mode is unknown.
  """
  if mode not in MODES:
    raise ValueError(f'{mode=} is not one of {MODES}.')
  level, edge = mode.split('_')
  used = mask & (cap > 0)
  logs = _log_ratios(old_logprobs, sampler_logprobs, used, level)
  r = jnp.exp(jax.lax.stop_gradient(logs))
  bounded = used & ((r < floor) | (r > cap))
  if edge == 'truncate':
    weights = jnp.clip(r, floor, cap)
  else:
    weights = jnp.where(bounded, 0.0, r)
  weights = jnp.where(used, weights, 1.0)
  sums = {
      'weight': masked.masked_sum(weights, mask),
      'weight_square': masked.masked_sum(jnp.square(weights), mask),
      'bounded': bounded.sum(),
      'bounded_sequences': bounded.any(-1).sum(),
  }
  sums = {name: x.astype(weights.dtype) for name, x in sums.items()}
  return weights, sums, jnp.max(jnp.where(used, r, 0.0))


def accepted(
    old_logprobs: Float[Array, '*B L'],
    sampler_logprobs: Float[Array, '*B L'],
    mask: Bool[Array, '*B L'],
    *,
    level: str,
    low: Scalar,
    high: Scalar,
    veto: Scalar = 0.0,
) -> Bool[Array, '*B L']:
  """Return the tokens whose ratios are within bounds, to train on.

  The rejection of verl's rollout correction (`rollout_rs` with the bounds
  `rollout_rs_threshold` and `rollout_rs_threshold_lower`, and
  `rollout_token_veto_threshold`; https://richardli.xyz/rl-collapse): low <=
  old / sampler <= high, for each token, for the product over a sequence, or
  for the geometric mean of its tokens, which does not depend on its length.
  verl's later names token_k1, seq_sum_k1 and seq_mean_k1 bound the inverse.

  Args:
    old_logprobs: float [*B, L], trainer's, at the start of the step.
    sampler_logprobs: float [*B, L], returned by the rollout service.
    mask: bool [*B, L], sampled tokens.
    level: One of REJECTIONS; 'none' leaves the veto alone.
    low: float32 scalar, traced, <= 1.
    high: float32 scalar, traced, >= 1.
    veto: float32 scalar, traced. A sequence with a token whose ratio is below
      it is rejected, whatever its other tokens are; 0 is off.

  Returns:
    bool [*B, L], False where the mask is.

  Raises:
    ValueError: If level is unknown.
  """
  if level not in REJECTIONS:
    raise ValueError(f'{level=} is not one of {REJECTIONS}.')
  pair = old_logprobs, sampler_logprobs, mask
  vetoed = mask & (jnp.exp(_log_ratios(*pair)) < veto)
  kept = mask & ~vetoed.any(-1, keepdims=True)
  if level != 'none':
    r = jnp.exp(_log_ratios(*pair, level))
    kept = kept & (low <= r) & (r <= high)
  return kept


def sampler_kl(
    old_logprobs: Float[Array, '*B L'],
    sampler_logprobs: Float[Array, '*B L'],
    mask: Bool[Array, '*B L'],
) -> Float[Array, '']:
  """Sum over tokens an estimate of KL(sampler || trainer), in nats; see `k3`.

  Args:
    old_logprobs: float [*B, L].
    sampler_logprobs: float [*B, L].
    mask: bool [*B, L], sampled tokens.
  """
  logs = _log_ratios(old_logprobs, sampler_logprobs, mask)
  return jnp.sum(k3(jnp.zeros_like(logs), logs))


def k3(
    logprobs: Float[Array, '*S'], ref_logprobs: Float[Array, '*S']
) -> Float[Array, '*S']:
  """Return r - 1 - log r with p = `logprobs`, q = `ref_logprobs`, in nats.

  With tokens x ~ p and log r = log q(x) - log p(x) it estimates KL(p || q),
  unbiased, with a low variance and never negative (Schulman 2020,
  http://joschu.net/blog/kl-approx.html). It is the KL term of GRPO
  (arXiv:2402.03300, Eq. 4). Its gradient, 1 - r times that of `logprobs`, has
  the expectation of grad KL(q || p), the other direction: that of KL(p || q)
  would also differentiate the sampling of x.
  """
  log_r = ref_logprobs - logprobs
  # Near r = 1, exp(log_r) - 1 would cancel most significant digits.
  return jnp.expm1(log_r) - log_r
