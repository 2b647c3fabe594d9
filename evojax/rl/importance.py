"""Importance weights and the KL estimator, per token."""

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float

Scalar = Float[Array, ''] | float


def truncated_importance_weights(
    old_logprobs: Float[Array, '*B L'],
    sampler_logprobs: Float[Array, '*B L'],
    mask: Bool[Array, '*B L'],
    cap: Scalar,
) -> Float[Array, '*B L']:
  """Correct for a sampler whose probabilities differ from the trainer's.

  w = min(exp(old_logprobs - sampler_logprobs), cap), without gradient
  (truncated importance sampling: Yao et al. 2025,
  https://fengyao.notion.site/off-policy-rl; truncation: Ionides 2008).

  Args:
    old_logprobs: float [*B, L], trainer's, at the start of the step.
    sampler_logprobs: float [*B, L], returned by the rollout service.
    mask: bool [*B, L], sampled tokens. Elsewhere the weight is 1.
    cap: float32 scalar, traced; <= 0 turns the correction off: weights are 1.

  Returns:
    float [*B, L], in (0, cap], or 1 where off or masked.
  """
  used = mask & (cap > 0)
  log_weights = jnp.where(used, old_logprobs - sampler_logprobs, 0.0)
  weights = jnp.where(used, jnp.minimum(jnp.exp(log_weights), cap), 1.0)
  return jax.lax.stop_gradient(weights)


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
  # Near r = 1, exp(log_r) - 1 would lose the digits that this is about.
  return jnp.expm1(log_r) - log_r
