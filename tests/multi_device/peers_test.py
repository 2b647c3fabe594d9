"""Two processes wait for each other: one dies, stops, hangs, or is late.

See tests/faults/peers_test.py for pairs that train.
"""

import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from evojax.runtime import preemption
from tests import pairs


@pytest.mark.slow
class PeersTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = cls.enterClassContext(tempfile.TemporaryDirectory())
    scenes = (
        *('SIGKILL-0', 'SIGKILL-1', 'SIGSTOP-0', 'SIGSTOP-1'),
        'slow-1',
        'hang-1',
        'alone-1',
    )
    rows = pairs.play('tests.multi_device.peers_worker', root, *scenes)
    cls.found = {row['scene']: row for row in rows}

  def assert_named(self, scene, gone, why, seconds):
    """The other process says one line, and ends in time."""
    found, other = self.found[scene], 1 - gone
    self.assertEqual(found['codes'][other], preemption.AGAIN, found['out'])
    # The first one is of gloo, at the start.
    *_, line = lines = found['out'][other].splitlines()
    self.assertLessEqual(len(lines), 2, found['out'])
    self.assertRegex(line, rf'^process {gone} on \S+ {why}, last seen in nap; ')
    self.assertEndsWith(line, '75: start all processes again, they continue')
    self.assertLess(found['seconds'][other], seconds)

  def test_the_first_is_killed(self):
    self.assert_named('SIGKILL-0', 0, 'has gone away', 20)

  def test_the_second_is_killed(self):
    self.assert_named('SIGKILL-1', 1, r'has been silent for 4\d s', 60)

  @parameterized.parameters(
      (0, r'has not answered for 4\d s'),
      (1, r'has been silent for 4\d s'),
  )
  def test_one_is_stopped_and_goes_on_later(self, gone, why):
    self.assert_named(f'SIGSTOP-{gone}', gone, why, 60)
    found = self.found[f'SIGSTOP-{gone}']
    self.assertEqual(found['codes'][gone], preemption.AGAIN, found['out'])
    *_, line = lines = found['out'][gone].splitlines()
    self.assertLessEqual(len(lines), 2, found['out'])
    self.assertStartsWith(line, f'process {gone} on ')
    between = found['seconds'][gone] - found['seconds'][1 - gone]
    self.assertLess(between, 20)

  def test_a_program_that_ends_in_no_process_ends_all(self):
    found = self.found['hang-1']
    self.assertEqual(found['codes'], [preemption.AGAIN] * 2, found['out'])
    for out in found['out']:
      *_, line = lines = out.splitlines()
      self.assertLessEqual(len(lines), 2, found['out'])
      self.assertRegex(
          line,
          r'^no process has got any further for 1\d s \(--collective_seconds\):'
          r' process 0 on \S+ is in update, process 1 on \S+ is in update; '
          r'exit code 75: start all processes again, they continue$',
      )
    self.assertLess(max(found['seconds']), 30)

  def test_a_program_that_never_ends_ends_a_process_of_several_devices(self):
    found = self.found['alone-1']
    self.assertEqual(found['codes'], [preemption.AGAIN, 0], found['out'])
    (line,) = found['out'][0].splitlines()
    self.assertRegex(
        line,
        r'^this process has got no further for 1\d s \(--collective_seconds\),'
        r' it is in update; exit code 75: start the same command again, it'
        r' continues$',
    )

  def test_one_that_is_late_but_advances_is_waited_for(self):
    found = self.found['slow-1']
    self.assertEqual(found['codes'], [0, 0], found['out'])
    self.assertNotIn('process', ''.join(found['out']))


if __name__ == '__main__':
  absltest.main()
