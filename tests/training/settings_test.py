"""The schedule of the learning rate."""

import math

from absl.testing import absltest

from evojax import config as config_lib
from evojax.training import settings


class ScheduleTest(absltest.TestCase):

  def rates(self, count=None, *, steps, **optim):
    config = config_lib.base()
    config.steps = steps
    config.optim.update(learning_rate=8.0, **optim)
    rate = settings.learning_rate(config)
    return [rate(step) for step in range(count or steps)]

  def test_constant(self):
    self.assertEqual(self.rates(steps=3), [8, 8, 8])

  def test_warmup_ends_at_the_peak(self):
    # (step + 1) / 4 of the peak: the first step is not 0, the fourth is the
    # peak.
    rates = self.rates(steps=6, warmup_steps=4)
    self.assertEqual(rates, [2, 4, 6, 8, 8, 8])

  def test_linear_after_warmup(self):
    # 4 steps after 2 of warm-up: 1 - 0/4, 1 - 1/4, ...
    rates = self.rates(steps=6, warmup_steps=2, schedule='linear')
    self.assertEqual(rates, [4, 8, 8, 6, 4, 2])

  def test_cosine(self):
    # 4 (1 + cos(pi k / 4)) for k = 0 .. 3, and 0 at the end.
    rates = self.rates(5, steps=4, schedule='cosine')
    root = math.sqrt(0.5)
    for found, expected in zip(
        rates, (8, 4 * (1 + root), 4, 4 * (1 - root), 0)
    ):
      self.assertAlmostEqual(found, expected, places=12)

  def test_no_steps(self):
    self.assertEqual(self.rates(1, steps=0, schedule='linear'), [8])


if __name__ == '__main__':
  absltest.main()
