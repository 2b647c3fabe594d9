"""The device side of sampling: decode slots, prefill, and a prefix cache.

A fixed number of slots is decoded in lock step; each holds one sequence with
its keys, values and random key. Prompts are prefilled in rows, chunk by chunk,
and copied into slots. Every array keeps its shape for the lifetime of the
object, so each program is compiled once; only `insert` is compiled for several
sizes, see `prompt_lengths`. At these shapes the results of a row are bit-equal
whatever the other rows hold, because every operation is row-wise: the row's
random key is fold(seed, problem, sample, token), and a token's place in the
cache is its position.

The keys and values of a chunk depend only on the tokens up to its end, so a
chunk from the prefix cache is bit-equal to a computed one. A row whose prompt
is done takes the next prompt, so a long prompt delays neither decoding nor the
prompts behind it. By default, a chunk is a whole prompt.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import cache as cache_lib
from evojax.models import decoder
from evojax.rollout import programs as programs_lib
from evojax.rollout import sampling
from evojax.rollout import service
from evojax.runtime import sharding


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Sizes of the sampler's arrays, fixed for its lifetime."""

  max_prompt_tokens: int  # Lp, the longest sequence that is prefilled.
  max_tokens: int  # Lc, maximum number of sampled tokens per sequence.
  decode_slots: int  # B, sequences decoded at once.
  prefill_rows: int  # R, prompts prefilled at once.
  prefill_chunk: int = 0  # Tokens of a prompt prefilled at once; 0: all.
  prefix_chunks: int = 0  # Chunks that the prefix cache can hold.
  context_tokens: int = 0  # Most tokens of prompt and samples; 0: Lp + Lc.

  @property
  def chunk(self) -> int:
    """C, tokens of a prompt that are prefilled at once."""
    return self.prefill_chunk or self.max_prompt_tokens

  @property
  def row_chunks(self) -> int:
    """Number of chunks of the longest prompt."""
    return -(-self.max_prompt_tokens // self.chunk)

  @property
  def context(self) -> int:
    """S, the number of tokens that fit into a decode slot."""
    return self.context_tokens or self.max_prompt_tokens + self.max_tokens


@dataclasses.dataclass(frozen=True)
class Start:
  """A sequence that starts in a slot."""

  slot: int
  source: int  # The row that holds its prefilled prompt.
  job: service.Job
  # int32 [n], tokens that it sampled earlier; they are prefilled, too.
  prior: np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
  """Log-probs of L tokens; the first token of a prompt has zeros instead."""

  logprobs: np.ndarray  # float32 [L]
  best: sampling.Best | None  # [L, K]; None if not requested.


@dataclasses.dataclass
class _Row:
  """A row in which a prompt is prefilled."""

  prompt: tuple[int, ...] = ()  # (): the row is empty.
  chunks: int = 0  # Number of chunks of the prompt that are done.
  scores: Scores | None = None  # Log-probs of the prompt, if requested.


@dataclasses.dataclass(frozen=True)
class Samples:
  """Sampled tokens of all slots, on the host."""

  first: np.ndarray  # int32 [B], index in the row of the token in column 0.
  done: np.ndarray  # bool [B]
  count: np.ndarray  # int32 [B], number of all sampled tokens of the row.
  tokens: np.ndarray  # int32 [B, W]
  logprobs: np.ndarray  # float32 [B, W]
  best: sampling.Best | None  # [B, W, K]


class Slots:
  """The state on the device and its programs, for one thread at a time."""

  def __init__(
      self,
      cfg: decoder.DecoderConfig,
      shapes: Shapes,
      *,
      eos_ids: tuple[int, ...],
      limits: sampling.Limits | None = None,
      mesh: sharding.AnyMesh | None = None,
  ):
    """Prepare the programs; nothing is compiled or allocated yet.

    Args:
      cfg: Shape of the policy.
      shapes: Sizes of the arrays.
      eos_ids: Tokens that end a sequence.
      limits: How many stop tokens, biases and reported log-probs a request may
        ask for. With None, code for these and for penalties is not compiled.
      mesh: Devices that compute; default: the first device.
    """
    self.cfg = cfg
    self.shapes = shapes
    self.eos_ids = eos_ids
    self.limits = limits
    self.mesh = mesh or sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    self.params: Any = None
    self._top = limits.top_logprobs if limits else 0
    self._replicated = sharding.replicated(self.mesh)
    # Allocated when first needed; at first, every slot is free.
    self._state: programs_lib.State | None = None
    self._prefilled: programs_lib.Prefilled | None = None
    self._pool: Any = None  # Keys and values of the prefix cache.
    self._rows = [_Row() for _ in range(shapes.prefill_rows)]
    state, prefilled, pool = layout = self._layout()
    self._empty = jax.jit(self._allocate, out_shardings=layout)

    def jit(function, *fixed, **options):
      # jit counts compiled programs per function. A `partial`, even without
      # arguments, is a new function, so that other objects are not counted.
      return jax.jit(functools.partial(function, *fixed), **options)

    # Results must have the shardings of the arguments; otherwise the next call
    # would compile another program.
    to_rows = dict(donate_argnums=1, out_shardings=prefilled)
    to_state = dict(donate_argnums=1, out_shardings=state)
    scored = to_rows | dict(out_shardings=(prefilled, self._replicated))
    # Every slice prefills all prompts, because sending their keys and values
    # from slice to slice would take far longer.
    whole = sharding.P()
    everywhere = lambda function, count: sharding.per_slice(
        function, self.mesh, (whole,) * count, whole
    )
    prefill = functools.partial(programs_lib.prefill, cfg)
    self._prefill = jit(everywhere(prefill, 3), **to_rows)
    score = functools.partial(programs_lib.score, cfg, self._top)
    self._score = jit(everywhere(score, 4), **scored)
    lengths = dict(static_argnums=0)
    self._insert = jit(programs_lib.insert, eos_ids, **lengths, **to_state)
    self._decode = jit(programs_lib.decode, cfg, eos_ids, **to_state)
    self._recent = jit(programs_lib.recent, **lengths)
    copied = lambda place: dict(donate_argnums=0, out_shardings=place)
    self._load = jit(programs_lib.load_chunks, **copied(prefilled))
    self._store = jit(programs_lib.store_chunks, **copied(pool))
    # Not split by fsdp; otherwise the weights would be gathered for every
    # decoded token.
    axes = decoder.logical_axes(cfg, gathered=True)
    cast = lambda x: x.astype(cfg.compute_dtype)
    self._cast = jax.jit(
        lambda params: jax.tree.map(cast, params),
        out_shardings=sharding.shardings(self.mesh, axes),
    )

  @property
  def programs(self) -> int:
    """Number of compiled programs, except those that only allocate or cast."""
    sampler = (self._prefill, self._score, self._insert, self._decode)
    copies = (self._recent, self._load, self._store)
    return sum(program._cache_size() for program in (*sampler, *copies))

  def install(self, params: decoder.Params) -> None:
    """Install weights; see `Engine.update_weights`."""
    self.params = None  # Free the old weights before the new ones are made.
    self.params = params if self._usable(params) else self._cast(params)

  def _usable(self, params: Any) -> bool:
    """Return whether the programs can use weights as they are stored."""
    same = jax.tree.leaves(params)[0].dtype == self.cfg.compute_dtype
    return same and self.mesh.shape['fsdp'] == 1

  def arrays(self) -> tuple[programs_lib.State, programs_lib.Prefilled, Any]:
    """Return shapes and shardings of slots, rows and prefix cache."""
    return sharding.placed(jax.eval_shape(self._allocate), self._layout())

  def lower(self, stored: Any, params: Any) -> Iterator[tuple[str, Any]]:
    """Lower the programs that training needs, without running them.

    Args:
      stored: Shapes and shardings of the weights that `install` gets.
      params: Shapes and shardings of the weights that the programs use.

    Yields:
      Pairs of a name and a `jax.stages.Lowered`: 'weights' (the program of
      `install`, if it has to convert the weights), 'prefill', 'insert',
      'decode', and with a prefix cache 'load' and 'store'.
    """
    if not self._usable(stored):
      yield 'weights', self._cast.lower(stored)
    whole = lambda tree: sharding.placed(tree, self._replicated)
    state, prefilled, pool = self.arrays()
    chunk = whole(self._chunk(()))
    yield 'prefill', self._prefill.lower(params, prefilled, chunk)
    longest = self._bucket(self.shapes.max_prompt_tokens)
    new = whole(self._insertion(()))
    yield 'insert', self._insert.lower(longest, state, prefilled, new)
    halted = whole(np.zeros(self.shapes.decode_slots, bool))
    steps = whole(np.zeros((), np.int32))
    yield 'decode', self._decode.lower(params, state, halted, steps)
    if pool:
      rows = self.shapes.prefill_rows, self.shapes.row_chunks
      ids = whole(np.zeros(rows, np.int32))
      yield 'load', self._load.lower(prefilled, pool, ids)
      yield 'store', self._store.lower(pool, prefilled, ids)

  def free(self) -> None:
    """Free the memory of all caches; no slot may be in use."""
    self._state = self._prefilled = self._pool = None

  def warm_up(self, width: int) -> None:
    """Compile all programs of a service by running each once, without effect.

    Args:
      width: The width with which `fetch` will be called.
    """
    self._make()
    self._prefill_chunk(())
    self._score_chunk(())
    if self.shapes.prefix_chunks:
      self.store(())
      self._load_prefixes({})
    nobody = np.zeros(self.shapes.decode_slots, np.int32)
    for length in self.prompt_lengths:
      self._insert_some((), length)
    self.decode(nobody == 0, 0)
    for top in (False, True):
      self.fetch(nobody, width, top=top)

  # ------------------------------------------------------------------ prefill

  def assign(
      self,
      prompts: Mapping[int, tuple[int, ...]],
      cached: Mapping[int, Sequence[int]],
      scored: Collection[int],
  ) -> None:
    """Assign prompts to rows; `advance` prefills them.

    Args:
      prompts: Row -> its new prompt, in place of the old one; () empties it.
      cached: Row -> chunks of the prefix cache with which its prompt begins.
      scored: Rows that must return the log-probs of their prompts.
    """
    self._make()
    for r, prompt in prompts.items():
      self._rows[r] = row = _Row(prompt, len(cached.get(r, ())))
      if r in scored:
        shape = len(prompt), self._top
        row.scores = Scores(
            np.zeros(len(prompt), np.float32),
            sampling.Best(np.zeros(shape, np.int32), np.zeros(shape)),
        )
    if any(cached.values()):
      self._load_prefixes(cached)

  def forget_rows(self) -> None:
    """Drop all prompts, because they were prefilled with other weights."""
    self._rows = [_Row() for _ in self._rows]

  def advance(self) -> list[int]:
    """Prefill the next chunk of every row's prompt.

    Returns:
      Rows whose prompts are done now.
    """
    rows = [r for r in range(len(self._rows)) if not self._prefilled_row(r)]
    plain = [r for r in rows if self._rows[r].scores is None]
    scored = [r for r in rows if self._rows[r].scores is not None]
    # Two programs, since the logits of all tokens of a chunk cost far more than
    # those of its last token.
    if plain:
      self._prefill_chunk(plain)
    if scored:
      self._score_chunk(scored)
    for r in rows:
      self._rows[r].chunks += 1
    return [r for r in rows if self._prefilled_row(r)]

  def scores(self, row: int) -> Scores:
    """Return the scores of a row that was assigned with `scored`."""
    return self._rows[row].scores

  def wait(self) -> None:
    """Wait until the device has finished what was called so far."""
    jax.block_until_ready((self._prefilled, self._state))

  def _prefilled_row(self, r: int) -> bool:
    row = self._rows[r]
    return row.chunks * self.shapes.chunk >= len(row.prompt)

  def _prefill_chunk(self, rows: Sequence[int]) -> None:
    self._prefilled = self._call(
        self._prefill, self.params, self._prefilled, self._chunk(rows)
    )

  def _score_chunk(self, rows: Sequence[int]) -> None:
    """Prefill the next chunk of some rows, and store its log-probs."""
    size, chunk = self.shapes.chunk, self._chunk(rows)
    targets = np.zeros_like(chunk.tokens)
    for r in rows:
      after = self._rows[r].prompt[chunk.start[r] + 1 :][:size]
      targets[r, : len(after)] = after
    self._prefilled, found = self._call(
        self._score, self.params, self._prefilled, chunk, targets
    )
    found = jax.tree.leaves(sharding.to_host(found))
    for r in rows:
      # + 1, since each token of a chunk predicts the one after it.
      at = chunk.start[r] + 1
      for all_scores, new in zip(
          jax.tree.leaves(self._rows[r].scores), found, strict=True
      ):
        part = all_scores[at : at + size]
        part[:] = new[r, : len(part)]

  def _chunk(self, rows: Sequence[int]) -> programs_lib.Chunk:
    """Return the next chunk of some rows."""
    shapes, size = self.shapes, self.shapes.chunk
    chunk = programs_lib.Chunk(
        tokens=np.zeros((shapes.prefill_rows, size), np.int32),
        start=np.full(shapes.prefill_rows, shapes.row_chunks * size, np.int32),
        last=np.full(shapes.prefill_rows, -1, np.int32),
    )
    for r in rows:
      row = self._rows[r]
      begin = row.chunks * size
      part = row.prompt[begin : begin + size]
      chunk.tokens[r, : len(part)] = part
      chunk.start[r] = begin
      if begin + size >= len(row.prompt):
        chunk.last[r] = len(row.prompt) - 1 - begin
    return chunk

  def _load_prefixes(self, cached: Mapping[int, Sequence[int]]) -> None:
    """Copy chunks of the prefix cache to the beginnings of rows."""
    shape = self.shapes.prefill_rows, self.shapes.row_chunks
    ids = np.full(shape, -1, np.int32)
    for r, chunks in cached.items():
      ids[r, : len(chunks)] = chunks
    self._prefilled = self._call(self._load, self._prefilled, self._pool, ids)

  def store(self, places: Sequence[tuple[int, int, int]]) -> None:
    """Copy chunks of prefilled rows into the prefix cache.

    Args:
      places: (row, index of a chunk of the row, place in the cache); the places
        are distinct.
    """
    shape = self.shapes.prefill_rows, self.shapes.row_chunks
    # The default is beyond the last place, where nothing is written.
    ids = np.full(shape, self.shapes.prefix_chunks, np.int32)
    for row, chunk, place in places:
      ids[row, chunk] = place
    self._pool = self._call(self._store, self._pool, self._prefilled, ids)

  # ------------------------------------------------------------------- decode

  def insert(self, starts: Sequence[Start]) -> None:
    """Start sequences in slots, and sample the first token of each.

    Args:
      starts: At most as many as there are free slots; their rows must be
        prefilled.
    """
    # At most as many at once as there are rows: a program for all slots would
    # need copies as large as the slots themselves.
    width = self.shapes.prefill_rows
    for first in range(0, len(starts), width):
      some = starts[first : first + width]
      longest = max(len(self._rows[start.source].prompt) for start in some)
      self._insert_some(some, self._bucket(longest))

  def _insert_some(self, starts: Sequence[Start], longest: int) -> None:
    caches, new = (self._state, self._prefilled), self._insertion(starts)
    self._state = self._call(self._insert, longest, *caches, new)

  def _insertion(self, starts: Sequence[Start]) -> programs_lib.Insertion:
    rows, shapes = self.shapes.prefill_rows, self.shapes
    new = programs_lib.Insertion(
        slot=np.full(rows, shapes.decode_slots, np.int32),
        source=np.zeros(rows, np.int32),
        length=np.ones(rows, np.int32),
        count=np.zeros(rows, np.int32),
        prior=np.zeros((rows, shapes.max_tokens), np.int32),
        params=sampling.neutral_params(rows, self.limits),
    )
    for i, start in enumerate(starts):
      new.slot[i], new.source[i] = start.slot, start.source
      new.length[i] = len(self._rows[start.source].prompt)
      new.count[i] = len(start.prior)
      new.prior[i, : len(start.prior)] = start.prior
      sampling.fill(new.params, i, start.job)
    return new

  @property
  def prompt_lengths(self) -> list[int]:
    """Longest prompt of each compiled size of the program `insert`."""
    lengths = [self._bucket(1)]
    while lengths[-1] < self.shapes.max_prompt_tokens:
      lengths.append(self._bucket(lengths[-1] + 1))
    return lengths

  def _bucket(self, length: int) -> int:
    """Return the size of the smallest 2^n chunks that hold `length` tokens.

    The size is at most that of a row, and of a slot.
    """
    size = self.shapes.chunk
    while size < length:
      size *= 2
    row = self.shapes.row_chunks * self.shapes.chunk
    return min(size, row, self.shapes.context)

  def decode(self, halted: np.ndarray, steps: int) -> None:
    """Decode at most `steps` tokens of every live row.

    Args:
      halted: bool [B], rows that end before the first step. The array must not
        be changed afterwards.
      steps: Maximum number of steps; fewer are made if no row is live.
    """
    self._state = self._call(
        self._decode, self.params, self._state, halted, np.int32(steps)
    )

  def fetch(self, start: np.ndarray, width: int, *, top: bool) -> Samples:
    """Return sampled tokens of all slots.

    Args:
      start: int32 [B], index of the first token of each row to return.
      width: W, how many tokens of each row to return. Each different width
        compiles a program. Widths >= Lc return whole rows.
      top: Whether to return the most probable tokens, too.
    """
    s = self._state
    view = s.tokens, s.logprobs, s.best if top else None
    if width < self.shapes.max_tokens:
      view = self._call(self._recent, width, view, start)
    else:
      start = np.zeros_like(start)
    return Samples(start, *sharding.to_host((s.done, s.count, *view)))

  # -------------------------------------------------------------------- state

  def _call(self, program: Callable[..., Any], *args: Any) -> Any:
    """Call a program; host arrays must be equal in every process.

    The host arrays are passed as they are: an explicit transfer of about twenty
    small arrays would take ten times as long.
    """
    with jax.transfer_guard_host_to_device('allow'):
      return program(*args)

  def _make(self) -> None:
    """Allocate all arrays, unless that is done."""
    if self._state is None:
      self._state, self._prefilled, self._pool = self._empty()

  def _allocate(self) -> tuple[Any, ...]:
    """Return free slots, empty rows, and an empty prefix cache."""
    shapes, vocab = self.shapes, self.cfg.vocab_rows
    b, lc = shapes.decode_slots, shapes.max_tokens
    cache = functools.partial(cache_lib.empty, self.cfg)
    top = (b, lc, self._top)
    best = sampling.Best(jnp.zeros(top, jnp.int32), jnp.zeros(top))
    params = sampling.neutral_params(b, self.limits)
    state = programs_lib.State(
        cache=cache(b, shapes.context),
        token=jnp.zeros(b, jnp.int32),
        position=jnp.zeros(b, jnp.int32),
        count=jnp.zeros(b, jnp.int32),
        done=jnp.ones(b, bool),
        tokens=jnp.zeros((b, lc), jnp.int32),
        logprobs=jnp.zeros((b, lc)),
        best=best if self.limits else None,
        params=jax.tree.map(jnp.asarray, params),
        keys=jnp.zeros((b, 2), jnp.uint32),
    )
    rows = shapes.prefill_rows
    prefilled = programs_lib.Prefilled(
        cache(rows, shapes.row_chunks * shapes.chunk), jnp.zeros((rows, vocab))
    )
    pool = shapes.prefix_chunks or None
    return state, prefilled, pool and cache(pool, shapes.chunk)

  def _layout(self) -> tuple[Any, ...]:
    """Return shardings for `_allocate`: rows over batch, heads over tensor."""
    state, prefilled, pool = jax.eval_shape(self._allocate)
    layers = ('layers',) if self.cfg.scan_layers else ()
    axes = lambda rows: (*layers, rows, 'kv_heads', None, None)
    of_cache = lambda cache, rows: jax.tree.map(lambda _: axes(rows), cache)
    by_row = jax.tree.map(lambda _: ('batch',), state)
    return sharding.shardings(
        self.mesh,
        (
            dataclasses.replace(by_row, cache=of_cache(state.cache, 'batch')),
            # Replicated, since slots on any device may read these logits.
            programs_lib.Prefilled(of_cache(prefilled.cache, 'row'), ()),
            of_cache(pool, 'row'),
        ),
    )
