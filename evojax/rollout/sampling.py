"""Drawing the next token, row by row."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

NEG_INF = -1e30


def row_keys(
    seeds: UInt32[Array, 'B'],
    problems: UInt32[Array, 'B'],
    samples: UInt32[Array, 'B'],
) -> UInt32[Array, 'B 2']:
  """Key data of fold(seed, problem, sample) for each row."""

  def one(seed, problem, sample):
    key = jax.random.fold_in(jax.random.key(seed), problem)
    return jax.random.key_data(jax.random.fold_in(key, sample))

  return jax.vmap(one)(seeds, problems, samples)


def _filter(
    logits: Float[Array, 'B V'],
    top_p: Float[Array, 'B'],
    top_k: Int[Array, 'B'],
    min_p: Float[Array, 'B'],
) -> Float[Array, 'B V']:
  """Masks tokens outside top-k, top-p and min-p, applied together.

  Each filter looks at the unfiltered distribution, and the most probable
  token always stays. Ties at a bound are all kept.
  """
  probs = jax.nn.softmax(logits, -1)
  ranked = -jnp.sort(-probs, -1)  # Descending.
  before = jnp.cumsum(ranked, -1) - ranked  # Mass ranked above each token.
  size = logits.shape[-1]
  limit = jnp.where(top_k > 0, jnp.minimum(top_k, size), size)
  keep = (before < top_p[:, None]) & (jnp.arange(size) < limit[:, None])
  last = jnp.maximum(keep.sum(-1), 1) - 1
  floor = jnp.take_along_axis(ranked, last[:, None], -1)
  floor = jnp.maximum(floor, min_p[:, None] * ranked[:, :1])
  return jnp.where(probs >= floor, logits, NEG_INF)


def sample(
    logits: Float[Array, 'B V'],
    keys: UInt32[Array, 'B 2'],
    step: Int[Array, 'B'],
    *,
    temperature: Float[Array, 'B'],
    top_p: Float[Array, 'B'],
    top_k: Int[Array, 'B'],
    min_p: Float[Array, 'B'],
) -> tuple[Int[Array, 'B'], Float[Array, 'B']]:
  """Draws one token per row by the Gumbel-max trick.

  Args:
    logits: float32, unscaled.
    keys: Key data of each row.
    step: int32, tokens the row has sampled so far; folded into its key.
    temperature: 0 is greedy, with log-probs at temperature 1.
    top_p: (0, 1]; 1 is off.
    top_k: <= 0 is off.
    min_p: [0, 1); 0 is off.

  Returns:
    Tokens, and their log-probs under softmax(logits / temperature): not
    renormalised for the filters, as SGLang reports them.
  """
  greedy = temperature <= 0
  scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
  # Sorting a vocabulary costs more than a small model's step: the branch runs
  # only when some row asks for it.
  filtered = jax.lax.cond(
      jnp.any((top_p < 1) | (top_k > 0) | (min_p > 0)),
      lambda x: _filter(x, top_p, top_k, min_p),
      lambda x: x,
      scaled,
  )

  def noise(key, step):
    key = jax.random.fold_in(jax.random.wrap_key_data(key), step)
    return jax.random.gumbel(key, (logits.shape[-1],))

  noise = jnp.where(greedy[:, None], 0.0, jax.vmap(noise)(keys, step))
  tokens = jnp.argmax(filtered + noise, -1)
  chosen = jnp.take_along_axis(scaled, tokens[:, None], -1)[:, 0]
  return tokens, chosen - jax.nn.logsumexp(scaled, -1)


def is_stop(
    tokens: Int[Array, 'B'], eos_ids: tuple[int, ...]
) -> Bool[Array, 'B']:
  """Whether each token ends its sequence."""
  stop = jnp.zeros(tokens.shape, bool)
  for eos in eos_ids:
    stop |= tokens == eos
  return stop
