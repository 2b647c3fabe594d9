"""Goodput, worked out by hand."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from evojax.runtime import goodput
from evojax.runtime import run_files


class GoodputTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )
    self.now = 1000.0

  def steps(self, *steps, seconds=10.0, rest=2.0):
    """Makes steps that end every `seconds + rest`; returns the last metrics."""
    with goodput.Clock(self.folder, lambda: self.now) as clock:
      for step in steps:
        self.now += seconds
        last = clock.finish(step, seconds)
        self.now += rest
    return last

  def test_without_restarts(self):
    # Three steps of 10 s, and twice 2 s between them: 30 of 34 s.
    last = self.steps(1, 2, 3)
    self.assertAlmostEqual(last['goodput'], 30 / 34)
    self.assertEqual((last['restarts'], last['lost_seconds']), (0, 0))

  def test_repeated_steps_and_the_time_without_a_process_are_lost(self):
    self.steps(1, 2, 3, 4)  # The checkpoint is of step 2, which ends at 22 s.
    self.now += 100.0  # Step 4 has ended at 46 s; 48 to 148 s: no process.
    last = self.steps(3, 4, 5)
    # Step 3 begins anew at 148 s: 126 s after step 2 has ended.
    self.assertEqual((last['restarts'], last['lost_seconds']), (1, 126))
    # Five steps count; the last one ends at 148 + 34 = 182 s.
    self.assertAlmostEqual(last['goodput'], 50 / 182)

  def test_a_second_restart_from_the_same_checkpoint_is_counted_once(self):
    self.steps(1, 2)
    self.steps(3)  # Ends at 34 s, and is lost as well.
    self.now += 10.0
    last = self.steps(3)
    # 46 s - 22 s, and not the 2 s before the first restart on top of it.
    self.assertEqual((last['restarts'], last['lost_seconds']), (2, 24))

  def test_all_steps_are_lost(self):
    self.steps(1, 2)
    last = self.steps(1)  # Begins at 24 s.
    self.assertEqual((last['restarts'], last['lost_seconds']), (1, 24))
    self.assertAlmostEqual(last['goodput'], 10 / 34)

  def test_a_torn_line_is_replaced(self):
    self.steps(1)
    path = self.folder / run_files.TIMES
    path.write_bytes(path.read_bytes() + b'{"step": 2, "sta')
    self.steps(2)
    self.assertLen(path.read_text().splitlines(), 2)
    last = self.steps(3)
    self.assertEqual(last['restarts'], 2)

  def test_a_line_that_lacks_only_its_end(self):
    self.steps(1)
    path = self.folder / run_files.TIMES
    path.write_bytes(path.read_bytes()[:-1])
    self.steps(2)
    self.assertEqual(list(goodput.ends(self.folder)), [1, 2])

  def test_a_start_without_a_step_writes_nothing(self):
    with goodput.open_clock(self.folder, True):
      pass
    self.assertEmpty(list(self.folder.iterdir()))
    self.assertEqual(self.steps(1)['restarts'], 0)

  def test_clocks_that_differ(self):
    self.steps(1, 2)
    self.now -= 500.0  # Another machine.
    last = self.steps(3)
    self.assertEqual(last['lost_seconds'], 0)
    self.assertBetween(last['goodput'], 0, 1)

  def test_a_start_holds_its_devices_until_its_last_step(self):
    self.assertEqual(goodput.held(self.folder), [])
    self.steps(1, 2, 3, 4)  # Of 10 s each, with 2 s after it.
    self.now += 100.0  # Without a process.
    self.steps(3, 4, 5)
    starts = [
        {'start': f'1970-01-01T00:{start}+00:00', 'devices': devices}
        for start, devices in (('16:30', 8), ('18:00', 4), ('19:00', 2))
    ]
    (self.folder / 'manifest.json').write_text(json.dumps(starts))
    seconds = [s for _, s in goodput.held(self.folder)]
    # 990 s to 1046 s, no step from 1080 s on, and 1140 s to 1182 s.
    self.assertEqual(seconds, [56.0, 0.0, 42.0])

  def test_of_a_run_that_evolves(self):
    self.assertEqual(goodput.of_evolving(self.folder, 5.0, 100.0), {})
    starts = [
        {'start': f'1970-01-01T00:{minute}:00+00:00'} for minute in ('01', '03')
    ]
    (self.folder / 'manifest.json').write_text(json.dumps(starts))
    # From 60 s to 300 s.
    found = goodput.of_evolving(self.folder, 180.0, 300.0)
    expected = {'goodput': 0.75, 'restarts': 1, 'lost_seconds': 60.0}
    self.assertEqual(found, expected)
    # The clock of another machine may be behind.
    found = goodput.of_evolving(self.folder, 180.0, 70.0)
    self.assertEqual((found['goodput'], found['lost_seconds']), (1.0, 0.0))


if __name__ == '__main__':
  absltest.main()
