"""The kernel gives what `cache.attend` gives; on a CPU it is interpreted."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import cache as cache_lib
from evojax.models import cache_kernel
from tests import forward

LAYERS, KV_HEADS, SLOTS = 3, 2, 200  # 200 slots are no multiple of a block.
# The first and the last slot, and both sides of a block's end.
POSITIONS = (0, cache_kernel.BLOCK - 1, cache_kernel.BLOCK, SLOTS - 1)


def random(*shape, dtype='bfloat16', seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.standard_normal(shape), dtype)


class CacheKernelTest(parameterized.TestCase):

  def attend(self, cache, queries, window=0, place=()):
    """Return the values of the kernel and those of `cache.attend`."""
    positions = jnp.asarray(POSITIONS)
    slot = jnp.arange(SLOTS)
    mask = slot <= positions[:, None]
    if window:
      mask &= slot > positions[:, None] - window
    mask = mask[:, None, None]
    cfg = dataclasses.replace(forward.CFG, head_dim=queries.shape[-1])
    got = cache_kernel.attend(
        queries,
        mask,
        cache,
        place,
        positions + 1,
        scale=cfg.score_scale,
        interpret=jax.default_backend() != 'gpu',
    )
    want = cache_lib.attend(
        cfg, queries, mask, cache, place, positions.max() + 1
    )
    self.assertEqual(got.dtype, queries.dtype)
    return [np.asarray(x, np.float32) for x in (got, want)]

  @parameterized.parameters(
      (1, 32, 0), (2, 64, 0), (8, 128, 0), (20, 16, 0), (2, 64, 70)
  )
  def test_equals_the_attention_in_xla(self, heads_per_kv, width, window):
    rows = len(POSITIONS)
    shape = LAYERS, rows, KV_HEADS, SLOTS, width
    cache = random(*shape), random(*shape, seed=1)
    queries = random(rows, KV_HEADS, heads_per_kv, width, seed=2)
    for layer in range(LAYERS):
      got, want = self.attend(cache, queries, window, (jnp.int32(layer),))
      # Values are about 1, with 8 bits.
      np.testing.assert_allclose(got, want, atol=0.03)
      alone = tuple(x[layer] for x in cache)
      np.testing.assert_array_equal(self.attend(alone, queries, window)[0], got)

  def test_a_row_reads_nothing_behind_its_last_slot(self):
    rows, width = len(POSITIONS), 32
    shape = rows, KV_HEADS, SLOTS, width
    cache = random(*shape), random(*shape, seed=1)
    queries = random(rows, KV_HEADS, 2, width, seed=2)
    got, _ = self.attend(cache, queries)
    later = jnp.arange(SLOTS) > jnp.asarray(POSITIONS)[:, None]
    later = later[:, None, :, None]
    dirty = tuple(jnp.where(later, 1e4, x) for x in cache)
    np.testing.assert_array_equal(self.attend(dirty, queries)[0], got)

  @parameterized.parameters(
      ('bfloat16', 128, True), ('float32', 128, False), ('bfloat16', 96, False)
  )
  def test_what_it_reads(self, dtype, width, supported):
    one = random(1, 1, 1, width, dtype=dtype)
    self.assertEqual(cache_lib.kernel_reads((one, one)), supported)


if __name__ == '__main__':
  absltest.main()
