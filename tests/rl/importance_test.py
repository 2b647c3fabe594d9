import functools
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

  @parameterized.product(mode=importance.MODES, jit=(False, True))
  def test_weights_by_hand(self, mode, jit):
    fn = functools.partial(importance.importance_weights, mode=mode)
    fn = jax.jit(fn) if jit else fn
    # 0.5 / 0.25 = 2; 0.9 / 0.1 = 9 and 0.2 / 0.8 = 0.25 beyond the bounds; the
    # product of the first row is 4.5, that of the second 2 * 0.8 = 1.6.
    old = jnp.log(jnp.asarray([[0.5, 0.9, 0.2, 0.5], [0.5, 0.4, 0.1, 0.1]]))
    sampler = jnp.log(jnp.asarray([[0.25, 0.1, 0.8, 0], [0.25, 0.5, 0.0, 1.0]]))
    mask = jnp.asarray([[True, True, True, False], [True, True, False, False]])
    weights, sums, largest = fn(old, sampler, mask, cap=3.0, floor=0.5)
    first, second, bounded, sequences, top = {
        'token_truncate': ([2, 3, 0.5, 1], [2, 0.8, 1, 1], 2, 1, 9),
        'token_mask': ([2, 0, 0, 1], [2, 0.8, 1, 1], 2, 1, 9),
        'sequence_truncate': ([3, 3, 3, 1], [1.6, 1.6, 1, 1], 3, 1, 4.5),
        'sequence_mask': ([0, 0, 0, 1], [1.6, 1.6, 1, 1], 3, 1, 4.5),
    }[mode]
    np.testing.assert_allclose(weights, [first, second], rtol=1e-5)
    kept = np.array(first[:3] + second[:2])
    np.testing.assert_allclose(sums['weight'], kept.sum(), rtol=1e-5)
    np.testing.assert_allclose(
        sums['weight_square'], (kept**2).sum(), rtol=1e-5
    )
    self.assertEqual(sums['bounded'], bounded)
    self.assertEqual(sums['bounded_sequences'], sequences)
    np.testing.assert_allclose(largest, top, rtol=1e-5)
    # Off: exactly 1, even if the weight itself would not be finite.
    off, sums, _ = fn(old, sampler, mask, cap=0.0, floor=0.0)
    np.testing.assert_array_equal(off, np.ones((2, 4)))
    self.assertEqual(sums['bounded'], 0)

  @parameterized.parameters(*importance.MODES)
  def test_equal_samplers_give_exactly_one(self, mode):
    old = jnp.linspace(-9, 0, 7)[None]
    mask = jnp.ones((1, 7), bool)
    out, sums, _ = importance.importance_weights(
        old, old, mask, mode=mode, cap=1.0, floor=1.0
    )
    np.testing.assert_array_equal(out, np.ones((1, 7)))
    self.assertEqual(sums['bounded'], 0)
    for level in importance.REJECTIONS:
      kept = importance.accepted(
          old, old, mask, level=level, low=1.0, high=1.0, veto=1.0
      )
      np.testing.assert_array_equal(kept, mask)

  @parameterized.parameters(*importance.MODES)
  def test_weights_carry_no_gradient(self, mode):
    grad = jax.grad(
        lambda old: importance.importance_weights(
            old, jnp.zeros((1, 3)), jnp.ones((1, 3), bool), mode=mode, cap=2.0
        )[0].sum()
    )(jnp.full((1, 3), 0.1))
    np.testing.assert_array_equal(grad, np.zeros((1, 3)))

  @parameterized.parameters(*importance.MODES)
  def test_no_ratio_overflows(self, mode):
    # A sampled token of probability 0, and sums of log-ratios beyond float32.
    old = jnp.asarray([[-1.0, -1.0], [-200.0, -1.0], [-1.0, -1.0]])
    sampler = jnp.asarray([[-jnp.inf, -1.0], [-1.0, -1.0], [-300.0, -300.0]])
    mask = jnp.ones((3, 2), bool)
    for cap in (3.0, 1e30):
      weights, sums, largest = importance.importance_weights(
          old, sampler, mask, mode=mode, cap=cap
      )
      for x in (weights, largest, *sums.values()):
        self.assertTrue(jnp.isfinite(x).all(), mode)
    np.testing.assert_allclose(largest, math.exp(20), rtol=1e-5)
    np.testing.assert_allclose(weights[1, 0], math.exp(-20), rtol=1e-5)
    kl = importance.sampler_kl(old, sampler, mask)
    # Log-ratios 20, -20 and twice 20: 3 (e^20 - 21) + e^-20 + 19.
    np.testing.assert_allclose(kl, 3 * (math.exp(20) - 21) + 19, rtol=1e-5)

  def test_rejection_by_hand(self):
    # Ratios of the rows: 2, 0.5; 1.5, 1.5, 1.5; 1, 1e-5. Products: 1; 3.375;
    # 1e-5. Geometric means: 1; 1.5; 0.00316.
    ratios = jnp.asarray([[2, 0.5, 99.0], [1.5, 1.5, 1.5], [1, 1e-5, 1e-9]])
    sampler = jnp.full((3, 3), -1.0)
    mask = jnp.asarray([[1, 1, 0], [1, 1, 1], [1, 1, 0]], bool)

    def kept(level, low, high, veto=0.0):
      fn = jax.jit(importance.accepted, static_argnames='level')
      options = dict(level=level, low=low, high=high, veto=veto)
      out = fn(sampler + jnp.log(ratios), sampler, mask, **options)
      self.assertFalse((out & ~mask).any())
      return [''.join('01'[int(x)] for x in row) for row in out]

    self.assertEqual(kept('none', 1.0, 1.0), ['110', '111', '110'])
    self.assertEqual(kept('token', 0.6, 1.6), ['000', '111', '100'])
    self.assertEqual(kept('token', 0.0, 2.1), ['110', '111', '110'])
    self.assertEqual(kept('sequence', 0.5, 3.0), ['110', '000', '000'])
    self.assertEqual(kept('geometric', 0.5, 3.0), ['110', '111', '000'])
    self.assertEqual(kept('geometric', 0.5, 1.1), ['110', '000', '000'])
    # One such token drops its whole sequence; 1e-9 was not sampled.
    self.assertEqual(kept('none', 1.0, 1.0, 1e-4), ['110', '111', '000'])
    self.assertEqual(kept('none', 1.0, 1.0, 1e-6), ['110', '111', '110'])
    self.assertEqual(kept('token', 0.0, 1.6, 1e-4), ['010', '111', '000'])

  def test_what_was_not_sampled_counts_in_nothing(self):
    # Observations of an environment, and padding, may have any values.
    rng = np.random.default_rng(0)
    old, sampler = rng.normal(-2, 0.3, (2, 4, 9)).astype(np.float32)
    mask = rng.random((4, 9)) < 0.6
    mask[3] = False
    junk = np.where(mask, sampler, np.float32(np.nan))
    few = [np.where(m)[0] for m in mask[:3]]
    for level in ('token', 'sequence', 'geometric'):
      whole, other = (
          importance.accepted(
              *map(jnp.asarray, (old, x, mask)), level=level, low=0.9, high=1.3
          )
          for x in (sampler, junk)
      )
      np.testing.assert_array_equal(whole, other)
    for mode in importance.MODES:
      fn = functools.partial(
          importance.importance_weights, mode=mode, cap=1.3, floor=0.8
      )
      weights, sums, top = fn(*map(jnp.asarray, (old, junk, mask)))
      np.testing.assert_array_equal(weights[~mask], 1)
      self.assertTrue(jnp.isfinite(sums['weight']) & jnp.isfinite(top))
      for row, at in enumerate(few):
        # The same as for the sequence of sampled tokens alone.
        alone = [jnp.asarray(x[row, at])[None] for x in (old, sampler, mask)]
        want = fn(*alone)[0][0]
        np.testing.assert_allclose(weights[row, at], want, rtol=1e-5)

  def test_unknown_names(self):
    three = jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
    with self.assertRaisesRegex(ValueError, "mode='mask'.*sequence_mask"):
      importance.importance_weights(*three, mode='mask', cap=2.0)
    with self.assertRaisesRegex(ValueError, "level='turn'.*geometric"):
      importance.accepted(*three, level='turn', low=0.5, high=2.0)

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

  def test_kl_from_the_sampler_by_hand(self):
    # Ratios 2 and 0.5: 2 - 1 - log 2 and 0.5 - 1 + log 2, together 0.5.
    old = jnp.log(jnp.asarray([[0.8, 0.2, 0.7]]))
    sampler = jnp.log(jnp.asarray([[0.4, 0.4, 0.1]]))
    mask = jnp.asarray([[True, True, False]])
    np.testing.assert_allclose(
        importance.sampler_kl(old, sampler, mask), 0.5, rtol=1e-5
    )

  def test_k3_keeps_its_digits_near_zero(self):
    # log r = 1e-3: k3 = 5.00167e-7. exp(x) - 1 - x in float32 is off by 10 %.
    out = importance.k3(jnp.asarray([-1.0]), jnp.asarray([-1.0 + 1e-3]))
    np.testing.assert_allclose(out, [5.00167e-7], rtol=1e-3)


if __name__ == '__main__':
  absltest.main()
