"""Tests for rank statistics, by hand-worked values and against SciPy."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats

from evojax.stats import ranks


class AgreementTest(parameterized.TestCase):

  def test_hand_worked(self):
    # 2 of the 24 orders agree as strongly, in either direction.
    self.assertEqual(
        ranks.agreement(
            np.array([1.0, 2, 3, 4]), np.array([2.0, 4, 6, 9])
        ),
        (1.0, 2 / 24),
    )
    correlation, p = ranks.agreement(
        np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])
    )
    np.testing.assert_allclose([correlation, p], [-1, 2 / 24])

  @parameterized.parameters(4, 5, 6, 7)
  def test_agrees_with_all_orders(self, n):
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=n), np.round(rng.normal(size=n), 0)
    correlation, p = ranks.agreement(x, y)
    self.assertAlmostEqual(correlation, stats.spearmanr(x, y).statistic)
    every = np.array(
        [
            stats.spearmanr(x[list(order)], y).statistic
            for order in itertools.permutations(range(n))
        ]
    )
    above = np.mean(every >= correlation - 1e-9)
    below = np.mean(every <= correlation + 1e-9)
    self.assertAlmostEqual(p, min(1.0, 2 * min(above, below)))

  def test_a_constant_agrees_with_nothing(self):
    x = np.arange(5.0)
    self.assertEqual(ranks.agreement(x, np.ones(5)), (0.0, 1.0))
    self.assertEqual(ranks.agreement(np.ones(5), x), (0.0, 1.0))

  def test_same_answer_twice_where_orders_are_sampled(self):
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    self.assertEqual(
        ranks.agreement(x, y), ranks.agreement(x, y)
    )


class EqualTest(absltest.TestCase):

  def test_hand_worked(self):
    # One of the 20 ways to choose 3 of 6 values on each side.
    p = ranks.p_equal([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    self.assertAlmostEqual(p, 2 / 20)


if __name__ == '__main__':
  absltest.main()
