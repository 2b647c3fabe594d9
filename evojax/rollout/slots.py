"""The device side of sampling: decode slots, prefill, and a prefix cache.

A fixed number of slots is decoded in lock step; each holds one sequence with
its keys, values and random key. Prompts are prefilled in blocks of rows and
copied into slots. Every array has one shape for the life of the object, so the
programs are compiled once and, at that shape, what a row computes is bit-equal
whatever runs beside it: its key is fold(seed, problem, sample, token), its
cache slot is its position, and every operation is row-wise.

Two ways to prefill. A sampler that trains (`prefill_chunk=0`) runs whole
prompts at once. A service runs them in chunks, each a function of the tokens up
to its end alone, so that a chunk found in the prefix cache is bit-equal to one
that is computed. A row whose prompt is done takes the next one, so that a long
prompt holds up neither those who decode nor those who come after it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evojax import records
from evojax.models import decoder
from evojax.rollout import sampling
from evojax.runtime import sharding

# Bounds of what a request may ask of a service; they are shapes.
MAX_STOP_IDS = 8
MAX_LOGIT_BIAS = 64
MAX_TOP_LOGPROBS = 20


@dataclasses.dataclass(frozen=True)
class Start:
  """A sequence that takes a slot."""

  slot: int
  source: int  # Row of the prefilled block.
  seed: int  # uint32
  problem: int  # uint32
  sample: int
  params: records.SamplingParams
  prior: np.ndarray  # int32 [n], tokens sampled before; they were prefilled.
  top_logprobs: int = 0


@dataclasses.dataclass
class Scores:
  """How probable the L tokens of a prompt are; at 0, nothing is known."""

  logprobs: np.ndarray  # float32 [L]
  top_tokens: np.ndarray  # int32 [L, K]
  top_logprobs: np.ndarray  # float32 [L, K]


@dataclasses.dataclass
class Block:
  """Prompts that are, or are being, prefilled, one per row."""

  prompts: list[tuple[int, ...]]  # (): none.
  # Of a sampler that trains; those of a service are in its `Slots`:
  logits: Any = None  # [R, V] of each prompt's next token.
  cache: Any = None
  # Of a service:
  chunks: list[int] = dataclasses.field(default_factory=list)  # Done, by row.
  scores: dict[int, Scores] = dataclasses.field(default_factory=dict)


class Slots:
  """Device state and the programs over it; one thread at a time."""

  def __init__(
      self,
      cfg: decoder.DecoderConfig,
      *,
      eos_ids: tuple[int, ...],
      max_prompt_tokens: int,
      max_tokens: int,
      decode_slots: int,
      prefill_rows: int,
      prefill_chunk: int = 0,
      prefix_chunks: int = 0,
      context_tokens: int = 0,
      mesh: jax.sharding.Mesh | None = None,
  ):
    """Compiles and allocates nothing yet.

    Args:
      cfg: Shape of the policy.
      eos_ids: Tokens that end a sequence.
      max_prompt_tokens: Lp.
      max_tokens: Lc, most tokens that are sampled of a sequence.
      decode_slots: B, rows decoded at once.
      prefill_rows: R, prompts prefilled at once.
      prefill_chunk: C, tokens of a prompt that are prefilled at once; 0: all
        Lp. Positive, it also brings what only a service asks for: penalties,
        bias, stop tokens, top log-probs.
      prefix_chunks: Chunks that the prefix cache holds; 0: none.
      context_tokens: Prompt and samples together; 0: Lp + Lc. Rounded up to
        whole chunks.
      mesh: Where to run; default: the first device.
    """
    self.cfg = cfg
    self.eos_ids = eos_ids
    self.max_prompt_tokens = max_prompt_tokens
    self.max_tokens = max_tokens
    self.decode_slots = decode_slots
    self.prefill_rows = prefill_rows
    self.chunk = prefill_chunk
    self.prefix_chunks = prefix_chunks
    self.context = context_tokens or max_prompt_tokens + max_tokens
    if prefill_chunk:
      self.context = -(-self.context // prefill_chunk) * prefill_chunk
    self.mesh = mesh or sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    self.params: Any = None
    self._replicated = sharding.replicated(self.mesh)
    self._service = prefill_chunk > 0
    layout = self._layout()
    self._empty = jax.jit(self._empty_state, out_shardings=layout)
    self._prefill = jax.jit(functools.partial(_prefill, cfg))
    self._insert = jax.jit(
        functools.partial(_insert, eos_ids, self._service),
        static_argnums=0,
        donate_argnums=1,
        out_shardings=layout,
    )
    self._decode = jax.jit(
        functools.partial(_decode, cfg, eos_ids, self._service),
        donate_argnums=1,
        out_shardings=layout,
    )
    # Results lie as the arguments do, or the next call would be of another
    # program.
    whole = self._replicated
    chunks = self._chunk_layout()
    self._extend = jax.jit(
        functools.partial(_extend, cfg),
        donate_argnums=(1, 2),
        out_shardings=(chunks, whole),
    )
    self._score = jax.jit(
        functools.partial(_score, cfg),
        donate_argnums=(1, 2),
        out_shardings=(chunks, whole, whole),
    )
    # `partial`, though of nothing: jit counts programs by function, and those
    # of another object are not ours.
    self._recent = jax.jit(functools.partial(_recent), static_argnums=0)
    self._load = jax.jit(
        functools.partial(_load_chunks), donate_argnums=0, out_shardings=chunks
    )
    self._store = jax.jit(
        functools.partial(_store_chunks), donate_argnums=0, out_shardings=chunks
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
    # Made when first needed; every slot is free then.
    self.state: Any = None
    self._work: Any = None  # Keys and values of the rows of a service's block,
    self._logits: Any = None  # and logits [R, V] of their next tokens.
    self._pool: Any = None

  @property
  def programs(self) -> int:
    """Programs compiled so far, but for those that only allocate or cast."""
    sampler = (self._prefill, self._insert, self._decode)
    service = (self._extend, self._score, self._recent, self._load, self._store)
    return sum(f._cache_size() for f in (*sampler, *service))

  def install(self, params: decoder.Params) -> None:
    """Takes weights; see `Engine.update_weights`."""
    self.params = None  # Freed before the new ones are made.
    self.params = (
        params
        if jax.tree.leaves(params)[0].dtype == self.cfg.compute_dtype
        and self.mesh.shape['fsdp'] == 1
        else self._cast(params)
    )

  def lower(self, params: Any) -> Iterator[tuple[str, Any]]:
    """The programs of a sampler that trains, ready to compile; runs nothing.

    Args:
      params: Shapes and places of the weights as they are used.

    Yields:
      'prefill', 'insert' and 'decode', each a `jax.stages.Lowered`.
    """
    whole = self._replicated
    array = lambda shape, dtype: jax.ShapeDtypeStruct(
        shape, dtype, sharding=whole
    )
    like = lambda tree: jax.tree.map(lambda x: array(x.shape, x.dtype), tree)
    rows, slots = self.prefill_rows, self.decode_slots
    prefill = self._prefill.lower(
        params,
        array((rows, self.max_prompt_tokens), jnp.int32),
        array((rows,), jnp.int32),
    )
    yield 'prefill', prefill
    state = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(self._empty_state),
        self._layout(),
    )
    each = array((slots,), jnp.int32)
    yield 'insert', self._insert.lower(
        self.max_prompt_tokens,
        state,
        *like(prefill.out_info),
        each,
        each,
        each,
        array((slots, 0), jnp.int32),
        like(_row_arrays(slots, 0)),
    )
    yield 'decode', self._decode.lower(
        params, state, array((slots,), bool), array((), jnp.int32)
    )

  def free(self) -> None:
    """Gives the memory of caches back; all slots must be free."""
    self.state = self._work = self._logits = self._pool = None

  def warm_up(self, width: int) -> None:
    """Compiles all programs of a service: each runs once, and does nothing.

    Args:
      width: Of `fetch`.
    """
    block = self.open()
    for scored in (False, True):
      self._prefill_chunk(block, (), scored)
    if self.prefix_chunks:
      self.store(())
      self._load_prefixes({})
    nobody = np.zeros(self.decode_slots, np.int32)
    length = 0
    while length < self.context:  # Of the longest prompt of each bucket.
      length = self._bucket(length + 1)
      self._insert_some(block, (), self.prefill_rows, length)
    self.decode(nobody == 0, 0)
    for top in (False, True):
      self.fetch(nobody, width, top=top)

  # ------------------------------------------------------------------ prefill

  def prefill(self, prompts: Sequence[tuple[int, ...]]) -> Block:
    """A block of at most R distinct prompts; of a sampler that trains."""
    tokens = np.zeros((self.prefill_rows, self.max_prompt_tokens), np.int32)
    lengths = np.ones(self.prefill_rows, np.int32)
    for r, prompt in enumerate(prompts):
      tokens[r, : len(prompt)] = prompt
      lengths[r] = len(prompt)
    logits, cache = self._call(self._prefill, self.params, tokens, lengths)
    return Block(list(prompts), logits, cache)

  def open(self) -> Block:
    """The block of a service, without prompts; there is one at a time."""
    if self._work is None:
      self._work = self._empty_work()
      self._logits = sharding.to_device(
          np.zeros((self.prefill_rows, self.cfg.vocab_size), np.float32),
          self._replicated,
      )
    rows = self.prefill_rows
    return Block([()] * rows, chunks=[0] * rows)

  def begin(
      self,
      block: Block,
      prompts: Mapping[int, tuple[int, ...]],
      cached: Mapping[int, Sequence[int]],
      scored: Collection[int],
  ) -> None:
    """Rows of a service's block take prompts, for `advance` to prefill.

    Args:
      block: From `open`.
      prompts: By row, whose prompt before is dropped; (): it gets none.
      cached: Chunks of the prefix cache that the prompts of rows begin with.
      scored: Rows whose prompts' own log-probs are wanted.
    """
    for r, prompt in prompts.items():
      block.prompts[r] = prompt
      block.chunks[r] = len(cached.get(r, ()))
      block.scores.pop(r, None)
    for r in scored:
      shape = (len(prompts[r]), MAX_TOP_LOGPROBS)
      block.scores[r] = Scores(
          np.zeros(shape[0], np.float32),
          np.zeros(shape, np.int32),
          np.zeros(shape, np.float32),
      )
    if any(cached.values()):
      self._load_prefixes(cached)

  def advance(self, block: Block) -> list[int]:
    """Prefills the next chunk of every prompt of a service's block.

    Returns:
      Rows whose prompts are done by it.
    """
    rows = [
        r
        for r, prompt in enumerate(block.prompts)
        if block.chunks[r] * self.chunk < len(prompt)
    ]
    # Those that are scored are of another program; rows know nothing of each
    # other.
    for scored in (False, True):
      some = [r for r in rows if (r in block.scores) == scored]
      if some:
        self._prefill_chunk(block, some, scored)
    return [
        r for r in rows if block.chunks[r] * self.chunk >= len(block.prompts[r])
    ]

  def wait(self) -> None:
    """Returns when the device has done what `advance` began."""
    jax.block_until_ready(self._logits)

  def _prefill_chunk(
      self, block: Block, rows: Sequence[int], scored: bool
  ) -> None:
    """Prefills the next chunk of some rows."""
    size = self.chunk
    tokens = np.zeros((self.prefill_rows, size), np.int32)
    targets = np.zeros_like(tokens)
    # The other rows write beyond the context.
    start = np.full(self.prefill_rows, self.context, np.int32)
    last = np.full(self.prefill_rows, -1, np.int32)
    for r in rows:
      prompt, begin = block.prompts[r], block.chunks[r] * size
      part = prompt[begin : begin + size]
      tokens[r, : len(part)] = part
      after = prompt[begin + 1 : begin + size + 1]
      targets[r, : len(after)] = after
      start[r] = begin
      if begin + size >= len(prompt):
        last[r] = len(prompt) - 1 - begin
      block.chunks[r] += 1
    args = (self.params, self._work, self._logits, tokens, start, last)
    if not scored:
      self._work, self._logits = self._call(self._extend, *args)
      return
    self._work, self._logits, found = self._call(self._score, *args, targets)
    logprobs, ids, top = sharding.to_host(found)
    for r in rows:
      # The score of a token stands at its own position.
      scores = block.scores[r]
      at = slice(start[r] + 1, start[r] + 1 + size)
      count = len(scores.logprobs[at])
      scores.logprobs[at] = logprobs[r, :count]
      scores.top_tokens[at] = ids[r, :count]
      scores.top_logprobs[at] = top[r, :count]

  def _load_prefixes(self, cached: Mapping[int, Sequence[int]]) -> None:
    """Rows begin with chunks of the prefix cache."""
    ids = np.full(self._chunk_table, -1, np.int32)
    for r, chunks in cached.items():
      ids[r, : len(chunks)] = chunks
    self._work = self._call(self._load, self._work, self._pool, ids)

  def store(self, places: Sequence[tuple[int, int, int]]) -> None:
    """Copies chunks of rows that are prefilled into the prefix cache.

    Args:
      places: (row, chunk of the row, chunk of the cache), the latter distinct.
    """
    if self._pool is None:
      self._pool = self._empty_pool()
    # Beyond the last: nowhere.
    ids = np.full(self._chunk_table, self.prefix_chunks, np.int32)
    for row, chunk, place in places:
      ids[row, chunk] = place
    self._pool = self._call(self._store, self._pool, self._work, ids)

  @property
  def _chunk_table(self) -> tuple[int, int]:
    return self.prefill_rows, self.context // self.chunk

  # ------------------------------------------------------------------- decode

  def insert(self, block: Block, starts: Sequence[Start]) -> None:
    """Sequences take slots; each samples its first token.

    Args:
      block: Whose rows they start from are prefilled.
      starts: As many as there are free slots, at most.
    """
    width = self.prefill_rows if self._service else self.decode_slots
    for first in range(0, len(starts), width):
      some = starts[first : first + width]
      longest = self.max_prompt_tokens
      if self._service:
        longest = max(len(block.prompts[start.source]) for start in some)
        longest = self._bucket(longest)
      self._insert_some(block, some, width, longest)

  def _insert_some(
      self, block: Block, starts: Sequence[Start], width: int, longest: int
  ) -> None:
    if self.state is None:
      self.state = self._empty()
    slot = np.full(width, self.decode_slots, np.int32)  # Beyond the last: none.
    source = np.zeros(width, np.int32)
    length = np.ones(width, np.int32)
    prior = np.zeros((width, self.max_tokens if self._service else 0), np.int32)
    row = _row_arrays(width, self.cfg.vocab_size if self._service else 0)
    for i, s in enumerate(starts):
      slot[i], source[i] = s.slot, s.source
      length[i] = len(block.prompts[s.source])
      self._fill_row(row, i, s)
      if self._service:
        prior[i, : len(s.prior)] = s.prior
    logits, cache = block.logits, block.cache
    if self._service:
      logits, cache = self._logits, self._work
    place = slot, source, length, prior, row
    self.state = self._call(
        self._insert, longest, self.state, logits, cache, *place
    )

  def _fill_row(self, row: dict[str, np.ndarray], i: int, s: Start) -> None:
    p = s.params
    row['seed'][i] = s.seed & 0xFFFFFFFF
    row['problem'][i] = s.problem
    row['sample'][i] = s.sample
    row['limit'][i] = p.max_tokens
    row['temperature'][i] = p.temperature
    row['top_p'][i] = p.top_p
    row['top_k'][i] = p.top_k
    row['min_p'][i] = p.min_p
    row['ignore_eos'][i] = p.ignore_eos
    if not self._service:
      return
    row['count'][i] = len(s.prior)
    row['min_tokens'][i] = p.min_tokens
    row['stop_ids'][i, : len(p.stop_token_ids)] = p.stop_token_ids
    row['frequency'][i] = p.frequency_penalty
    row['presence'][i] = p.presence_penalty
    row['repetition'][i] = p.repetition_penalty
    row['top'][i] = s.top_logprobs
    for j, (token, bias) in enumerate(p.logit_bias):
      row['bias_ids'][i, j], row['bias'][i, j] = token, bias

  def _bucket(self, length: int) -> int:
    """The least power of two of chunks that holds so many tokens."""
    size = self.chunk
    while size < length:
      size *= 2
    return min(size, self.context)

  def decode(self, halted: np.ndarray, steps: int) -> None:
    """At most `steps` tokens for every live row; rows of `halted` stop first.

    Args:
      halted: bool [B]; may not be changed afterwards.
      steps: Fewer are made if no row is live any more.
    """
    self.state = self._call(
        self._decode, self.params, self.state, halted, np.int32(steps)
    )

  def fetch(
      self, start: np.ndarray, width: int, *, top: bool = False
  ) -> dict[str, np.ndarray]:
    """What was sampled, on the host.

    Args:
      start: int32 [B], the first token of each row that is wanted.
      width: W, how many are; few different ones, each is a program.
      top: Whether the most probable tokens are wanted, too.

    Returns:
      done [B], count [B] of all tokens, tokens [B, W], logprobs [B, W]; with
      `top` also top_tokens and top_logprobs, both [B, W, K].
    """
    names = ['tokens', 'logprobs']
    names += ['top_tokens', 'top_logprobs'] if top else []
    view = {name: self.state[name] for name in names}
    if width < self.max_tokens:
      view = self._call(self._recent, width, view, start)
    view |= {name: self.state[name] for name in ('done', 'count')}
    return sharding.to_host(view)

  # -------------------------------------------------------------------- state

  def _call(self, program: Callable[..., Any], *args: Any) -> Any:
    """Calls a program; host arrays must be equal in every process.

    The program takes them itself: to put twenty small ones first would cost
    ten times as much.
    """
    with jax.transfer_guard_host_to_device('allow'):
      return program(*args)

  def _empty_state(self) -> dict[str, Any]:
    """Slots that are all free."""
    b, lc = self.decode_slots, self.max_tokens
    vocab = self.cfg.vocab_size if self._service else 0
    state = dict(
        cache=decoder.empty_cache(
            self.cfg, b, self.context, self.cfg.compute_dtype
        ),
        token=jnp.zeros(b, jnp.int32),  # Last sampled, not yet in the cache.
        position=jnp.zeros(b, jnp.int32),  # Where `token` goes.
        count=jnp.zeros(b, jnp.int32),  # Tokens sampled.
        done=jnp.ones(b, bool),
        tokens=jnp.zeros((b, lc), jnp.int32),
        logprobs=jnp.zeros((b, lc), jnp.float32),
        row=jax.tree.map(jnp.asarray, _row_arrays(b, vocab)),
        keys=jnp.zeros((b, 2), jnp.uint32),
    )
    if self._service:
      shape = (b, lc, MAX_TOP_LOGPROBS)
      state['top_tokens'] = jnp.zeros(shape, jnp.int32)
      state['top_logprobs'] = jnp.zeros(shape, jnp.float32)
    return state

  def _layout(self) -> dict[str, Any]:
    """Shardings of the state: slots over the batch axes, heads over tensor."""
    shapes = jax.eval_shape(self._empty_state)
    axes = jax.tree.map(lambda _: ('batch',), shapes)
    axes['cache'] = jax.tree.map(lambda _: self._cache_axes, shapes['cache'])
    return sharding.shardings(self.mesh, axes)

  @property
  def _cache_axes(self) -> tuple[str | None, ...]:
    layers = ('layers',) if self.cfg.scan_layers else ()
    return (*layers, 'batch', 'kv_heads', None, None)

  def _chunk_layout(self) -> Any:
    """Shardings of work and pool, whose rows are split as those of slots."""
    return self._layout()['cache']

  def _empty_cache(self, rows: int, slots: int) -> Any:
    """Zeros, rows over the batch axes, heads over tensor."""
    make = lambda: decoder.empty_cache(
        self.cfg, rows, slots, self.cfg.compute_dtype
    )
    return jax.jit(make, out_shardings=self._chunk_layout())()

  def _empty_work(self) -> Any:
    """Keys and values of a block, and room for rows that write nowhere."""
    return self._empty_cache(self.prefill_rows, self.context + self.chunk)

  def _empty_pool(self) -> Any:
    """The prefix cache: its rows are chunks."""
    return self._empty_cache(self.prefix_chunks, self.chunk)


def _row_arrays(rows: int, vocab_size: int) -> dict[str, np.ndarray]:
  """Per-row sampling parameters, as host arrays.

  Args:
    rows: How many.
    vocab_size: Of a service, which has more of them; else 0.
  """
  row = dict(
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
  if vocab_size:
    row |= dict(
        count=np.zeros(rows, np.int32),  # Tokens sampled before the insert.
        min_tokens=np.zeros(rows, np.int32),
        stop_ids=np.full((rows, MAX_STOP_IDS), -1, np.int32),
        frequency=np.zeros(rows, np.float32),
        presence=np.zeros(rows, np.float32),
        repetition=np.ones(rows, np.float32),
        top=np.zeros(rows, np.int32),
        # Beyond the vocabulary: no token.
        bias_ids=np.full((rows, MAX_LOGIT_BIAS), vocab_size, np.int32),
        bias=np.zeros((rows, MAX_LOGIT_BIAS), np.float32),
    )
  return row


# -------------------------------------------------------------------- programs


def _prefill(cfg, params, tokens, lengths):
  """Prompts [R, Lp] -> logits [R, V] of their next token, keys and values."""
  hidden, cache = decoder.prefill(cfg, params, tokens, lengths)
  return decoder.logits(cfg, params, hidden), cache


def _extend(cfg, params, work, logits, tokens, start, last):
  """One chunk: keys, values, and logits [R, V] of rows that end in it."""
  hidden, work = decoder.extend(cfg, params, tokens, start, work)
  picked = jnp.take_along_axis(hidden, last.clip(0)[:, None, None], 1)[:, 0]
  new = decoder.logits(cfg, params, picked)
  return work, jnp.where(last[:, None] >= 0, new, logits)


def _score(cfg, params, work, logits, tokens, start, last, targets):
  """`_extend`, and how probable each target [R, C] is after its token."""
  hidden, work = decoder.extend(cfg, params, tokens, start, work)
  every = decoder.logits(cfg, params, hidden)  # [R, C, V]
  picked = jnp.take_along_axis(every, last.clip(0)[:, None, None], 1)[:, 0]
  logprobs = jax.nn.log_softmax(every)
  of_target = jnp.take_along_axis(logprobs, targets[..., None], -1)[..., 0]
  top, ids = _top(logprobs)
  logits = jnp.where(last[:, None] >= 0, picked, logits)
  return work, logits, (of_target, ids, top)


def _top(logprobs):
  """The MAX_TOP_LOGPROBS best log-probs [..., K] and their tokens."""
  count = min(MAX_TOP_LOGPROBS, logprobs.shape[-1])
  top, ids = jax.lax.top_k(logprobs, count)
  missing = [(0, 0)] * (top.ndim - 1) + [(0, MAX_TOP_LOGPROBS - count)]
  return jnp.pad(top, missing, constant_values=sampling.NEG_INF), jnp.pad(
      ids, missing
  )


def _recent(width, view, start):
  """Columns start[b] .. start[b] + width - 1 of each row b of some arrays."""
  at = start[:, None] + jnp.arange(width)

  def take(x):  # [B, L, ...] -> [B, W, ...]
    index = at.reshape(*at.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index.clip(0, x.shape[1] - 1), 1)

  return jax.tree.map(take, view)


def _load_chunks(work, pool, ids):
  """Rows of `work` begin with the chunks ids [R, N] of the pool; -1 ends."""

  def load(row, chunks):  # [..., R, K, S + C, H], [..., P, K, C, H]
    axis = row.ndim - 4
    found = jnp.take(chunks, ids.clip(0), axis)  # [..., R, N, K, C, H]
    found = jnp.moveaxis(found, axis + 1, axis + 2)  # [..., R, K, N, C, H]
    shape = (*row.shape[:-2], -1, row.shape[-1])
    found = found.reshape(shape)  # [..., R, K, S, H]
    size = chunks.shape[-2]
    known = jnp.repeat(ids >= 0, size, 1)[:, None, :, None]  # [R, 1, S, 1]
    old = jax.lax.slice_in_dim(row, 0, found.shape[-2], axis=row.ndim - 2)
    found = jnp.where(known, found, old)
    return jax.lax.dynamic_update_slice_in_dim(row, found, 0, row.ndim - 2)

  return jax.tree.map(load, work, pool)


def _store_chunks(pool, work, ids):
  """Chunk n of row r of `work` goes to place ids[r, n] of the pool."""

  def store(chunks, row):
    axis = row.ndim - 4
    size = chunks.shape[-2]
    kept = jax.lax.slice_in_dim(row, 0, ids.shape[1] * size, axis=row.ndim - 2)
    shape = (*kept.shape[:-2], ids.shape[1], size, kept.shape[-1])
    kept = jnp.moveaxis(kept.reshape(shape), axis + 2, axis + 1)
    kept = kept.reshape(*kept.shape[:axis], -1, *kept.shape[axis + 2 :])
    where = (slice(None),) * axis + (ids.reshape(-1),)
    return chunks.at[where].set(kept, mode='drop')

  return jax.tree.map(store, pool, work)


def _draw(service, eos_ids, row, keys, count, logits, tokens, live):
  """One sampling step: token and log-prob [B], and of a service the best.

  What only rows that are not `live` ask for is not done; it would be slow.
  """
  if service:
    asks = live & (
        (row['frequency'] != 0)
        | (row['presence'] != 0)
        | (row['repetition'] != 1)
        | (row['bias_ids'][:, 0] < logits.shape[-1])
        | (count < row['min_tokens'])
    )
    # Under a condition: the rest is the same program whoever asks, so that a
    # neighbour's penalty changes no bit of a row.
    logits = jax.lax.cond(
        asks.any(),
        lambda x: _adjust(eos_ids, row, count, x, tokens),
        lambda x: x,
        logits,
    )
  token, logprob = sampling.sample(
      logits,
      keys,
      count,
      temperature=row['temperature'],
      top_p=jnp.where(live, row['top_p'], 1.0),
      top_k=jnp.where(live, row['top_k'], -1),
      min_p=jnp.where(live, row['min_p'], 0.0),
  )
  if not service:
    return token, logprob, None
  temperature = jnp.where(row['temperature'] <= 0, 1.0, row['temperature'])
  shape = (len(token), MAX_TOP_LOGPROBS)
  best = jax.lax.cond(
      (live & (row['top'] > 0)).any(),
      lambda x: _top(jax.nn.log_softmax(x / temperature[:, None])),
      lambda _: (jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32)),
      logits,
  )
  return token, logprob, best


def _adjust(eos_ids, row, count, logits, tokens):
  """Penalties for what was sampled before, bias, and no end too soon."""
  batch, vocab = logits.shape
  rows = jnp.arange(batch)[:, None]
  sampled = jnp.arange(tokens.shape[1]) < count[:, None]
  counts = jnp.zeros_like(logits)
  counts = counts.at[rows, jnp.where(sampled, tokens, vocab)].add(
      1, mode='drop'
  )
  seen = counts > 0
  factor = row['repetition'][:, None]
  repeated = jnp.where(logits > 0, logits / factor, logits * factor)
  logits = jnp.where(seen, repeated, logits)
  logits -= row['frequency'][:, None] * counts
  logits -= row['presence'][:, None] * seen
  logits = logits.at[rows, row['bias_ids']].add(row['bias'], mode='drop')
  early = (count < row['min_tokens'])[:, None]
  ends = jnp.broadcast_to(jnp.array(eos_ids, jnp.int32), (batch, len(eos_ids)))
  ends = jnp.concatenate([ends, row['stop_ids']], 1)
  ends = jnp.where(early & (ends >= 0), ends, vocab)
  return logits.at[rows, ends].set(sampling.NEG_INF, mode='drop')


def _stops(service, eos_ids, row, token):
  """Whether a sampled token ends its sequence, bool [B]."""
  stop = sampling.is_stop(token, eos_ids) & ~row['ignore_eos']
  if service:
    stop |= (token[:, None] == row['stop_ids']).any(1)
  return stop


def _insert(
    eos_ids,
    service,
    longest,
    state,
    logits,
    block,
    slot,
    source,
    length,
    prior,
    row,
):
  """Starts sequences: slot[i] takes prompt source[i] of the block."""
  put = lambda old, new: old.at[slot].set(new.astype(old.dtype), mode='drop')

  def install(slots, rows):  # [..., B, K, S, H], [..., R, K, >= longest, H]
    axis = slots.ndim - 4
    rows = jax.lax.slice_in_dim(rows, 0, longest, axis=rows.ndim - 2)
    rows = jnp.take(rows, source, axis).astype(slots.dtype)
    where = (slice(None),) * axis + (slot, slice(None), slice(0, longest))
    return slots.at[where].set(rows, mode='drop')

  keys = sampling.row_keys(row['seed'], row['problem'], row['sample'])
  count = row['count'] if service else jnp.zeros_like(slot)
  live = slot < len(state['done'])
  token, logprob, best = _draw(
      service, eos_ids, row, keys, count, logits[source], prior, live
  )
  width = state['tokens'].shape[1]
  index = jnp.arange(len(slot))
  tokens = jnp.zeros((len(slot), width), jnp.int32)
  tokens = prior if service else tokens
  tokens = tokens.at[index, count].set(token)
  logprobs = jnp.zeros((len(slot), width)).at[index, count].set(logprob)
  count = count + 1
  done = _stops(service, eos_ids, row, token) | (count >= row['limit'])
  new = dict(
      cache=jax.tree.map(install, state['cache'], block),
      token=put(state['token'], token),
      position=put(state['position'], length),
      count=put(state['count'], count),
      done=put(state['done'], done),
      tokens=put(state['tokens'], tokens),
      logprobs=put(state['logprobs'], logprobs),
      row=jax.tree.map(put, state['row'], row),
      keys=put(state['keys'], keys),
  )
  if service:
    at = lambda name, x: state[name].at[slot, count - 1].set(x, mode='drop')
    new['top_logprobs'] = at('top_logprobs', best[0])
    new['top_tokens'] = at('top_tokens', best[1])
  return new


def _decode(cfg, eos_ids, service, params, state, halted, steps):
  """At most `steps` tokens for every live row; rows of `halted` stop first."""
  row, keys = state['row'], state['keys']
  rows = jnp.arange(state['token'].shape[0])

  def body(carry):
    step, s = carry
    hidden, cache = decoder.decode(
        cfg, params, s['token'], s['position'], s['cache']
    )
    logits = decoder.logits(cfg, params, hidden)
    live = ~s['done']
    token, logprob, best = _draw(
        service, eos_ids, row, keys, s['count'], logits, s['tokens'], live
    )
    count = s['count'] + live
    stop = _stops(service, eos_ids, row, token)
    # A finished row computes on, into a position it already owns: skipping it
    # would change the shape. Its results are dropped.
    at = jnp.where(live, s['count'], s['tokens'].shape[1])
    put = lambda name, x: s[name].at[rows, at].set(x, mode='drop')
    new = dict(
        cache=cache,
        token=jnp.where(live, token, s['token']),
        position=s['position'] + live,
        count=count,
        done=s['done'] | stop | (count >= row['limit']),
        tokens=put('tokens', token),
        logprobs=put('logprobs', logprob),
    )
    if service:
      new['top_logprobs'] = put('top_logprobs', best[0])
      new['top_tokens'] = put('top_tokens', best[1])
    return step + 1, new

  loop = {k: v for k, v in state.items() if k not in ('row', 'keys')}
  loop['done'] |= halted
  _, loop = jax.lax.while_loop(
      lambda carry: (carry[0] < steps) & ~carry[1]['done'].all(),
      body,
      (jnp.int32(0), loop),
  )
  return dict(loop, row=row, keys=keys)
