"""Simulated replays have the difference that they are asked for."""

from absl.testing import absltest
import numpy as np

from benchmarks import vetoes
from evojax.ledger import calibration


class VetoesTest(absltest.TestCase):

  def test_gains_are_about_the_effect(self):
    rng = np.random.default_rng(0)
    for effect in (0.0, 0.05, -0.05):
      found = [
          vetoes.gains(rng, np.full(2, effect)).mean() for _ in range(2000)
      ]
      # The standard error of this mean is 0.03 / sqrt(2000) = 0.0007. Shares
      # are cut at 0 and 1 where they leave them, which is rare.
      self.assertAlmostEqual(np.mean(found), effect, delta=0.005)

  def test_only_a_sure_loss_is_vetoed(self):
    def count(effect, trust):
      rng = np.random.default_rng(1)
      options = 2, (0.0, 0.0), trust
      return sum(
          vetoes.is_vetoed(rng, effect, *options) for _ in range(50)
      )

    exact = calibration.Trust(1.0, 0.0, 9)
    self.assertGreater(count(-0.2, exact), 45)
    self.assertLess(count(0.0, exact), 6)
    # A class whose replays say nothing vetoes nothing.
    self.assertEqual(count(-0.2, calibration.Trust(0.0, 0.1, 9)), 0)


if __name__ == '__main__':
  absltest.main()
