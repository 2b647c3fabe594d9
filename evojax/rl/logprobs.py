"""Log-probabilities of given tokens under softmax(logits / T).

The next-token shift of an update's packed rows happens in `shift_targets`; in
the shared layout, `decoder.forward_shared` returns hidden states that are
aligned to their targets already.
"""

import jax
from jax import numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from evojax.runtime import sharding

Scalar = Float[Array, ''] | float


def token_logprobs(
    hidden: Float[Array, '*B D'],
    unembedding: Float[Array, 'V D'],
    targets: Int[Array, '*B'],
    temperature: Scalar,
    *,
    chunk: int = 0,
    with_entropy: bool = False,
    entropy_gradient: bool = False,
    vocab_size: int = 0,
) -> tuple[Float[Array, '*B'], Float[Array, '*B'] | None]:
  """Score one target token per hidden vector.

  logprobs_b = log softmax(hidden_b @ unembedding^T / T)[targets_b].

  Args:
    hidden: float [*B, D], the vectors that predict `targets`; no shift is made.
    unembedding: float [V, D]; V may be sharded. Cast to hidden's dtype.
    targets: int [*B], in [0, V).
    temperature: float32 scalar T > 0, traced.
    chunk: Number of tokens, over all devices, whose logits are held at once in
      the forward and backward pass (logits are computed twice); 0 holds all.
      A chunk takes every k-th token, so that a sharded leading axis stays
      sharded in it; chunk should be a multiple of the number of shards.
    with_entropy: Also returns the entropy, in nats.
    entropy_gradient: The entropy is differentiable, too.
    vocab_size: Number of tokens; further rows of the table are padding and have
      no probability. 0: all rows are tokens.

  Returns:
    float32 [*B] log-probs in nats, differentiable in hidden and unembedding;
    float32 [*B] entropies, or None.

  Raises:
    ValueError: If chunk is negative.
  """
  if chunk < 0:
    raise ValueError(f'{chunk=} must be >= 0; 0 keeps all logits.')
  unembedding = unembedding.astype(hidden.dtype)

  def score(hidden, targets):
    logprobs, entropy = _score(
        hidden, unembedding, targets, temperature, with_entropy, vocab_size
    )
    if with_entropy and not entropy_gradient:
      entropy = jax.lax.stop_gradient(entropy)
    return logprobs, entropy

  if chunk == 0 or chunk >= targets.size:
    return score(hidden, targets)

  chunks = -(-targets.size // chunk)

  def split(x, width):
    x = x.reshape(targets.size, *width)
    padding = ((0, chunks * chunk - targets.size),) + ((0, 0),) * len(width)
    # [tokens, ...] -> [chunks, chunk, ...]: chunk c holds tokens c, c + chunks,
    # ... A contiguous chunk would lie on a single device of a sharded batch.
    x = jnp.pad(x, padding).reshape(chunk, chunks, *width)
    return jnp.moveaxis(x, 1, 0)

  def join(x):
    flat = jnp.moveaxis(x, 0, 1).reshape(-1)
    return flat[: targets.size].reshape(targets.shape)

  # Without the checkpoint, the scan would stack every chunk's logits for the
  # backward pass. prevent_cse is not needed inside a scan.
  score = jax.checkpoint(score, prevent_cse=False)
  pairs = split(hidden, hidden.shape[-1:]), split(targets, ())
  out = jax.lax.map(lambda pair: score(*pair), pairs)
  return jax.tree.map(join, out)


def _score(hidden, unembedding, targets, temperature, with_entropy, vocab_size):
  """Return the result of `token_logprobs`, holding all logits at once."""
  in_float32 = hidden.dtype == jnp.float32
  # D << V, so dividing hidden is cheaper, but only in float32 is its rounding
  # harmless. In bfloat16 the float32 logits are divided instead.
  if in_float32:
    hidden = hidden / temperature
  # Every device scores all tokens of its replica against its part of V. If
  # split by tokens, every chunk would gather the table and reduce its gradient.
  tokens = sharding.per_replica(hidden.ndim - 1)
  hidden = sharding.constrain(hidden, *tokens, None)
  logits = jnp.einsum(
      '...d,vd->...v', hidden, unembedding, preferred_element_type=jnp.float32
  )
  logits = sharding.constrain(logits, *tokens, 'vocab')
  if not in_float32:
    logits = logits / temperature
  if 0 < vocab_size < len(unembedding):
    # Finite, because the entropy multiplies it by a probability of 0.
    logits = jnp.where(jnp.arange(len(unembedding)) < vocab_size, logits, -1e30)
  # One logsumexp, spelled out because the entropy uses its exponentials again.
  peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  weights = jnp.exp(logits - peak)
  total = jnp.sum(weights, axis=-1)
  logsumexp = jnp.squeeze(peak, -1) + jnp.log(total)
  # Taken from the logits: hidden . unembedding[target] would be rounded in
  # another way than the matrix product if that uses bfloat16 passes or TF32,
  # and log-probs above 0 would appear. If V is sharded, XLA turns this gather
  # into a local one and an all-reduce of [*B]; nothing of size V moves.
  target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)
  logprobs = jnp.squeeze(target_logits, -1) - logsumexp
  if not with_entropy:
    return logprobs, None
  mean_logit = jnp.sum(weights * logits, axis=-1) / total
  return logprobs, logsumexp - mean_logit


def shift_targets(
    tokens: Int[Array, 'B L'], segment_ids: Int[Array, 'B L']
) -> tuple[Int[Array, 'B L'], Bool[Array, 'B L']]:
  """Return the token that each position predicts.

  Args:
    tokens: int [B, L].
    segment_ids: int [B, L], 1, 2, ... for the sequences packed in a row, each
      contiguous; 0 is padding.

  Returns:
    int [B, L]: tokens[b, t + 1] at position t (anything where not predicted);
    bool [B, L]: True where t + 1 exists and continues the segment of t.
  """
  targets = jnp.roll(tokens, -1, axis=1)
  before, after = segment_ids[:, :-1], segment_ids[:, 1:]
  continues = (after == before) & (after != 0)
  return targets, jnp.pad(continues, ((0, 0), (0, 1)))


def sequence_logprobs(
    hidden: Float[Array, 'B L D'],
    unembedding: Float[Array, 'V D'],
    tokens: Int[Array, 'B L'],
    segment_ids: Int[Array, 'B L'],
    temperature: Scalar,
    **options: int | bool,
) -> tuple[Float[Array, 'B L'], Float[Array, 'B L'] | None]:
  """Score every token given the tokens before it in its segment.

  Args:
    hidden: float [B, L, D], output of the decoder on `tokens`.
    unembedding: float [V, D].
    tokens: int [B, L].
    segment_ids: int [B, L]; see `shift_targets`.
    temperature: float32 scalar T > 0, traced.
    **options: chunk, with_entropy, entropy_gradient and vocab_size, see
      `token_logprobs`.

  Returns:
    float32 [B, L], aligned to tokens: logprobs[b, t] is
    log p(tokens[b, t] | tokens of the segment before t), 0 at the first token
    of a segment and at padding; the entropy of the same distribution, 0 at the
    same places, or None.
  """
  targets, predicts = shift_targets(tokens, segment_ids)

  def align(x):
    x = jnp.where(predicts, x, jnp.zeros_like(x))
    return jnp.pad(x[:, :-1], ((0, 0), (1, 0)))

  scores = token_logprobs(hidden, unembedding, targets, temperature, **options)
  return jax.tree.map(align, scores)
