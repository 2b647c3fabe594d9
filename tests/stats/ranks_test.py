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


class AgreementWithinTest(parameterized.TestCase):

  def test_hand_worked(self):
    # Within both groups x rises with y; between them it falls. Of the 36 orders
    # of two groups of three, 2 agree as well (both groups up, or both down).
    x = np.array([11.0, 12, 13, 1, 2, 3])
    y = np.array([1.0, 2, 3, 11, 12, 13])
    correlation, p = ranks.agreement_within(x, y, np.repeat([0, 1], 3))
    self.assertAlmostEqual(correlation, 1.0)
    self.assertAlmostEqual(p, 2 / 36, delta=0.01)
    self.assertLess(ranks.agreement(x, y)[0], 0)

  def test_what_differs_between_groups_alone_does_not_agree(self):
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], 8)
    low = 0
    for _ in range(200):
      x, y = (rng.normal(size=3)[groups] + 0.1 * rng.normal(size=(24,))
              for _ in range(2))  # fmt: skip
      low += ranks.agreement_within(x, y, groups)[1] <= 0.1
    self.assertBetween(low, 8, 34)  # 20, within 3 standard deviations.

  def test_one_group_is_the_plain_agreement(self):
    x, y = np.random.default_rng(1).normal(size=(2, 6))
    self.assertEqual(
        ranks.agreement_within(x, y, np.full(6, 4)), ranks.agreement(x, y)
    )

  def test_constant_within_groups(self):
    x = np.array([1.0, 1, 2, 2])
    found = ranks.agreement_within(x, np.arange(4.0), np.repeat([0, 1], 2))
    self.assertEqual(found, (0.0, 1.0))


if __name__ == '__main__':
  absltest.main()
