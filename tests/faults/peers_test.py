"""Two processes of one run: one dies, stops, or is asked to end.

Pairs that only wait for each other are in tests/multi_device/peers_test.py.
"""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from evojax.ledger import chain
from evojax.runtime import preemption
from tests import pairs
from tests import tiny
from tests.faults import kill_test

WORKER = 'tests.faults.peers_worker'
# What is lost with SIGKILL, SIGSTOP of each; the longest until all have ended.
LIMIT_SECONDS = 60


class PeersTestCase(parameterized.TestCase):

  def play(self, mode, config, *scenes, hidden_size=16):
    """Scene -> what the worker says of it."""
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    if not config:
      policy = tiny.make_policy(self.root / 'policy', hidden_size=hidden_size)
      config = f'tests/tiny.py:{policy}'
    rows = pairs.play(WORKER, self.root, mode, config, *scenes)
    found = {row['scene']: row for row in rows}
    for scene in ('whole', 'end'):
      self.assertEqual(found[scene]['codes'], [0, 0], found[scene]['out'])
    return found

  def assert_named(self, found, gone, why):
    """All but one process name that one, in one line, and end in time."""
    other = 1 - gone
    self.assertEqual(found['codes'][other], preemption.AGAIN, found['out'])
    lines = [
        line
        for line in found['out'][other].splitlines()
        if 'process' in line and 'exit code 75' in line
    ]
    self.assertLen(lines, 1, found['out'])
    self.assertRegex(lines[0], rf'^process {gone} on \S+ {why}')
    # Nothing of what failed because of it.
    self.assertEndsWith(found['out'][other], lines[0] + '\n')
    self.assertNotIn('error', found['out'][other])
    self.assertLess(found['seconds'][other], LIMIT_SECONDS)

  def assert_killed(self, found, gone):
    self.assertEqual(found['codes'][gone], -9)
    self.assert_named(found, gone, 'has (gone away|been silent for 4. s)')

  def assert_stopped(self, found, gone):
    self.assert_named(found, gone, 'has been silent for 4. s')
    # Once it goes on.
    self.assertEqual(found['codes'][gone], preemption.AGAIN, found['out'])
    self.assertIn('exit code 75', found['out'][gone])
    between = found['seconds'][gone] - found['seconds'][1 - gone]
    self.assertLess(between, 20)

  def assert_terminated(self, found):
    self.assertEqual(found['codes'], [preemption.AGAIN] * 2, found['out'])
    self.assertIn('SIGTERM: ', found['out'][0])
    self.assertIn('saved', found['out'][0])
    self.assertNotIn('error', found['out'][0] + found['out'][1])


@pytest.mark.slow
@pytest.mark.long
class TrainTest(PeersTestCase):

  def assert_undisturbed(self):
    whole, run = self.root / 'whole', self.root / 'run'
    self.assertEqual(kill_test.metrics(run), kill_test.metrics(whole))
    self.assertEqual(kill_test.policy(run), kill_test.policy(whole))
    found, wanted = kill_test.evidence(run), kill_test.evidence(whole)
    self.assertEqual(list(found), list(wanted))
    for name, table in wanted.items():
      self.assertTrue(found[name].equals(table), name)

  def test_the_first_killed(self):
    found = self.play('train', '', 'SIGKILL-0')
    self.assert_killed(found['SIGKILL-0'], 0)
    self.assertLess(found['SIGKILL-0']['seconds'][1], 20)
    self.assert_undisturbed()

  def test_the_second_killed_stopped_or_terminated(self):
    found = self.play('train', '', 'SIGKILL-1', 'SIGSTOP-1', 'SIGTERM-1')
    self.assert_killed(found['SIGKILL-1'], 1)
    self.assert_stopped(found['SIGSTOP-1'], 1)
    self.assert_terminated(found['SIGTERM-1'])
    self.assertIn('continuing from step', found['end']['out'][0])
    self.assert_undisturbed()

  def test_the_first_out_of_disk(self):
    # A policy whose checkpoints have larger files than evidence.
    found = self.play('train', '', 'disk-0', hidden_size=128)
    # What ends by itself is not for another start.
    self.assertEqual(found['disk-0']['codes'], [2, 2], found['disk-0']['out'])
    first, second = found['disk-0']['out']
    self.assertIn('error: checkpoint', first)
    self.assertRegex(second, r'process 0 on \S+ failed with exit code 2')
    self.assert_undisturbed()


@pytest.mark.slow
@pytest.mark.long
class EvolveTest(PeersTestCase):

  @parameterized.parameters('SIGKILL-0', 'SIGKILL-1', 'SIGSTOP-1', 'SIGTERM-1')
  def test_in_a_round(self, scene):
    scenes = self.play('evolve', 'tests/tiny.py:evolving', scene)
    found, gone = scenes[scene], int(scene[-1])
    if 'KILL' in scene:
      self.assert_killed(found, gone)
    elif 'STOP' in scene:
      self.assert_stopped(found, gone)
    else:
      self.assert_terminated(found)
    rows = lambda name: chain.read(self.root / name / 'ledger.jsonl')
    whole, run = (
        [row['payload'] for row in rows(name)] for name in ('whole', 'run')
    )
    self.assertEqual(run, whole)
    self.assertEqual(whole[-1]['step'], 'final')


if __name__ == '__main__':
  absltest.main()
