"""Attention of one token per row to a cache, as one kernel for NVIDIA GPUs.

XLA copies the slots that a layer reads out of a stacked cache before it
multiplies them, so that every slot is moved three times, and launches a dozen
kernels per block of slots. This kernel (Pallas, compiled by Triton) reads every
used slot once, in place, and for each row only that row's slots. It is
FlashAttention (arXiv:2205.14135), split for decoding into one program per row
and key/value head.
"""

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from evojax.runtime import sharding

BLOCK = 64  # Slots that a program reads at once.
_FEWEST_QUERIES = 16  # Fewest rows of a matrix that tensor cores can multiply.


def attend(
    q: jax.Array,
    mask: jax.Array,
    cache: tuple[jax.Array, jax.Array],
    place: tuple[()] | tuple[jax.Array],
    lengths: jax.Array,
    *,
    scale: float,
    interpret: bool = False,
) -> jax.Array:
  """Return the values of one query token per row, [B, K, R, H] in q's dtype.

  Args:
    q: Queries, [B, K, R, H].
    mask: bool [B, 1, 1, S], the slots that a row sees; at least one.
    cache: Keys and values in half precision, each [*layers, B, K, S, H]; H is a
      power of 2, at least 16, see `cache.kernel_reads`.
    place: () or (layer,), the layer to read.
    lengths: int32 [B], in [1, S]; a row sees no slot from here on.
    scale: Factor of the products of queries and keys.
    interpret: Runs the kernel step by step on any device, for tests.
  """
  layers = (None,) * len(place)
  of_cache = (*layers, 'batch', 'kv_heads', None, None)
  run = functools.partial(_run, scale=scale, interpret=interpret)
  # The compiler cannot divide a kernel among devices.
  run = sharding.per_device(
      run,
      (
          ('batch', 'kv_heads', None, None),
          ('batch', None),
          *(of_cache,) * 2,
          (None,),
          ('batch',),
      ),
      ('batch', 'kv_heads', None, None),
  )
  layer = jnp.stack(place or (jnp.int32(0),))
  return run(q, mask[:, 0, 0], *cache, layer, lengths)


def _run(q, mask, keys, values, layer, lengths, *, scale, interpret):
  """Run the kernel on one device's rows and heads."""
  b, k, r, h = q.shape
  stack = lambda x: x.reshape(-1, *x.shape[-4:])  # One layer: a stack of one.
  queries = max(_FEWEST_QUERIES, pl.next_power_of_2(r))
  padded = jnp.pad(q, [(0, 0)] * 2 + [(0, queries - r), (0, 0)])
  ours = pl.BlockSpec((None, None, queries, h), lambda i, j: (i, j, 0, 0))
  whole = pl.BlockSpec(memory_space=pl.ANY)
  out = pl.pallas_call(
      functools.partial(_kernel, scale=scale),
      out_shape=jax.ShapeDtypeStruct(padded.shape, q.dtype),
      grid=(b, k),
      in_specs=[whole, whole, ours, whole, whole, whole],
      out_specs=ours,
      compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
      interpret=interpret,
      name='attend_to_cache',
  )(layer, lengths, padded, mask, stack(keys), stack(values))
  return out[:, :, :r]


def _kernel(layer, lengths, q, mask, keys, values, out, *, scale):
  """Accumulate one row and head (online softmax, arXiv:1805.02867)."""
  row, head = pl.program_id(0), pl.program_id(1)
  place = layer[0], row, head
  slots, queries = keys.shape[-2], q[...]
  length = lengths[row]

  def add_block(i, carry):
    largest, total, sums = carry
    at = pl.ds(i * BLOCK, BLOCK)
    here = i * BLOCK + jnp.arange(BLOCK) < slots
    read = functools.partial(triton.load, mask=here[:, None], other=0)
    seen = triton.load(mask.at[row, at], mask=here, other=False)
    scores = triton.dot(queries, read(keys.at[*place, at, :]).T) * scale
    scores = jnp.where(seen[None], scores, -1e30)  # float32 [queries, BLOCK]
    higher = jnp.maximum(largest, scores.max(-1))
    weights = jnp.exp(scores - higher[:, None])
    shrink = jnp.exp(largest - higher)
    block = read(values.at[*place, at, :])
    added = triton.dot(weights.astype(block.dtype), block)
    total = total * shrink + weights.sum(-1)
    return higher, total, sums * shrink[:, None] + added

  carry = (
      jnp.full(queries.shape[:1], -1e30, jnp.float32),
      jnp.zeros(queries.shape[:1], jnp.float32),
      jnp.zeros(queries.shape, jnp.float32),
  )
  blocks = pl.cdiv(length, BLOCK)
  _, total, sums = jax.lax.fori_loop(0, blocks, add_block, carry)
  out[...] = (sums / total[:, None]).astype(out.dtype)
