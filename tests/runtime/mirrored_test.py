"""Folders of a workdir in an object store that other machines write."""

import contextlib
import itertools
import math
import os
import pathlib

from absl.testing import absltest

from evojax.runtime import lease
from evojax.runtime import listing
from evojax.runtime import mirror
from evojax.runtime import mirrored
from evojax.runtime import storage
from evojax.runtime import workdir as workdir_lib
from tests.runtime import mirror_test

URL = mirror_test.URL
write, files = mirror_test.write, mirror_test.files
checkpoint = mirror_test.checkpoint


class LoanTest(mirror_test.MirrorTestCase):
  """A folder that another machine writes, as if it were this process."""

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.enterContext(mirror.opened(URL)))
    self.workdir = self.open(self.path)
    self.addCleanup(self.workdir.close)
    self.workdir.keep()
    write(self.path / 'harness/h/overlay.json', '{}')
    checkpoint(self.path, 7)
    self.mirror = mirror.of(self.path)
    self.arm = self.path / 'arms/a'

  def lend(self):
    self.reads = self.mirror.published(self.path / 'harness')
    self.reads |= self.mirror.published(self.path / 'checkpoints')
    self.assertEqual(
        self.mirror.lend(self.arm, b'{}'), f'{URL}/arms/a/.job.json'
    )

  @contextlib.contextmanager
  def borrowed(self):
    with (
        mirror.borrowed(URL, 'arms/a', self.reads) as copy,
        workdir_lib.lock_folder(copy / 'arms/a'),
    ):
      yield copy

  def train(self, step):
    with self.borrowed() as copy:
      write(copy / 'arms/a/metrics.jsonl', f'{step}\n')
      mirror.publish(checkpoint(copy / 'arms/a', step, f'{step}'))

  def test_what_the_borrower_reads_and_what_the_run_gets(self):
    self.failing(0.05)
    self.lend()
    before = self.seen()
    with self.borrowed() as copy:
      start = copy / 'checkpoints/step_000007'
      self.assertTrue((copy / 'harness/h/overlay.json').exists())
      self.assertTrue((start / 'SHA256SUMS').exists())
      self.assertFalse((start / 'state/d/1').exists())
      mirror.fetch(start)
      self.assertTrue((start / 'state/d/1').exists())
      write(copy / 'config.json', 'not its own')
      write(copy / 'arms/a/metrics.jsonl', '1\n')
      mirror.publish(checkpoint(copy / 'arms/a', 1))
      mirror.peek(self.arm / 'metrics.jsonl')
      self.assertEqual((self.arm / 'metrics.jsonl').read_text(), '1\n')
      self.assertFalse(mirror.is_there(self.arm / 'arm.json'))
      write(copy / 'arms/a/arm.json', 'done')
    self.assertTrue(mirror.is_there(self.arm / 'arm.json'))
    self.mirror.publish()
    self.assertEqual(self.seen(), before)  # Until it is taken back.
    listed = listing.read(self.store).files
    self.assertEmpty([name for name in listed if name.startswith('arms/')])
    # A listing of runs does not take the arm for one.
    with mirror.opened_below('objects://bucket'):
      self.assertEqual(list(mirror._folders[0]._mirrors), ['run'])
    mirror.take_back(self.arm)
    state = self.arm / 'checkpoints/step_000001/state/d/1'
    self.assertFalse(state.exists())
    mirror.fetch(state.parent)
    self.assertEqual(state.read_text(), 'x')
    found = self.seen()
    self.assertEqual(found['arms/a/arm.json'], 'done')
    self.assertEqual(found['config.json'], before['config.json'])
    left = [n for n in self.store.list('arms') if '/.' in n]
    self.assertEmpty(left)

  def test_a_folder_goes_there_and_back_again(self):
    write(self.arm / 'metrics.jsonl', '1\n')
    checkpoint(self.arm, 1, '1')
    self.mirror.settle(self.arm)
    self.mirror.publish()
    self.lend()
    self.assertFalse(self.arm.exists())
    with self.borrowed() as copy:
      found = files(copy / 'arms/a')
      self.assertEqual(found['metrics.jsonl'], '1\n')
      self.assertNotIn('checkpoints/step_000001/state/d/1', found)
      os.rename(copy / 'arms/a/checkpoints/step_000001', copy / 'arms/a/o.tmp')
      mirror.publish(checkpoint(copy / 'arms/a', 2, '2'))
    mirror.take_back(self.arm)
    write(self.arm / 'metrics.jsonl', '3\n')
    self.mirror.publish()
    found = self.seen()
    self.assertEqual(found['arms/a/metrics.jsonl'], '3\n')
    self.assertIn('arms/a/checkpoints/step_000002/meta.json', found)
    old = 'arms/a/checkpoints/step_000001/meta.json'
    self.assertNotIn(old, self.objects())
    self.assertIn('arms/a/checkpoints/step_000002/state/d/1', self.objects())

  def test_whenever_the_run_is_killed_nothing_is_lost(self):
    """It dies at every request in turn while it takes back or lends."""
    self.enterContext(absltest.mock.patch.object(lease, 'TTL_SECONDS', 0.05))
    self.lend()
    self.train(1)
    self.workdir.close()
    self.mirror.release()
    kept = 'arms/a/checkpoints/step_000001/meta.json'
    for back in (True, False):
      died, request = True, 0
      while died:
        request += 1
        self.start_that_dies(math.inf, not back)
        died = self.start_that_dies(request, back)
        listed = listing.read(self.store).files
        own = listing.read(storage.Store(f'{URL}/arms/a')).files
        self.assertIn(kept, {*listed, *(f'arms/a/{name}' for name in own)})
        self.assertIn(kept, self.objects())
      self.assertGreater(request, 4)
    self.start_that_dies(math.inf, True)
    self.assertEqual(self.seen()['arms/a/metrics.jsonl'], '1\n')
    self.assertEmpty([n for n in self.store.list('arms') if '/.' in n])

  def start_that_dies(self, request, back):
    """Returns whether a start of the run died at a request to the store.

    It takes the folder back or lends it, unless that was done before.
    """
    call, calls = storage.Store._call, itertools.count(1)

    def dies(store, *args, **kwargs):
      if next(calls) >= request:
        raise KeyboardInterrupt
      return call(store, *args, **kwargs)

    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      arm, run = pathlib.Path(path, 'arms/a'), mirror.of(path)
      if run.has_lent(arm) != back:
        return False
      with absltest.mock.patch.object(storage.Store, '_call', dies):
        try:
          if back:
            mirror.take_back(arm)
          else:
            run.lend(arm, b'{}')
        except KeyboardInterrupt:
          run._publishes, workdir._mirror = False, None
          return True
    return False

  def test_a_new_start_of_the_run_leaves_what_is_lent(self):
    self.lend()
    self.train(1)
    # A worker that is killed in an upload leaves this.
    self.store.write('arms/a/checkpoints/step_000002/meta.json', b'')
    self.store.write('arms/b/.lease/000001.json', b'{}')
    self.workdir.close()
    self.mirror.release()
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      arm = pathlib.Path(path, 'arms/a')
      self.assertTrue(mirror.of(path).has_lent(arm))
      self.assertIn('arms/a/checkpoints/step_000001/meta.json', self.objects())
      self.assertEmpty(self.store.list('arms/b'))
      self.train(3)
      mirror.take_back(arm)
      self.assertNotIn(
          'arms/a/checkpoints/step_000002/meta.json', self.objects()
      )
      self.assertEqual((arm / 'metrics.jsonl').read_text(), '3\n')

  def test_one_borrower_at_a_time(self):
    # However slow this machine is, the holder renews its lease in time.
    for name, seconds in (('TTL_SECONDS', 60), ('RENEW_SECONDS', 0.1)):
      self.enterContext(absltest.mock.patch.object(lease, name, seconds))
    self.enterContext(
        absltest.mock.patch.object(workdir_lib, '_LOCK_SECONDS', 0.5)
    )
    self.enterContext(
        absltest.mock.patch.object(mirrored, '_RETURN_SECONDS', 0.5)
    )
    self.lend()
    with self.borrowed():
      with self.assertRaisesRegex(
          workdir_lib.WorkdirError, f'{URL}/arms/a is in use by pid'
      ):
        with self.borrowed():
          pass
      with self.assertRaisesRegex(lease.LeaseError, 'in use by pid'):
        mirror.take_back(self.arm)
    mirror.take_back(self.arm)


if __name__ == '__main__':
  absltest.main()
