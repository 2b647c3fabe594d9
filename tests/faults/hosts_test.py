"""Pairs of processes that train without a shared directory, and are killed."""

import json
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
import pytest

from evojax.runtime import checkpoint
from evojax.runtime import listing
from evojax.runtime import mirror
from evojax.runtime import preemption
from evojax.runtime import storage
from tests import objects
from tests import pairs
from tests import tiny
from tests.faults import hosts_worker
from tests.faults import kill_test


def arrays(workdir):
  """Name -> array of the newest checkpoint of a workdir."""
  folder = pathlib.Path(workdir, 'checkpoints')
  meta = json.loads((folder / 'step_000002/meta.json').read_text())
  like = {
      name: np.zeros(form['shape'], form['dtype'])
      for name, form in meta['leaves'].items()
      if not form['dtype'].startswith('key')
  }
  like['key'] = jax.eval_shape(lambda: jax.random.key(0))
  found, _ = checkpoint.Checkpointer(folder, every=1, keep=1).restore_latest(
      like
  )
  return found | {'key': jax.random.key_data(found['key'])}


@pytest.mark.slow
@pytest.mark.long
class HostsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    cls.enterClassContext(absltest.mock.patch.dict(os.environ, variables))
    policy = tiny.make_policy(root / 'policy')
    rows = pairs.play(
        'tests.faults.hosts_worker',
        *(root, f'tests/tiny.py:{policy}', *hosts_worker.POINTS, 'fork'),
    )
    cls.found = {row['name']: row for row in rows}
    cls.root, cls.store = root, storage.Store(hosts_worker.URL)

  def uploads(self, name, process):
    return (self.root / f'{name}.uploads{process}').read_text().split()

  @parameterized.parameters('sent', 'naming')
  def test_both_are_killed(self, point):
    found = self.found[point]
    self.assertEqual(found['codes'], [-9, -9], found['out'])

  def test_process_0_does_not_wait_for_one_that_is_gone(self):
    left = self.found['left']
    self.assertEqual(left['codes'], [preemption.AGAIN, -9], left['out'])
    *_, line = left['out'][0].splitlines()
    self.assertRegex(line, r'^process 1 on \S+ has (gone|been silent)')

  def test_the_same_command_goes_on(self):
    for point in ('left', 'naming', 'end'):
      self.assertIn('continuing from step 1\n', self.found[point]['out'][0])
    end = self.found['end']
    self.assertEqual(end['codes'], [0, 0], end['out'])
    self.assertIn(f'policy: {hosts_worker.URL}/policy', end['out'][0])
    # The other process has nothing to say.
    self.assertNotIn('WARNING', end['out'][1])

  def test_the_end_is_that_of_a_shared_directory(self):
    whole = self.root / 'whole'
    with mirror.opened(hosts_worker.URL) as path:
      path = pathlib.Path(path)
      mirror.fetch(path)
      self.assertEqual(kill_test.metrics(path), kill_test.metrics(whole))
      self.assertEqual(kill_test.policy(path), kill_test.policy(whole))
      found, wanted = kill_test.evidence(path), kill_test.evidence(whole)
      self.assertEqual(list(found), list(wanted))
      for name, table in wanted.items():
        self.assertTrue(found[name].equals(table), name)
      read = lambda folder: kill_test.read_json(folder / 'summary.json')
      self.assertEqual(read(path), read(whole))
      jax.tree.map(np.testing.assert_array_equal, arrays(path), arrays(whole))

  def test_each_process_uploads_its_own_shards(self):
    first, second = (self.uploads('end', process) for process in (0, 1))
    half = 'checkpoints/step_000002/state/learner/params/embed/c/{}/0'
    self.assertIn(half.format(0), first)
    self.assertIn(half.format(1), second)
    self.assertNoCommonElements(first, second)
    for name in second:
      self.assertStartsWith(name, 'checkpoints/step_000002/state/')

  def test_no_object_is_left_of_what_the_kills_cut_off(self):
    names = listing.read(self.store).files
    found = [n for n in self.store.list() if not n.startswith('.')]
    self.assertEqual(set(found), set(names))

  def test_a_fork_begins_with_its_checkpoint(self):
    fork = self.found['fork']
    self.assertEqual(fork['codes'], [0, 0], fork['out'])
    self.assertIn('continuing from step 2\n', fork['out'][0])
    with mirror.opened(hosts_worker.FORK) as path:
      mirror.fetch(pathlib.Path(path))
      found = arrays(path)
    jax.tree.map(
        np.testing.assert_array_equal, found, arrays(self.root / 'whole')
    )


if __name__ == '__main__':
  absltest.main()
