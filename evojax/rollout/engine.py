"""The in-process rollout engine: JAX, a key/value cache, continuous batching.

A fixed number of decode slots runs in lock step on the device. The host
schedules: it prefills prompts in blocks of fixed size, copies a prompt's keys
into the slots of its group, and refills slots whose sequence has ended. Every
array has one shape for the life of the engine, so three programs are compiled
(prefill, insert, decode) and, at that shape, a sample's tokens and log-probs
are bit-equal whatever runs beside it: its key is fold(seed, problem, sample,
token), its cache slot is its position, and every operation is row-wise.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evojax import sharding
from evojax import types
from evojax.models import decoder
from evojax.rollout import sampling

# Decode steps between looks at the text when stop strings are in use.
_STOP_CHECK_STEPS = 16


class Engine:
  """Samples completions with the weights that `update_weights` installed."""

  def __init__(
      self,
      cfg: decoder.DecoderConfig,
      *,
      eos_ids: tuple[int, ...],
      decode_text: Callable[[Sequence[int]], str],
      max_prompt_tokens: int,
      max_tokens: int,
      decode_slots: int,
      prefill_rows: int,
      refill_every: int,
      mesh: jax.sharding.Mesh | None = None,
  ):
    """Compiles nothing yet.

    Args:
      cfg: Shape of the policy.
      eos_ids: Tokens that end a completion.
      decode_text: Token ids -> text without special tokens.
      max_prompt_tokens: Lp. A longer prompt is refused.
      max_tokens: Lc, the upper bound of `SamplingParams.max_tokens`.
      decode_slots: Rows decoded at once.
      prefill_rows: Prompts prefilled at once.
      refill_every: Decode steps between refills; 0 waits for all rows.
      mesh: Where to run; default: the first device.
    """
    self.cfg = cfg
    self.eos_ids = eos_ids
    self.max_prompt_tokens = max_prompt_tokens
    self.max_tokens = max_tokens
    self.decode_slots = decode_slots
    self.prefill_rows = prefill_rows
    self.refill_every = refill_every
    self.policy_version = -1
    self.mesh = mesh or sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    self._decode_text = decode_text
    self._params: Any = None
    layout = self._layout()
    self._empty = jax.jit(self._empty_state, out_shardings=layout)
    self._prefill = jax.jit(functools.partial(_prefill, cfg))
    self._insert = jax.jit(
        functools.partial(_insert, eos_ids),
        donate_argnums=0,
        out_shardings=layout,
    )
    self._decode = jax.jit(
        functools.partial(_decode, cfg, eos_ids),
        donate_argnums=1,
        out_shardings=layout,
    )
    # Whole along fsdp, over which every token would gather them again.
    self._cast = jax.jit(
        lambda params: jax.tree.map(
            lambda x: x.astype(cfg.compute_dtype), params
        ),
        out_shardings=sharding.shardings(
            self.mesh, decoder.logical_axes(cfg, gathered=True)
        ),
    )
    # Made by the first `generate`; every slot is free between two calls.
    self._state: Any = None

  def compilations(self) -> int:
    """Programs compiled so far; bounded by 3 for the life of the engine."""
    return sum(
        f._cache_size() for f in (self._prefill, self._insert, self._decode)
    )

  def update_weights(self, params: decoder.Params, version: int) -> None:
    """Installs weights; keys computed with the old ones are never read again.

    Args:
      params: On the device. The engine keeps references, not copies, where
        their dtype is the compute dtype already and fsdp splits nothing.
      version: Stamped on every completion sampled from now on.
    """
    self._params = None  # Freed before the new ones are made.
    self._params = (
        params
        if jax.tree.leaves(params)[0].dtype == self.cfg.compute_dtype
        and self.mesh.shape['fsdp'] == 1
        else self._cast(params)
    )
    self.policy_version = version

  def generate(
      self, requests: Sequence[types.Request]
  ) -> list[types.Completion]:
    """Samples every request; answers come in the order of the requests.

    Requests with the same prompt should be neighbours: a prompt is prefilled
    once per run of equal prompts.

    Raises:
      ValueError: If a request does not fit the engine's shapes, or no weights
        were installed.
    """
    if self._params is None:
      raise ValueError('Engine.generate before Engine.update_weights.')
    for request in requests:
      self._check(request)
    with sharding.use(self.mesh):
      return _Batch(self, requests).run()

  def _check(self, request: types.Request) -> None:
    n = len(request.prompt_tokens)
    if not 1 <= n <= self.max_prompt_tokens:
      raise ValueError(
          f'prompt of {n} tokens; config.data.max_prompt_tokens is'
          f' {self.max_prompt_tokens}. Raise it or drop the problem.'
      )
    if not 1 <= request.params.max_tokens <= self.max_tokens:
      raise ValueError(
          f'max_tokens={request.params.max_tokens} is outside 1..'
          f'{self.max_tokens} (config.rollout.max_tokens).'
      )

  def _empty_state(self) -> dict[str, Any]:
    """Slots that are all free."""
    b, slots = self.decode_slots, self.max_prompt_tokens + self.max_tokens
    return dict(
        cache=decoder.empty_cache(self.cfg, b, slots, self.cfg.compute_dtype),
        token=jnp.zeros(b, jnp.int32),  # Last sampled, not yet in the cache.
        position=jnp.zeros(b, jnp.int32),  # Where `token` goes.
        count=jnp.zeros(b, jnp.int32),  # Tokens sampled.
        done=jnp.ones(b, bool),
        tokens=jnp.zeros((b, self.max_tokens), jnp.int32),
        logprobs=jnp.zeros((b, self.max_tokens), jnp.float32),
        row=jax.tree.map(jnp.asarray, _row_arrays(b)),
        keys=jnp.zeros((b, 2), jnp.uint32),
    )

  def _layout(self) -> dict[str, Any]:
    """Shardings of the state: slots over the batch axes, heads over tensor."""
    shapes = jax.eval_shape(self._empty_state)
    layers = ('layers',) if self.cfg.scan_layers else ()
    cache = (*layers, 'batch', 'kv_heads', None, None)
    axes = jax.tree.map(lambda _: ('batch',), shapes)
    axes['cache'] = jax.tree.map(lambda _: cache, shapes['cache'])
    return sharding.shardings(self.mesh, axes)


def _row_arrays(rows: int) -> dict[str, Any]:
  """Per-row sampling parameters, as host arrays."""
  return dict(
      seed=np.zeros(rows, np.uint32),
      problem=np.zeros(rows, np.uint32),
      sample=np.zeros(rows, np.uint32),
      limit=np.ones(rows, np.int32),
      temperature=np.ones(rows, np.float32),
      top_p=np.ones(rows, np.float32),
      top_k=np.full(rows, -1, np.int32),
      min_p=np.zeros(rows, np.float32),
      ignore_eos=np.zeros(rows, bool),
  )


def _draw(row, keys, count, logits):
  """One sampling step for every row."""
  return sampling.sample(
      logits,
      keys,
      count,
      temperature=row['temperature'],
      top_p=row['top_p'],
      top_k=row['top_k'],
      min_p=row['min_p'],
  )


def _prefill(cfg, params, tokens, lengths):
  """Prompts [R, Lp] -> logits [R, V] of their next token, keys and values."""
  hidden, cache = decoder.prefill(cfg, params, tokens, lengths)
  return decoder.logits(cfg, params, hidden), cache


def _insert(eos_ids, state, logits, cache, lengths, source, row):
  """Starts sequences: slot b takes prompt source[b] of the block, -1 keeps."""
  new = source >= 0
  source = jnp.maximum(source, 0)

  def install(slots, block):  # [..., B, K, S, H], [..., R, K, Lp, H]
    axis = slots.ndim - 4
    length = block.shape[-2]
    old = jax.lax.slice_in_dim(slots, 0, length, axis=slots.ndim - 2)
    fresh = jnp.take(block, source, axis).astype(slots.dtype)
    chosen = jnp.where(new[:, None, None, None], fresh, old)
    return jax.lax.dynamic_update_slice_in_dim(slots, chosen, 0, slots.ndim - 2)

  pick = lambda new_value, old: jnp.where(
      new.reshape(-1, *(1,) * (old.ndim - 1)), new_value, old
  )
  row = jax.tree.map(pick, row, state['row'])
  keys = pick(
      sampling.row_keys(row['seed'], row['problem'], row['sample']),
      state['keys'],
  )
  zero = jnp.zeros_like(state['count'])
  token, logprob = _draw(row, keys, zero, logits[source])
  stop = sampling.is_stop(token, eos_ids) & ~row['ignore_eos']
  return dict(
      cache=jax.tree.map(install, state['cache'], cache),
      token=pick(token, state['token']),
      position=pick(lengths[source], state['position']),
      count=pick(zero + 1, state['count']),
      done=pick(stop | (row['limit'] <= 1), state['done']),
      tokens=pick(state['tokens'].at[:, 0].set(token), state['tokens']),
      logprobs=pick(state['logprobs'].at[:, 0].set(logprob), state['logprobs']),
      row=row,
      keys=keys,
  )


def _decode(cfg, eos_ids, params, state, halted, steps):
  """At most `steps` tokens for every live row; rows of `halted` stop first."""
  row, keys = state['row'], state['keys']
  rows = jnp.arange(state['token'].shape[0])

  def body(carry):
    step, s = carry
    hidden, cache = decoder.decode(
        cfg, params, s['token'], s['position'], s['cache']
    )
    logits = decoder.logits(cfg, params, hidden)
    token, logprob = _draw(row, keys, s['count'], logits)
    live = ~s['done']
    count = s['count'] + live
    stop = sampling.is_stop(token, eos_ids) & ~row['ignore_eos']
    # A finished row computes on, into a position it already owns: skipping it
    # would change the shape. Its results are dropped.
    at = jnp.where(live, s['count'], s['tokens'].shape[1])
    return step + 1, dict(
        cache=cache,
        token=jnp.where(live, token, s['token']),
        position=s['position'] + live,
        count=count,
        done=s['done'] | stop | (count >= row['limit']),
        tokens=s['tokens'].at[rows, at].set(token, mode='drop'),
        logprobs=s['logprobs'].at[rows, at].set(logprob, mode='drop'),
    )

  loop = {k: v for k, v in state.items() if k not in ('row', 'keys')}
  loop['done'] |= halted
  _, loop = jax.lax.while_loop(
      lambda carry: (carry[0] < steps) & ~carry[1]['done'].all(),
      body,
      (jnp.int32(0), loop),
  )
  return dict(loop, row=row, keys=keys)


class _Batch:
  """The schedule of one `generate` call."""

  def __init__(self, engine: Engine, requests: Sequence[types.Request]):
    self.engine = engine
    self.requests = requests
    self.waiting = list(range(len(requests)))[::-1]  # Popped from the end.
    self.slots: list[int | None] = [None] * engine.decode_slots
    self.halted = np.zeros(engine.decode_slots, bool)
    self.answers: list[types.Completion | None] = [None] * len(requests)
    self.block: dict[tuple[int, ...], int] = {}  # Prompt -> row of the block.
    self.prefilled: Any = None
    self.replicated = sharding.replicated(engine.mesh)
    self.state = engine._empty() if engine._state is None else engine._state
    engine._state = None  # Donated from here on, until `run` gives it back.

  def run(self) -> list[types.Completion]:
    """Alternates refilling and decoding until every request is answered."""
    while self.waiting or any(slot is not None for slot in self.slots):
      self._refill()
      self.state = self.engine._decode(
          self.engine._params,
          self.state,
          self._put(self.halted),
          self._put(np.int32(self._segment())),
      )
      self._collect()
    self.engine._state = self.state
    return self.answers

  def _put(self, x: Any) -> Any:
    return sharding.to_device(x, self.replicated)

  def _segment(self) -> int:
    """Decode steps until the host must look again."""
    live = [self.requests[i] for i in self.slots if i is not None]
    if any(request.params.stop for request in live):
      return self.engine.refill_every or _STOP_CHECK_STEPS
    if self.waiting and self.engine.refill_every:
      return self.engine.refill_every
    return self.engine.max_tokens

  def _refill(self) -> None:
    """Fills free slots with waiting requests, block after block."""
    free = [b for b, slot in enumerate(self.slots) if slot is None]
    while self.waiting and free:
      if self.requests[self.waiting[-1]].prompt_tokens not in self.block:
        self._prefill_block()
      e = self.engine
      source = np.full(e.decode_slots, -1, np.int32)
      row = _row_arrays(e.decode_slots)
      while self.waiting and free:
        request = self.requests[self.waiting[-1]]
        if request.prompt_tokens not in self.block:
          break
        b = free.pop(0)
        self.slots[b] = self.waiting.pop()
        self.halted[b] = False  # That was the slot's previous tenant.
        source[b] = self.block[request.prompt_tokens]
        p = request.params
        for name, value in (
            ('seed', request.seed & 0xFFFFFFFF),
            ('problem', request.problem_key),
            ('sample', request.sample),
            ('limit', p.max_tokens),
            ('temperature', p.temperature),
            ('top_p', p.top_p),
            ('top_k', p.top_k),
            ('min_p', p.min_p),
            ('ignore_eos', p.ignore_eos),
        ):
          row[name][b] = value
      logits, cache, lengths = self.prefilled
      self.state = e._insert(
          self.state, logits, cache, lengths, self._put(source), self._put(row)
      )

  def _prefill_block(self) -> None:
    """Prefills the next distinct prompts of the queue."""
    e = self.engine
    self.block = {}
    for i in reversed(self.waiting):
      prompt = self.requests[i].prompt_tokens
      if prompt not in self.block:
        if len(self.block) == e.prefill_rows:
          break
        self.block[prompt] = len(self.block)
    tokens = np.zeros((e.prefill_rows, e.max_prompt_tokens), np.int32)
    lengths = np.ones(e.prefill_rows, np.int32)
    for prompt, r in self.block.items():
      tokens[r, : len(prompt)] = prompt
      lengths[r] = len(prompt)
    lengths = self._put(lengths)
    logits, cache = e._prefill(e._params, self._put(tokens), lengths)
    self.prefilled = logits, cache, lengths

  def _collect(self) -> None:
    """Answers the requests whose sequence has ended and frees their slots."""
    view = {k: self.state[k] for k in ('done', 'count', 'tokens', 'logprobs')}
    view = sharding.to_host(view)
    self.halted[:] = False
    for b, i in enumerate(self.slots):
      if i is None:
        continue
      tokens = view['tokens'][b, : view['count'][b]]
      stop, text = self._find_stop(self.requests[i], tokens)
      if stop is None and not view['done'][b]:
        continue
      if stop is not None:
        self.halted[b] = True
        tokens = tokens[:stop]
      p = self.requests[i].params
      ended = stop is not None or (
          not p.ignore_eos and tokens[-1] in self.engine.eos_ids
      )
      self.answers[i] = types.Completion(
          tokens=tokens.copy(),
          logprobs=view['logprobs'][b, : len(tokens)].copy(),
          finish_reason='stop' if ended else 'length',
          policy_version=self.engine.policy_version,
          text=self.engine._decode_text(tokens.tolist())
          if text is None
          else text,
      )
      self.slots[b] = None

  def _find_stop(
      self, request: types.Request, tokens: np.ndarray
  ) -> tuple[int | None, str | None]:
    """(tokens up to the first stop string, text before it), or Nones."""
    decode = self.engine._decode_text

    def first(text):
      hits = [text.find(s) for s in request.params.stop]
      return min((h for h in hits if h >= 0), default=None)

    if not request.params.stop or first(decode(tokens.tolist())) is None:
      return None, None
    for n in range(1, len(tokens) + 1):
      text = decode(tokens[:n].tolist())
      at = first(text)
      if at is not None:
        return n, text[:at]
    raise AssertionError('a stop string in the whole text but in no prefix')
