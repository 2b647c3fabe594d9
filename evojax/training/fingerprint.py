"""Fingerprints of training states, which show that two states are equal."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evojax.runtime import sharding


def of(state: Any) -> str:
  """Return 64 hex digits that identify a state, independent of the mesh.

  They are a hash of two 32-bit checksums per leaf, which the devices compute.
  They protect against mistakes, but not against forgery.
  """
  flat = jax.tree_util.tree_leaves_with_path(state)
  sums = sharding.to_host(_checksums([leaf for _, leaf in flat]))
  digest = hashlib.sha256()
  for (path, leaf), pair in zip(flat, np.asarray(sums), strict=True):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    digest.update(
        f'{name} {leaf.dtype} {leaf.shape} {pair.tolist()}\n'.encode()
    )
  return digest.hexdigest()


@jax.jit
def _checksums(leaves: list[jax.Array]) -> jax.Array:
  """Return uint32 [leaves, 2]: two sums of the words, weighted by position."""

  def checksum(x):
    x = jnp.atleast_1d(x)
    unsigned = jnp.dtype(f'uint{8 * x.dtype.itemsize}')
    words = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
      place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(
          jnp.uint32, words.shape, axis
      )
    # Odd multipliers, so that a change of one word always changes the sum.
    a, b = 2 * place + 1, (place * jnp.uint32(2654435761)) | 1
    # Two changes by 2^31 cancel in the first sum; mixed bits show them here.
    mixed = words ^ (words >> 15)
    return jnp.stack([jnp.sum(words * a), jnp.sum(mixed * b)])

  return jnp.stack([checksum(leaf) for leaf in leaves])
