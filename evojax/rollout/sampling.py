"""Sampling of the next token of every row.

Every operation is row-wise, so that a row's token does not depend on its
neighbours. Slow operations are under a condition on the whole batch: they run
only if a live row requests them, and leave the other rows unchanged.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32
import numpy as np

from evojax.rollout import service

NEG_INF = -1e30
# An index beyond every vocabulary; scatters drop values with this index.
_NOWHERE = np.iinfo(np.int32).max
# Fields of `records.SamplingParams` that are also fields of `Params`.
_SAMPLED = (
    'max_tokens',
    'temperature',
    'top_p',
    'top_k',
    'min_p',
    'ignore_eos',
)
# Fields of `records.SamplingParams` that are also fields of `Adjustments`, and
# all fields that need `Adjustments`.
_PENALTIES = ('frequency_penalty', 'presence_penalty', 'repetition_penalty')
_CHANGED = ('min_tokens', *_PENALTIES)
ADJUSTED = (*_CHANGED, 'stop_token_ids', 'logit_bias')


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of a request; they are the sizes of compiled arrays."""

  stop_ids: int = 8  # Stop tokens of a request.
  logit_bias: int = 64  # Tokens with a bias.
  top_logprobs: int = 20  # Reported log-probs per token.


def _rows(dtype: type, neutral: int = 0, limit: str = '') -> Any:
  """Declare a field that holds an array [B], or [B, limit] with a limit.

  After JAX maps over the dataclass, the field may hold something else in place
  of the array: a shape, a sharding, or names of axes.

  Args:
    dtype: Dtype of the array.
    neutral: Its value in rows that request nothing special.
    limit: Name of the field of `Limits` that holds the number of entries per
      row; '' for one entry.
  """
  return dataclasses.field(metadata=dict(neutral=dtype(neutral), limit=limit))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adjustments:
  """Changes of the logits of each row before it samples."""

  min_tokens: Any = _rows(np.int32)  # Tokens before a sequence may end.
  stop_ids: Any = _rows(np.int32, -1, 'stop_ids')
  frequency_penalty: Any = _rows(np.float32)
  presence_penalty: Any = _rows(np.float32)
  repetition_penalty: Any = _rows(np.float32, 1)
  bias_ids: Any = _rows(np.int32, _NOWHERE, 'logit_bias')
  bias: Any = _rows(np.float32, 0, 'logit_bias')
  top: Any = _rows(np.int32)  # How many of the best tokens are reported.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
  """Sampling parameters of each row."""

  # The row's random key is derived from these three.
  seed: Any = _rows(np.uint32)
  problem: Any = _rows(np.uint32)
  sample: Any = _rows(np.uint32)
  max_tokens: Any = _rows(np.int32, 1)
  temperature: Any = _rows(np.float32, 1)  # 0 is greedy.
  top_p: Any = _rows(np.float32, 1)  # 1 is off.
  top_k: Any = _rows(np.int32, -1)  # <= 0 is off.
  min_p: Any = _rows(np.float32)  # 0 is off.
  ignore_eos: Any = _rows(np.bool_)
  adjust: Any = None  # Adjustments; with None their code is not compiled.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
  """The K most probable tokens, best first."""

  tokens: Any  # int32 [..., K]
  logprobs: Any  # float32 [..., K]


def neutral_params(rows: int, limits: Limits | None) -> Params:
  """Return host arrays for rows that request nothing special.

  Args:
    rows: B.
    limits: Sizes of the arrays of `Adjustments`; None leaves `adjust` out.
  """

  def make(kind):
    arrays = {}
    for field in filter(lambda f: f.metadata, dataclasses.fields(kind)):
      neutral, limit = field.metadata['neutral'], field.metadata['limit']
      shape = (rows, getattr(limits, limit)) if limit else rows
      arrays[field.name] = np.full(shape, neutral)
    return kind(**arrays)

  params = make(Params)
  return dataclasses.replace(params, adjust=limits and make(Adjustments))


def fill(params: Params, i: int, job: service.Job) -> None:
  """Write the sampling parameters of a job into row i of host arrays."""
  asked, adjust = job.params, params.adjust
  params.seed[i] = job.seed & 0xFFFFFFFF
  params.problem[i], params.sample[i] = job.problem, job.sample
  for name in _SAMPLED:
    getattr(params, name)[i] = getattr(asked, name)
  if adjust is None:
    return
  for name in _CHANGED:
    getattr(adjust, name)[i] = getattr(asked, name)
  adjust.stop_ids[i, : len(asked.stop_token_ids)] = asked.stop_token_ids
  adjust.top[i] = job.top_logprobs
  for j, pair in enumerate(asked.logit_bias):
    adjust.bias_ids[i, j], adjust.bias[i, j] = pair


def row_keys(params: Params) -> UInt32[Array, 'B 2']:
  """Return the key data of fold(seed, problem, sample) for each row."""

  def one(seed, problem, sample):
    key = jax.random.fold_in(jax.random.key(seed), problem)
    return jax.random.key_data(jax.random.fold_in(key, sample))

  return jax.vmap(one)(params.seed, params.problem, params.sample)


def sample(
    params: Params,
    keys: UInt32[Array, 'B 2'],
    count: Int[Array, 'B'],
    logits: Float[Array, 'B V'],
    history: Int[Array, 'B L'],
    live: Bool[Array, 'B'],
    *,
    eos_ids: tuple[int, ...],
    top: int,
) -> tuple[Int[Array, 'B'], Float[Array, 'B'], Best | None]:
  """Sample one token per row by the Gumbel-max trick.

  Args:
    params: Sampling parameters of each row.
    keys: Key data of each row.
    count: int32, tokens that the row has sampled so far; folded into its key.
    logits: float32, not divided by the temperature.
    history: int32, the row's sampled tokens up to `count`; used by penalties.
    live: Rows whose results are used. Work that only other rows request is
      skipped.
    eos_ids: Tokens that end a sequence.
    top: K, how many of the most probable tokens are returned.

  Returns:
    Tokens; their log-probs under softmax(logits / temperature), not
    renormalised after top-k, top-p and min-p, as SGLang reports them; and the
    most probable tokens (None without `params.adjust`). The log-probs of a
    greedy row are those of temperature 1.
  """
  adjust = params.adjust
  if adjust is not None:
    asks = live & (
        (adjust.frequency_penalty != 0)
        | (adjust.presence_penalty != 0)
        | (adjust.repetition_penalty != 1)
        | (adjust.bias_ids[:, 0] < logits.shape[-1])
        | (count < adjust.min_tokens)
    )
    logits = jax.lax.cond(
        asks.any(),
        lambda x: _adjust(adjust, count, x, history, eos_ids),
        lambda x: x,
        logits,
    )
  greedy = params.temperature <= 0
  temperature = jnp.where(greedy, 1.0, params.temperature)[:, None]
  scaled = logits / temperature
  top_p = jnp.where(live, params.top_p, 1.0)
  top_k = jnp.where(live, params.top_k, -1)
  min_p = jnp.where(live, params.min_p, 0.0)
  # Sorting the vocabulary costs more than a decode step of a small model.
  filtered = jax.lax.cond(
      jnp.any((top_p < 1) | (top_k > 0) | (min_p > 0)),
      lambda x: _filter(x, top_p, top_k, min_p),
      lambda x: x,
      scaled,
  )

  def noise(key, step):
    key = jax.random.fold_in(jax.random.wrap_key_data(key), step)
    return jax.random.gumbel(key, (logits.shape[-1],))

  noise = jnp.where(greedy[:, None], 0.0, jax.vmap(noise)(keys, count))
  tokens = jnp.argmax(filtered + noise, -1)
  chosen = jnp.take_along_axis(scaled, tokens[:, None], -1)[:, 0]
  logprobs = chosen - jax.nn.logsumexp(scaled, -1)
  if adjust is None:
    return tokens, logprobs, None
  shape = (len(tokens), top)
  found = jax.lax.cond(
      (live & (adjust.top > 0)).any(),
      lambda x: best(jax.nn.log_softmax(x / temperature), top),
      lambda _: Best(jnp.zeros(shape, jnp.int32), jnp.zeros(shape)),
      logits,
  )
  return tokens, logprobs, found


def ends(
    params: Params, tokens: Int[Array, 'B'], eos_ids: tuple[int, ...]
) -> Bool[Array, 'B']:
  """Return which of the sampled tokens end their sequences."""
  stop = jnp.zeros(tokens.shape, bool)
  for eos in eos_ids:
    stop |= tokens == eos
  stop &= ~params.ignore_eos
  if params.adjust is not None:
    stop |= (tokens[:, None] == params.adjust.stop_ids).any(1)
  return stop


def best(logprobs: Float[Array, '*B V'], count: int) -> Best:
  """Return the `count` best tokens; if V < count, the rest have NEG_INF."""
  found = min(count, logprobs.shape[-1])
  top, ids = jax.lax.top_k(logprobs, found)
  missing = [(0, 0)] * (top.ndim - 1) + [(0, count - found)]
  return Best(
      jnp.pad(ids, missing), jnp.pad(top, missing, constant_values=NEG_INF)
  )


def _filter(logits, top_p, top_k, min_p):
  """Mask the logits [B, V] outside top-k, top-p and min-p of each row.

  Each filter is computed from the unfiltered distribution, and the most
  probable token is always kept. All tokens that tie at a bound are kept.
  """
  probs = jax.nn.softmax(logits, -1)
  ranked = -jnp.sort(-probs, -1)  # Descending.
  before = jnp.cumsum(ranked, -1) - ranked  # Mass ranked above each token.
  size = logits.shape[-1]
  limit = jnp.where(top_k > 0, jnp.minimum(top_k, size), size)
  # top_p = 1 keeps all tokens, even if rounding makes `before` reach 1 early.
  within = (before < top_p[:, None]) | (top_p >= 1)[:, None]
  keep = within & (jnp.arange(size) < limit[:, None])
  last = jnp.maximum(keep.sum(-1), 1) - 1
  floor = jnp.take_along_axis(ranked, last[:, None], -1)
  floor = jnp.maximum(floor, min_p[:, None] * ranked[:, :1])
  return jnp.where(probs >= floor, logits, NEG_INF)


def _adjust(adjust, count, logits, history, eos_ids):
  """Apply the penalties, the bias, and `min_tokens` to logits [B, V].

  The penalties count the first `count` [B] tokens of `history` [B, L].
  """
  batch, vocab = logits.shape
  rows = jnp.arange(batch)[:, None]
  sampled = jnp.arange(history.shape[1]) < count[:, None]
  drawn = jnp.where(sampled, history, vocab)
  counts = jnp.zeros_like(logits).at[rows, drawn].add(1, mode='drop')
  seen = counts > 0
  factor = adjust.repetition_penalty[:, None]
  repeated = jnp.where(logits > 0, logits / factor, logits * factor)
  logits = jnp.where(seen, repeated, logits)
  logits -= adjust.frequency_penalty[:, None] * counts
  logits -= adjust.presence_penalty[:, None] * seen
  logits = logits.at[rows, adjust.bias_ids].add(adjust.bias, mode='drop')
  early = (count < adjust.min_tokens)[:, None]
  eos = jnp.broadcast_to(jnp.array(eos_ids, jnp.int32), (batch, len(eos_ids)))
  stop_ids = jnp.concatenate([eos, adjust.stop_ids], 1)
  stop_ids = jnp.where(early & (stop_ids >= 0), stop_ids, vocab)
  return logits.at[rows, stop_ids].set(NEG_INF, mode='drop')
