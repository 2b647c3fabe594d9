import math

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import importance


class ImportanceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_rank_promotion('raise'))

  @parameterized.parameters(False, True)
  def test_weights_by_hand(self, jit):
    fn = importance.truncated_importance_weights
    fn = jax.jit(fn) if jit else fn
    log = math.log
    old = jnp.asarray([[log(0.5), log(0.9), log(0.2), -1.0]])
    sampler = jnp.asarray([[log(0.25), log(0.1), log(0.4), -jnp.inf]])
    mask = jnp.asarray([[True, True, True, False]])
    # 0.5 / 0.25 = 2; 0.9 / 0.1 = 9, capped; 0.2 / 0.4 = 0.5, not raised to 1.
    np.testing.assert_allclose(
        fn(old, sampler, mask, 3.0), [[2, 3, 0.5, 1]], rtol=1e-6
    )
    # Off: exactly 1, even where the weight itself would not be finite.
    np.testing.assert_array_equal(fn(old, sampler, mask, 0.0), [[1, 1, 1, 1]])

  def test_equal_samplers_give_exactly_one(self):
    old = jnp.linspace(-9, 0, 7)[None]
    out = importance.truncated_importance_weights(
        old, old, jnp.ones((1, 7), bool), 2.0
    )
    np.testing.assert_array_equal(out, np.ones((1, 7)))

  def test_weights_carry_no_gradient(self):
    grad = jax.grad(
        lambda old: importance.truncated_importance_weights(
            old, jnp.zeros((1, 3)), jnp.ones((1, 3), bool), 2.0
        ).sum()
    )(jnp.full((1, 3), 0.1))
    np.testing.assert_array_equal(grad, np.zeros((1, 3)))

  def test_kl_by_hand(self):
    # p = 0.5, q = 0.25: log r = -log 2. k3 = 0.5 - 1 + log 2.
    p, q = jnp.log(jnp.asarray([0.5])), jnp.log(jnp.asarray([0.25]))
    log2 = math.log(2)
    np.testing.assert_allclose(importance.k3(p, q), [log2 - 0.5], rtol=1e-6)

  def test_k3_is_unbiased_and_never_negative(self):
    # Exact expectations over a three-letter alphabet.
    p = jnp.asarray([0.5, 0.3, 0.2])
    q = jnp.asarray([0.2, 0.2, 0.6])
    kl = jnp.sum(p * jnp.log(p / q))
    estimates = importance.k3(jnp.log(p), jnp.log(q))
    np.testing.assert_allclose(jnp.sum(p * estimates), kl, rtol=1e-5)
    self.assertTrue((estimates >= 0).all())

  def test_expected_gradient_of_k3_is_that_of_the_other_kl(self):
    logits = jnp.asarray([0.3, -0.2, 0.9])
    q = jnp.asarray([0.2, 0.2, 0.6])
    p = jax.nn.softmax(logits)

    def mean_k3(logits):  # Sampled tokens: p of the expectation is constant.
      return jnp.sum(p * importance.k3(jax.nn.log_softmax(logits), jnp.log(q)))

    def kl_q_p(logits):
      return jnp.sum(q * (jnp.log(q) - jax.nn.log_softmax(logits)))

    np.testing.assert_allclose(
        jax.grad(mean_k3)(logits), jax.grad(kl_q_p)(logits), atol=1e-6
    )

  def test_k3_keeps_its_digits_near_zero(self):
    # log r = 1e-3: k3 = 5.00167e-7. exp(x) - 1 - x in float32 is off by 10 %.
    out = importance.k3(jnp.asarray([-1.0]), jnp.asarray([-1.0 + 1e-3]))
    np.testing.assert_allclose(out, [5.00167e-7], rtol=1e-3)


if __name__ == '__main__':
  absltest.main()
