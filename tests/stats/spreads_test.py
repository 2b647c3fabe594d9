"""Tests for spreads, by hand-worked values and against SciPy."""

from absl.testing import absltest
import numpy as np
from scipy import stats

from evojax.stats import spreads


class SpreadsTest(absltest.TestCase):

  def test_rms(self):
    self.assertEqual(spreads.rms([3.0, 4.0]), 12.5**0.5)
    self.assertEqual(spreads.rms([]), 0.0)

  def test_pooled(self):
    # Squares 2 * 0.01^2 + 2 * 0.02^2 + 0 on 1 + 2 degrees of freedom.
    groups = [[0.01, 0.03], [0.02, 0.04, 0.06], [0.5], []]
    self.assertAlmostEqual(spreads.pooled(groups), (0.001 / 3) ** 0.5)
    self.assertIsNone(spreads.pooled([[0.5]]))
    self.assertEqual(spreads.degrees(groups), 3)

  def test_error_of_a_difference_agrees_with_scipy(self):
    one, other = np.array([0.1, 0.4, 0.2]), np.array([0.5, 0.9])
    error = spreads.of_difference(one, other)
    found = stats.ttest_ind(one, other)
    self.assertAlmostEqual((one.mean() - other.mean()) / error, found.statistic)
    self.assertEqual(spreads.degrees([one, other]), found.df)


if __name__ == '__main__':
  absltest.main()
