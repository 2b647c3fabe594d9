"""The cache of keys and values, from which new tokens attend to earlier ones.

A cache is a pair, keys and values, each [B, K, S, H] for one layer, or
[L, B, K, S, H] for all layers of a stacked decoder: B rows, K key/value heads,
S slots, and H features. Functions that work on one layer take its place in the
cache: (), or (layer,) in stacks.
"""

import functools

import jax
import jax.numpy as jnp

from evojax.models import layer as layer_lib

# A cache with more slots is read in blocks, see `key_block`.
MOST_SLOTS = 512

Cache = tuple[jax.Array, jax.Array]
Place = tuple[()] | tuple[jax.Array]


def empty(
    cfg: layer_lib.DecoderConfig, rows: int, slots: int
) -> Cache | list[Cache]:
  """Return zeros for all layers: a cache per layer, or a stacked one."""
  shape = (rows, cfg.num_kv_heads, slots, cfg.head_dim)
  zeros = functools.partial(jnp.zeros, dtype=cfg.compute_dtype)
  pair = lambda shape: (zeros(shape), zeros(shape))
  if cfg.scan_layers:
    return pair((cfg.num_layers, *shape))
  return [pair(shape) for _ in range(cfg.num_layers)]


def key_block(slots: int) -> int:
  """Return how many slots of a cache are read at once."""
  if slots <= MOST_SLOTS:
    return slots
  # On accelerators every block costs some kernel launches, so there are few
  # blocks.
  return max(128, 1 << ((slots - 1) // 8).bit_length())


def write(
    cache: Cache,
    place: Place,
    new: tuple[jax.Array, jax.Array],
    start: jax.Array,
) -> Cache:
  """Return a cache in which every row has its new tokens.

  Args:
    cache: Keys and values, each [*layers, B, K, S, H].
    place: The layer to write to.
    new: Keys and values of C new tokens per row, each [B, C, K, H].
    start: int32 [B], the slot of the first new token: <= S - C, or S for a row
      that writes nothing.
  """
  slots, axis = cache[0].shape[-2], len(place)
  # A row's scatter has one index, (*place, slot), and writes [K, C, H] there.
  axes = jax.lax.ScatterDimensionNumbers(
      update_window_dims=(0, 1, 2),
      inserted_window_dims=tuple(range(axis)),
      scatter_dims_to_operand_dims=(*range(axis), axis + 1),
  )

  def put_row(row, new, position):  # [*layers, K, S, H], [K, C, H], []
    return jax.lax.scatter(
        row,
        jnp.stack([*place, position]).astype(jnp.int32),
        new,
        axes,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )

  def put(old, new):
    new = new.swapaxes(1, 2).astype(old.dtype)  # [B, K, C, H]
    if new.shape == old.shape:  # The chunk fills the cache: no scatter needed.
      return jnp.where(start[:, None, None, None] < slots, new, old)
    # The scatter that vmap makes can be partitioned along the batch.
    return jax.vmap(put_row, (axis, 0, 0), axis)(old, new, start)

  return put(cache[0], new[0]), put(cache[1], new[1])


def _read(cache, place, start, size):
  """Return slots start .. start + size - 1 of a layer, [B, K, size, H].

  Args:
    cache: Keys or values, [*layers, B, K, S, H].
    place: The layer to read.
    start: int32 scalar.
    size: Number of slots.
  """
  b, k, _, h = cache.shape[-4:]
  shape = *(1,) * len(place), b, k, size, h
  found = jax.lax.dynamic_slice(cache, (*place, 0, 0, start, 0), shape)
  return found.reshape(shape[-4:])


def attend_one(
    cfg: layer_lib.DecoderConfig,
    q: jax.Array,
    mask: jax.Array,
    cache: Cache,
    place: Place,
    positions: jax.Array,
    used: jax.Array,
) -> jax.Array:
  """Return `attend` for one query token per row, which is at `positions` [B].

  On NVIDIA GPUs, attention in half precision runs as a single kernel.
  """
  if not kernel_reads(cache):
    return attend(cfg, q, mask, cache, place, used)
  # Imported late, as it imports Pallas, which takes 0.3 s.
  from evojax.models import cache_kernel

  return jax.lax.platform_dependent(
      cache,
      cuda=lambda cache: cache_kernel.attend(
          q, mask, cache, place, positions + 1, scale=cfg.score_scale
      ),
      default=lambda cache: attend(cfg, q, mask, cache, place, used),
  )


def kernel_reads(cache: Cache) -> bool:
  """Return whether the kernel can read a cache of this dtype and width."""
  width = cache[0].shape[-1]
  power = width >= 16 and width & (width - 1) == 0
  return power and cache[0].dtype in (jnp.bfloat16, jnp.float16)


def attend(
    cfg: layer_lib.DecoderConfig,
    q: jax.Array,
    mask: jax.Array,
    cache: Cache,
    place: Place,
    used: jax.Array,
) -> jax.Array:
  """Return values for queries whose keys are in a cache, shaped as q.

  Blocks without a used slot are not read. The softmax is accumulated block by
  block (online softmax, arXiv:1805.02867). A block that a row does not see adds
  exactly 0, so that a row's result does not depend on the blocks that are read
  for other rows.

  Args:
    cfg: Shape of the decoder.
    q: Queries, [B, T, K, R, H], or [B, K, R, H] for one token per row.
    mask: Which slots a query sees, [B, 1, 1, T, S] or [B, 1, 1, S].
    cache: Keys and values, each [*layers, B, K, S, H].
    place: The layer to read.
    used: int32 scalar, >= 1; no row whose result matters sees a later slot.
  """
  slots = cache[0].shape[-2]
  size = key_block(slots)
  t = 't' if q.ndim == 5 else ''
  to_keys = functools.partial(jnp.einsum, f'b{t}krh,bksh->bkr{t}s')
  read = lambda start: (
      _read(x, place, start, size).astype(q.dtype) for x in cache
  )
  if size == slots:
    keys, values = read(0)
    probs = layer_lib.masked_softmax(cfg, to_keys(q, keys), mask)
    return jnp.einsum(
        f'bkr{t}s,bksh->b{t}krh', probs.astype(q.dtype), values
    )

  def add_block(i, carry):
    largest, total, sums = carry
    start = jnp.minimum(i * size, slots - size)
    keys, values = read(start)
    seen = jax.lax.dynamic_slice_in_dim(mask, start, size, -1)
    # The last block overlaps the one before it.
    seen &= start + jnp.arange(size) >= i * size
    scores = to_keys(q, keys).astype(jnp.float32) * cfg.score_scale
    scores = jnp.where(seen, scores, -1e30)
    higher = jnp.maximum(largest, scores.max(-1))
    weights = jnp.exp(scores - higher[..., None])
    added = jnp.einsum(
        f'bkr{t}s,bksh->bkr{t}h',
        weights.astype(q.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    shrink = jnp.exp(largest - higher)
    total = total * shrink + weights.sum(-1)
    return higher, total, sums * shrink[..., None] + added

  b, k, r = q.shape[0], *q.shape[-3:-1]
  shape = (b, k, r, q.shape[1]) if t else (b, k, r)
  carry = jnp.full(shape, -1e30), jnp.zeros(shape)
  carry = *carry, jnp.zeros((*shape, q.shape[-1]))
  blocks = jnp.minimum(-(-used // size), -(-slots // size))
  _, total, sums = jax.lax.fori_loop(0, blocks, add_block, carry)
  out = (sums / total[..., None]).astype(q.dtype)
  return jnp.moveaxis(out, 3, 1) if t else out
