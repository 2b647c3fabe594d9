"""Rows of a run: their measured cost, and the stop by a budget."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import jax

from evojax.evolve import recorder
from evojax.ledger import budget
from evojax.ledger import chain
from evojax.ledger import records
from evojax.runtime import commands
from evojax.runtime import preemption


class CostTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.ledger = pathlib.Path(folder, 'ledger.jsonl')
    self.now = 0.0
    self.start()

  def start(self, device_seconds=1000.0):
    """Start a process that opens the ledger."""
    self.meter = commands.Meter(lambda: self.now)
    self.recorder = recorder.Recorder(
        chain.Ledger(self.ledger),
        budget.Budget(device_seconds=device_seconds),
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

  def stopped(self, seed, device_seconds):
    """Stop a process in the middle of a step, which then has no row."""

    def step():
      self.recorder.stop_if_asked()
      self.meter.begin('arm', 1)
      self.now += device_seconds
      self.meter.end('arm')
      raise preemption.Preempted

    with self.assertRaises(preemption.Preempted):
      self.recorder.record(records.Seal, step, seed=seed)
    self.recorder.keep_cost()

  def files(self):
    return sorted(path.name for path in self.ledger.parent.iterdir())

  def test_a_step_costs_what_it_cost_before_a_stop(self):
    self.seal(0)
    for seconds in (20.0, 100.0):
      self.stopped(1, seconds)
      self.start()
    kept = self.ledger.with_name('ledger.unrecorded.json').read_text()
    measured = self.seal(1)
    own = measured.seconds * jax.device_count()
    self.assertAlmostEqual(measured.device_seconds - own, 120.0, places=3)
    # The cost of the step is in its row now, and in no other row.
    self.assertEqual(self.files(), ['ledger.jsonl'])
    self.ledger.with_name('ledger.unrecorded.json').write_text(kept)
    self.start()
    self.assertLess(self.seal(2).device_seconds, 60.0)

  def test_a_stop_changes_no_payload(self):
    seals = lambda: [row['payload'] for row in chain.read(self.ledger)]
    self.stopped(0, 5.0)
    self.start()
    self.seal(0)
    stopped, head = seals(), self.recorder.head
    self.ledger.unlink()
    self.start()
    self.seal(0)
    self.assertEqual((stopped, head), (seals(), self.recorder.head))

  def test_the_budget_counts_what_was_spent_before_a_stop(self):
    self.stopped(0, 990.0)
    self.start()
    self.meter.begin('arm', 1)
    self.now += 5.0
    self.recorder.stop_if_asked()
    self.now += 5.1
    with self.assertRaises(recorder.BudgetExhaustedError):
      self.recorder.stop_if_asked()

  def test_a_budget_that_was_raised_is_spent_once(self):

    def step():
      self.recorder.stop_if_asked()
      self.meter.begin('arm', 1)
      self.now += 1000.0
      self.recorder.stop_if_asked()

    for limit in (1000.0, 1900.0):  # The step still has no row.
      self.start(limit)
      with self.assertRaises(recorder.BudgetExhaustedError):
        self.recorder.record(records.Seal, step, seed=0)
      self.recorder.stop('budget')
    self.start(1900.0)
    with self.assertRaises(recorder.BudgetExhaustedError):
      self.recorder.record(records.Seal, self.fail, seed=0)
    self.assertLen(self.recorder.rows, 1)

  def test_a_killed_process_has_stored_its_cost_from_time_to_time(self):
    self.meter.begin('arm', 1)
    self.now += 7.0
    self.recorder.stop_if_asked()
    self.assertEqual(self.files(), ['ledger.jsonl'])
    with mock.patch.object(recorder, '_KEEP_SECONDS', 0.0):
      self.recorder.stop_if_asked()
    self.start()
    measured = self.seal(0)
    self.assertGreater(measured.device_seconds, 7.0)

  def test_a_start_that_fails_leaves_no_file(self):
    self.recorder.keep_cost()
    self.assertEqual(self.files(), ['ledger.jsonl'])

  def test_a_damaged_file_costs_nothing(self):
    after = f'{{"after": "{chain.START}", '
    for text in ('', '[]', '{}', after, after + '"seconds": null}'):
      self.ledger.with_name('ledger.unrecorded.json').write_text(text)
      self.start()
    self.assertLess(self.seal(0).device_seconds, 60.0)


if __name__ == '__main__':
  absltest.main()
