"""Tests for means and shares with intervals, by hand-worked values."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.stats import intervals


class MarginTest(absltest.TestCase):

  def test_known_quantiles(self):
    # t_{.975, 2} = 4.302653 and t_{.95, 2} = 2.919986.
    self.assertAlmostEqual(intervals.margin(0.1, 2), 0.4302653, places=6)
    found = intervals.margin(0.1, 2, level=0.9)
    self.assertAlmostEqual(found, 0.2919986, places=6)


class MeansTest(absltest.TestCase):

  def test_mean(self):
    # 1, 2, 3: mean 2, deviation 1, error 1/sqrt(3), t_{.975, 2} = 4.302653.
    found = intervals.mean([1.0, 2.0, 3.0, math.nan])
    self.assertAlmostEqual(found.value, 2.0)
    self.assertAlmostEqual(found.high, 2 + 4.302653 / math.sqrt(3), places=5)

  def test_shares_without_spread_have_the_rule_of_three(self):
    found = intervals.mean([0.0] * 30)
    self.assertEqual((found.low, found.value), (0.0, 0.0))
    self.assertAlmostEqual(found.high, 0.1)

  def test_differences_without_spread_are_exact(self):
    found = intervals.student([0.0] * 5)
    self.assertEqual((found.low, found.value, found.high), (0.0, 0.0, 0.0))
    found = intervals.student([-1.0, 1.0])  # t_{.975, 1} = 12.7062.
    self.assertAlmostEqual(found.high, 12.7062, places=4)

  def test_one_value_says_nothing(self):
    self.assertEqual(intervals.mean([0.5]).low, -math.inf)

  def test_bootstrap_holds_the_value(self):
    x = np.arange(50.0)
    found = intervals.bootstrap(50, lambda i: float(x[i].mean()))
    self.assertAlmostEqual(found.value, 24.5)
    # 1.96 * 14.4 / sqrt(50) = 4.0.
    self.assertAlmostEqual(found.high - found.low, 8.0, delta=1.5)


class ExactTest(parameterized.TestCase):

  @parameterized.parameters(
      # 1 - 0.025^(1/10), and Clopper and Pearson's table for 5 of 10.
      (0, 10, 0.0, 0.3085),
      (5, 10, 0.1871, 0.8129),
      (10, 10, 0.6915, 1.0),
  )
  def test_known_values(self, count, of, low, high):
    found = intervals.exact(count, of)
    np.testing.assert_allclose(found, (low, high), atol=5e-5)


if __name__ == '__main__':
  absltest.main()
