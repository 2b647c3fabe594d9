"""Rows of a run: their measured cost, and the stop by a budget."""

import pathlib
import tempfile

from absl.testing import absltest
import jax

from evojax.evolve import recorder
from evojax.ledger import budget
from evojax.ledger import chain
from evojax.ledger import records
from evojax.runtime import commands


class CostTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.now = 0.0
    self.meter = commands.Meter(lambda: self.now)
    self.recorder = recorder.Recorder(
        chain.Ledger(pathlib.Path(folder, 'ledger.jsonl')),
        budget.Budget(device_seconds=1000.0),
        lambda: None,
        lambda: None,
        self.meter,
    )

  def seal(self, seed):
    self.recorder.record(
        records.Seal, lambda: records.Seal(salt='', seed=seed), seed=seed
    )
    return self.recorder.rows[-1].measured

  def test_a_row_has_the_device_seconds_of_all_jobs(self):
    self.meter.begin('a', 4)
    self.now = 10.0
    measured = self.seal(0)  # Time before the step does not count.
    own = measured.seconds * jax.device_count()
    self.assertAlmostEqual(measured.device_seconds, own, places=3)

    def jobs():
      self.now += 5.0
      self.meter.begin('b', 8)
      self.meter.begin('b', 8)  # It has them already.
      self.now += 2.0
      self.meter.end('a')
      self.meter.end('c')  # It never had any.
      self.now += 1.0
      return records.Seal(salt='', seed=1)

    self.recorder.record(records.Seal, jobs, seed=1)
    measured = self.recorder.rows[-1].measured
    own = measured.seconds * jax.device_count()
    # 7 s on 4 devices, and so far 3 s on 8.
    self.assertAlmostEqual(measured.device_seconds - own, 28 + 24, places=3)

  def test_jobs_that_run_use_up_the_budget(self):
    self.seal(0)
    self.meter.begin('a', 100)
    self.now = 9.0
    self.recorder.stop_if_asked()
    self.now = 10.1
    with self.assertRaises(recorder.BudgetExhaustedError):
      self.recorder.stop_if_asked()


if __name__ == '__main__':
  absltest.main()
