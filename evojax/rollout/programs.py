"""The compiled programs of the sampler, and the arrays on which they work.

All programs are pure functions; `slots.Slots` compiles and calls them. Axis
letters: B decode slots, R rows in which prompts are prefilled, C tokens of a
chunk, W = chunks * C tokens of such a row, S cache positions of a decode slot,
Lc maximum number of sampled tokens.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from evojax.models import decoder
from evojax.rollout import sampling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """The decode slots, each with one sequence."""

  cache: Any  # Per layer (keys, values), each [B, K, S, H].
  token: Any  # int32 [B], the last sampled token; not yet in the cache.
  position: Any  # int32 [B], position of `token` in the cache.
  count: Any  # int32 [B], number of sampled tokens.
  done: Any  # bool [B]
  tokens: Any  # int32 [B, Lc]
  logprobs: Any  # float32 [B, Lc]
  best: Any  # sampling.Best [B, Lc, K], or None without limits.
  params: Any  # sampling.Params
  keys: Any  # uint32 [B, 2]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefilled:
  """The rows in which prompts are prefilled."""

  cache: Any  # Per layer (keys, values), each [R, K, W, H].
  logits: Any  # float32 [R, V], logits of the token after each prompt.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chunk:
  """The next tokens of some rows; the other rows do not change."""

  tokens: Any  # int32 [R, C]
  # int32 [R], position of the chunk's first token; W: the row does not change.
  start: Any
  # int32 [R], index within the chunk of the prompt's last token; -1: not there.
  last: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Insertion:
  """Sequences that start in decode slots, at most R at once."""

  slot: Any  # int32 [R]; B: no insertion.
  source: Any  # int32 [R], the row that holds the prefilled tokens.
  length: Any  # int32 [R], number of prefilled tokens.
  # int32 [R], how many of them were sampled earlier; the rest is the prompt.
  count: Any
  prior: Any  # int32 [R, Lc], the tokens that were sampled earlier.
  params: Any  # sampling.Params


def prefill(cfg, params, rows: Prefilled, chunk: Chunk) -> Prefilled:
  """Prefill a chunk of some rows; keep the logits of prompts that end in it."""
  hidden, cache = decoder.extend(
      cfg, params, chunk.tokens, chunk.start, rows.cache
  )
  # Only one token's logits are needed, so the matrix product is on [R, D].
  picked = jnp.take_along_axis(hidden, chunk.last.clip(0)[:, None, None], 1)
  new = decoder.logits(cfg, params, picked[:, 0])
  return Prefilled(cache, jnp.where(chunk.last[:, None] >= 0, new, rows.logits))


def score(cfg, top, params, rows: Prefilled, chunk: Chunk, targets):
  """Prefill a chunk, and return log-probs of the target and the best tokens.

  Args:
    cfg: Shape of the policy.
    top: K, how many of the most probable tokens are returned.
    params: Weights of the policy.
    rows: Prompts that are being prefilled; donated.
    chunk: Their next tokens.
    targets: int32 [R, C], the token after each token of the chunk.

  Returns:
    The rows, and a pair: log-probs of the targets, float32 [R, C], and the most
    probable tokens in their places, `sampling.Best` [R, C, K].
  """
  hidden, cache = decoder.extend(
      cfg, params, chunk.tokens, chunk.start, rows.cache
  )
  every = decoder.logits(cfg, params, hidden)  # [R, C, V]
  picked = jnp.take_along_axis(every, chunk.last.clip(0)[:, None, None], 1)
  logits = jnp.where(chunk.last[:, None] >= 0, picked[:, 0], rows.logits)
  logprobs = jax.nn.log_softmax(every)
  of_target = jnp.take_along_axis(logprobs, targets[..., None], -1)[..., 0]
  return Prefilled(cache, logits), (of_target, sampling.best(logprobs, top))


def insert(
    eos_ids, longest: int, state: State, rows: Prefilled, new: Insertion
) -> State:
  """Start sequences in decode slots, and sample the first token of each.

  Args:
    eos_ids: Tokens that end a sequence.
    longest: Number of tokens that are copied from each prefilled row; static,
      since it is a shape.
    state: The decode slots; donated.
    rows: Prefilled prompts.
    new: The slot, the row and the sampling parameters of each sequence.
  """
  slot, source, prior = new.slot, new.source, new.prior
  put = lambda old, x: old.at[slot].set(x.astype(old.dtype), mode='drop')

  def install(slots, layer, kept):  # [*layer, B, K, S, H], [R, K, W, H]
    kept = kept[:, :, :longest][source].astype(slots.dtype)
    return slots.at[*layer, slot, :, :longest].set(kept, mode='drop')

  params = new.params
  keys = sampling.row_keys(params)
  logits, live = rows.logits[source], slot < len(state.done)
  rest = dict(eos_ids=eos_ids, top=_top(state))
  token, logprob, best = sampling.sample(
      params, keys, new.count, logits, prior, live, **rest
  )
  index = jnp.arange(len(slot))
  logprobs = jnp.zeros(prior.shape).at[index, new.count].set(logprob)
  count = new.count + 1
  done = sampling.ends(params, token, eos_ids) | (count >= params.max_tokens)
  return State(
      cache=_copy(install, state.cache, rows.cache),
      token=put(state.token, token),
      position=put(state.position, new.length),
      count=put(state.count, count),
      done=put(state.done, done),
      tokens=put(state.tokens, prior.at[index, new.count].set(token)),
      logprobs=put(state.logprobs, logprobs),
      best=jax.tree.map(
          lambda old, x: old.at[slot, new.count].set(x, mode='drop'),
          state.best,
          best,
      ),
      params=jax.tree.map(put, state.params, params),
      keys=put(state.keys, keys),
  )


def decode(cfg, eos_ids, params, state: State, halted, steps) -> State:
  """Decode at most `steps` tokens of every live row.

  Args:
    cfg: Shape of the policy.
    eos_ids: Tokens that end a sequence.
    params: Weights of the policy.
    state: The decode slots; donated.
    halted: bool [B], rows that end before the first step.
    steps: int32 scalar, traced. The loop ends earlier if no row is live.
  """
  row, keys = state.params, state.keys
  rows = jnp.arange(state.token.shape[0])

  def body(carry):
    step, s = carry
    hidden, cache = decoder.decode(
        cfg, params, s.token, s.position, s.cache, used
    )
    logits = decoder.logits(cfg, params, hidden)
    live = ~s.done
    rest = dict(eos_ids=eos_ids, top=_top(s))
    token, logprob, best = sampling.sample(
        row, keys, s.count, logits, s.tokens, live, **rest
    )
    count = s.count + live
    # A finished row is still computed, because skipping it would change the
    # shape. Its results are dropped; it overwrites its own place in the cache.
    at = jnp.where(live, s.count, s.tokens.shape[1])
    put = lambda old, new: old.at[rows, at].set(new, mode='drop')
    stop = sampling.ends(row, token, eos_ids)
    return step + 1, dataclasses.replace(
        s,
        cache=cache,
        token=jnp.where(live, token, s.token),
        position=s.position + live,
        count=count,
        done=s.done | stop | (count >= row.max_tokens),
        tokens=put(s.tokens, token),
        logprobs=put(s.logprobs, logprob),
        best=jax.tree.map(put, s.best, best),
    )

  # Arrays that no step changes are kept out of the loop's carry.
  done = state.done | halted
  # Once, not in every step: a maximum over slices uses their slow network.
  left = jnp.minimum(steps, row.max_tokens - state.count)
  used = jnp.where(done, 1, state.position + left).max()
  loop = dataclasses.replace(state, done=done, params=None, keys=None)
  _, loop = jax.lax.while_loop(
      lambda carry: (carry[0] < steps) & ~carry[1].done.all(),
      body,
      (jnp.int32(0), loop),
  )
  return dataclasses.replace(loop, params=row, keys=keys)


def _top(state: State) -> int:
  """Return K, how many of the most probable tokens the slots keep."""
  return 0 if state.best is None else state.best.tokens.shape[-1]


def recent(width: int, view: Any, start: jax.Array) -> Any:
  """Return columns start[b] .. start[b] + width - 1 of each row b."""
  at = start[:, None] + jnp.arange(width)

  def take(x):  # [B, L, ...] -> [B, width, ...]
    index = at.reshape(*at.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index.clip(0, x.shape[1] - 1), 1)

  return jax.tree.map(take, view)


def load_chunks(rows: Prefilled, pool: Any, ids: jax.Array) -> Prefilled:
  """Copy chunks of the prefix cache to the beginnings of rows.

  Args:
    rows: The rows; donated.
    pool: Keys and values of the prefix cache, per layer [chunks, K, C, H].
    ids: int32 [R, N], the chunk of the cache to copy to chunk n of row r; where
      it is -1, the row's own chunk stays.
  """

  def load(row, layer, chunks):  # [*layer, R, K, W, H], [pool, K, C, H]
    found = jnp.moveaxis(chunks[ids.clip(0)], 1, 2)  # [R, K, N, C, H]
    known = jnp.repeat(ids >= 0, chunks.shape[-2], 1)[:, None, :, None]
    old = row[layer]
    return row.at[layer].set(jnp.where(known, found.reshape(old.shape), old))

  return dataclasses.replace(rows, cache=_copy(load, rows.cache, pool))


def store_chunks(pool: Any, rows: Prefilled, ids: jax.Array) -> Any:
  """Copy chunk n of row r to place ids[r, n] of the prefix cache."""

  def store(chunks, layer, row):  # [*layer, pool, K, C, H], [R, K, W, H]
    shape = (*row.shape[:-2], ids.shape[1], *chunks.shape[-2:])
    kept = jnp.moveaxis(row.reshape(shape), 2, 1)  # [R, N, K, C, H]
    return chunks.at[*layer, ids].set(kept, mode='drop')

  return _copy(store, pool, rows.cache)


def _copy(write: Callable[..., Any], to: Any, source: Any) -> Any:
  """Copy a cache layer by layer; return the cache that was written to.

  Sequences may move to other devices. For this, a layer of the source is
  gathered on all devices. Stacked layers are copied one at a time, since all of
  them together may be as large as the cache.

  Args:
    write: (to, index, layer) -> `to` after the layer of the source was written
      to it; the index is () or (i,) and precedes the axes of the layer.
    to: Per layer keys and values, or stacks of layers.
    source: The same, to read.
  """

  def one(to, source):
    if source.ndim == 4:
      return write(to, (), source)
    body = lambda i, to: write(to, (i,), source[i])
    return jax.lax.fori_loop(0, len(source), body, to)

  return jax.tree.map(one, to, source)
