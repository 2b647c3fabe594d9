"""The simulation of a run with many arms whose machines are lost."""

import os
import pathlib
import tempfile

from absl.testing import absltest
import pytest

from benchmarks import arms


class SimulationTest(absltest.TestCase):

  def test_a_lost_machine_costs_the_steps_since_the_last_save(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    # It raises if the records are not in the order of the jobs.
    found = arms.simulate(root, count=30, workers=6)
    # Deaths are drawn from the names of the arms, so their number is fixed.
    self.assertEqual(found['machines lost'], 7)
    self.assertBetween(found['steps repeated/loss'], 0.1, arms.EVERY)

  @pytest.mark.long
  def test_an_arm_of_a_thousand_costs_what_one_of_a_hundred_costs(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    few, many = (
        arms.simulate(root / f'{count}', count, workers=8)
        for count in (100, 1000)
    )
    self.assertGreater(many['machines lost'], 200)
    self.assertLess(many['cpu ms/arm'], 1.5 * few['cpu ms/arm'])
    self.assertLess(many['steps repeated/loss'], arms.EVERY)


@pytest.mark.long
class RayTest(absltest.TestCase):

  def test_six_sleeping_arms_take_little_longer_than_one(self):
    pytest.importorskip('ray', reason='the extra ray')
    # To start six processes of Ray takes about 10 s of CPU.
    if os.getloadavg()[0] > 2 * os.cpu_count():
      self.skipTest('other work would count as overhead')
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.enterContext(absltest.mock.patch.dict(os.environ))
    found = arms.sleeping(root, 20.0)
    self.assertLess(found['six / one'], 1.3)
    self.assertLess(found['overhead s/arm'], 10)


if __name__ == '__main__':
  absltest.main()
