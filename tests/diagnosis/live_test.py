"""A training is diagnosed beside itself: what is said, when, and how often."""

import contextlib
import io
import os
import pathlib
import subprocess
import tempfile
import time
from unittest import mock

from absl.testing import absltest

from evojax.diagnosis import live as live_lib
from evojax.evidence import store
from tests.diagnosis import made


class LiveTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder)
    self.now = 0.0

  def write(self, sign=1.0):
    """Write the evidence of a run; with sign -1 it pays what is wrong."""
    rows = made.rollouts(rise=2.0 * sign)
    rows = rows.assign(reward=sign * rows['outcome'], graded=True)
    for step, of_step in rows.groupby('step'):
      path = store.path_of(self.path, 'train', step)
      path.parent.mkdir(parents=True, exist_ok=True)
      of_step.to_parquet(path)

  def live(self):
    live = live_lib.Live(self.path, clock=lambda: self.now)
    self.enterContext(live)
    return live

  def updated(self, live, seconds):
    """Pass time, finish what is due then, and return what was printed."""
    self.now += seconds
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      live.update()
      late = time.monotonic() + 120
      while live._process is not None and time.monotonic() < late:
        time.sleep(0.05)
        live.update()
    return ' '.join(printed.getvalue().split())

  def finished(self, live, **kwargs):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      live.finish(**kwargs)
    return ' '.join(printed.getvalue().split())

  def test_a_critical_finding_is_said_once(self):
    self.write(sign=-1.0)
    live = self.live()
    self.assertEqual(self.updated(live, 0), '')
    self.assertEqual(self.updated(live, 59), '')
    self.assertFalse((self.path / 'diagnosis.json').exists())
    said = self.updated(live, 1)
    self.assertStartsWith(said, 'diagnosis so far: 1 critical ')
    self.assertRegex(said, r' change .* page: \S+diagnosis\.html$')
    (self.path / 'diagnosis.json').unlink()
    self.assertEqual(self.updated(live, 59), '')  # Not due.
    self.assertFalse((self.path / 'diagnosis.json').exists())
    self.assertEqual(self.updated(live, 1e6), '')  # Nothing new.
    self.assertTrue((self.path / 'diagnosis.json').exists())
    # At the end all faults are shown, also just after a diagnosis.
    self.assertStartsWith(self.finished(live), 'diagnosis: 1 critical ')

  def test_a_sound_run_is_quiet_until_its_end(self):
    self.write()
    live = self.live()
    self.assertEqual(self.updated(live, 0), '')
    self.assertEqual(self.finished(live), '')  # It took less than a minute.
    self.assertFalse((self.path / 'diagnosis.json').exists())
    self.assertEqual(self.updated(live, 60), '')
    said = self.finished(live)
    self.assertStartsWith(said, 'diagnosis: The solved share rises from ')
    self.assertIn('found nothing wrong', said)

  def test_a_short_run_may_have_to_be_diagnosed(self):
    self.write(sign=-1.0)
    said = self.finished(self.live(), must=True)
    self.assertStartsWith(said, 'diagnosis: 1 critical ')

  def test_a_failure_is_said_once_and_hurts_nothing(self):
    path = store.path_of(self.path, 'train', 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b'torn')
    live = self.live()
    self.updated(live, 0)
    with self.assertLogs(level='WARNING') as logged:
      self.updated(live, 60)
    self.assertLen(logged.output, 1)
    self.assertIn('no diagnosis of', logged.output[0])
    self.assertEqual(self.updated(live, 1e6), '')
    self.assertEqual(self.finished(live, must=True), '')

  def test_a_machine_without_room_for_a_process_trains_on(self):
    self.write()
    live = self.live()
    self.updated(live, 0)
    full = OSError('Cannot allocate memory')
    with (
        mock.patch.object(subprocess, 'Popen', side_effect=full),
        self.assertLogs(level='WARNING') as logged,
    ):
      self.updated(live, 60)
    self.assertIn('Cannot allocate memory', logged.output[0])
    self.assertEqual(self.finished(live, must=True), '')

  def test_too_much_evidence_is_left_to_the_user(self):
    self.write(sign=-1.0)
    live = self.live()
    self.updated(live, 0)
    with mock.patch.object(live_lib, '_MOST_BYTES', 0):
      self.assertIn('over 0 MB of evidence', self.updated(live, 60))
    self.assertEqual(self.updated(live, 1e6), '')
    self.assertEqual(self.finished(live, must=True), '')

  def test_a_run_that_stops_leaves_no_process(self):
    self.write()
    with live_lib.Live(self.path, clock=lambda: self.now) as live:
      live.update()
      self.now = 60.0
      live.update()
      process = live._process
      self.assertIsInstance(process, subprocess.Popen)
      nice = lambda pid: os.getpriority(os.PRIO_PROCESS, pid)
      self.assertEqual(nice(process.pid), min(nice(0) + 10, 19))
    self.assertIsNotNone(process.poll())


if __name__ == '__main__':
  absltest.main()
