"""Tests for trends and change points, by hand-worked values."""

import math
import tracemalloc

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.stats import trends


class TrendsTest(parameterized.TestCase):

  def test_step_up(self):
    # -1, 1 and 4, 6: 0 and 5, each with 12.7062 on both sides.
    found = trends.step_up([-1.0, 1.0, 4.0, 6.0], 2)
    self.assertAlmostEqual(found.value, 5.0)
    self.assertAlmostEqual(found.low, 5 - 2 * 12.7062, places=3)
    self.assertAlmostEqual(found.high, 5 + 2 * 12.7062, places=3)

  def test_trend(self):
    # The line of rules_test: slope .08, rise .24, slope's error .0424264;
    # residuals -.03, .09, -.09, .03 have r = (-.0027 - .0081 - .0027) / .018
    # below 0, which widens nothing; t_{.975, 2} = 4.302653.
    found = trends.trend([0.2, 0.4, 0.3, 0.5])
    self.assertAlmostEqual(found.rise, 0.24)
    self.assertAlmostEqual(
        found.high, 0.24 + 4.302653 * 0.0424264 * 3, places=5
    )

  def test_trend_of_independent_values(self):
    # The same line; one-sided at 95 %: t_{.95, 2} = 2.919986.
    found = trends.trend([0.2, 0.4, 0.3, 0.5], level=0.9, independent=True)
    self.assertAlmostEqual(found.start, 0.23)
    self.assertAlmostEqual(
        found.low, 0.24 - 2.919986 * 0.0424264 * 3, places=5
    )
    noise = np.random.default_rng(0).normal(0, 1, 12)
    waves = np.repeat(noise, 5)
    alone = trends.trend(waves, independent=True)
    together = trends.trend(waves)
    self.assertEqual(alone.rise, together.rise)
    self.assertLess(alone.high, together.high)

  def test_neighbours_that_move_together_widen_the_trend(self):
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, 60)
    alone = trends.trend(noise)
    waves = trends.trend(np.repeat(noise[:12], 5))
    self.assertGreater(waves.high - waves.low, alone.high - alone.low)

  def test_change_point(self):
    y = [0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.9, 1.0, 0.9, 1.0, 0.9, 1.0]
    found = trends.change_point(y)
    self.assertEqual(found.index, 6)
    self.assertAlmostEqual(found.before, 0.05)
    self.assertAlmostEqual(found.after, 0.95)
    self.assertLess(found.p, 0.01)

  def test_no_change_is_found_as_often_as_p_says(self):
    rng = np.random.default_rng(0)
    found = [
        trends.change_point(rng.normal(size=30)).p < 0.05 for _ in range(200)
    ]
    # 10 are expected; more than 20 of 200 have probability .002.
    self.assertBetween(sum(found), 1, 20)

  @parameterized.parameters(6, 7, 60, 300, 1999)
  def test_orders_in_blocks_are_those_of_all_rows_together(self, n):
    rng = np.random.default_rng(n)
    for shift in (0.0, 2 / math.sqrt(n), 5 / math.sqrt(n)):
      y = rng.normal(size=n) + shift * (np.arange(n) >= n // 3)
      k = np.arange(3, n - 2)
      scale = np.sqrt(n / (k * (n - k)))
      of = lambda x, k=k, s=scale: np.abs(x.cumsum(-1)[..., k - 1]) * s
      centred = y - y.mean()
      every = np.random.default_rng(0).permuted(
          np.tile(centred, (999, 1)), axis=1
      )
      beyond = (of(every).max(1) >= of(centred).max() - 1e-12).sum()
      found = trends.change_point(y)
      self.assertEqual(found.p, (1 + beyond) / 1000)
      self.assertEqual(found.index, k[of(centred).argmax()])

  def test_memory_of_a_long_series(self):
    y = np.random.default_rng(0).normal(size=8000)
    tracemalloc.start()
    self.addCleanup(tracemalloc.stop)
    trends.change_point(y)
    # 999 orders of it have 64 MB, and their sums as much again.
    self.assertLess(tracemalloc.get_traced_memory()[1], 8e6)

  def test_standstill(self):
    y = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8]
    self.assertEqual(trends.standstill(y), 8)
    self.assertEqual(trends.standstill([0.5] * 16), 0)

  def test_too_short(self):
    with self.assertRaisesRegex(ValueError, 'at least 4'):
      trends.trend([1.0, 2.0])
    with self.assertRaisesRegex(ValueError, 'at least 3'):
      trends.trend([1.0, 2.0], independent=True)
    with self.assertRaisesRegex(ValueError, '6 needed'):
      trends.change_point([1.0] * 5)


if __name__ == '__main__':
  absltest.main()
