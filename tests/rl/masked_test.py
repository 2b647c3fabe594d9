from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import masked


class MaskedTest(parameterized.TestCase):

  @parameterized.parameters(np, jnp)
  def test_values(self, xp):
    x = xp.asarray([[1.0, 2.0, 4.0], [8.0, xp.nan, 16.0]], dtype=xp.float32)
    mask = xp.asarray([[True, True, False], [True, False, True]])
    # Kept: 1, 2 | 8, 16. Sums 3 and 24; means 1.5 and 12; all: 27 / 4.
    np.testing.assert_array_equal(masked.masked_sum(x, mask, 1), [3, 24])
    np.testing.assert_array_equal(masked.masked_mean(x, mask, 1), [1.5, 12])
    self.assertEqual(masked.masked_mean(x, mask), 6.75)
    self.assertEqual(
        masked.masked_mean(x, mask, 1, keepdims=True).shape, (2, 1)
    )
    self.assertEqual(masked.masked_mean(x, mask).dtype, np.float32)

  @parameterized.parameters(np, jnp)
  def test_nothing_kept_gives_zero(self, xp):
    x = xp.full((2, 3), xp.nan, dtype=xp.float32)
    mask = xp.zeros((2, 3), dtype=bool)
    np.testing.assert_array_equal(masked.masked_mean(x, mask, 1), [0, 0])
    np.testing.assert_array_equal(masked.masked_sum(x, mask), 0)

  def test_stays_in_the_library_of_its_input(self):
    x, mask = np.ones(3, np.float32), np.ones(3, bool)
    self.assertNotIsInstance(masked.masked_mean(x, mask), jax.Array)
    self.assertIsInstance(
        masked.masked_mean(jnp.asarray(x), jnp.asarray(mask)), jax.Array
    )

  @parameterized.parameters(masked.masked_mean, masked.masked_sum)
  def test_gradient(self, reduce):
    mask = jnp.asarray([[True, True, False], [False, False, False]])
    x = jnp.asarray([[1.0, 2.0, jnp.nan], [jnp.inf, 5.0, 6.0]])
    grad = jax.grad(lambda x: reduce(x, mask, 1).sum())(x)
    each = 0.5 if reduce is masked.masked_mean else 1.0
    np.testing.assert_array_equal(grad, [[each, each, 0], [0, 0, 0]])


if __name__ == '__main__':
  absltest.main()
