"""Filters of the sampler keep exactly what a row asks for."""

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
import numpy as np

from evojax.rollout import sampling

VOCAB = 1000


def filtered(logits, *, top_p=1.0, top_k=-1, min_p=0.0):
  """Logits [B, V] after the filters, the same for all rows."""
  rows = lambda value: jnp.full(len(logits), value)
  args = rows(top_p), rows(top_k), rows(min_p)
  return np.asarray(sampling._filter(jnp.asarray(logits), *args))


class FilterTest(parameterized.TestCase):

  # If one token has nearly all of the mass, float32 rounds its share to 1, and
  # that of many tokens may add up to 1 before the last one.
  @parameterized.parameters(1.0, 5.0, 30.0)
  def test_row_that_asks_for_nothing_keeps_every_token(self, scale):
    rng = np.random.default_rng(0)
    logits = (scale * rng.normal(size=(8, VOCAB))).astype(np.float32)
    np.testing.assert_array_equal(filtered(logits), logits)

  @parameterized.parameters(1.0, 5.0, 30.0)
  def test_top_k_alone_keeps_k_tokens(self, scale):
    rng = np.random.default_rng(1)
    logits = (scale * rng.normal(size=(8, VOCAB))).astype(np.float32)
    found = filtered(logits, top_k=3)
    for row, wanted in zip(found, logits):
      best = np.argsort(-wanted)[:3]
      np.testing.assert_array_equal(row[best], wanted[best])
      self.assertEqual((row > sampling.NEG_INF).sum(), 3)


if __name__ == '__main__':
  absltest.main()
