"""The simulation of a run with many arms whose machines are lost."""

import pathlib
import tempfile

from absl.testing import absltest

from benchmarks import arms


class SimulationTest(absltest.TestCase):

  def test_a_lost_machine_costs_the_steps_since_the_last_save(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    # It raises if the records are not in the order of the jobs.
    found = arms.simulate(root, count=30, workers=6)
    # Deaths are drawn from the names of the arms, so their number is fixed.
    self.assertEqual(found['machines lost'], 7)
    self.assertBetween(found['steps repeated/loss'], 0.1, arms.EVERY)


if __name__ == '__main__':
  absltest.main()
