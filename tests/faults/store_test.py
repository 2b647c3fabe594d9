"""Killed anywhere, a run in an object store goes on as if nothing had happened.

The store has no rename, no append and no lock, and five calls of a hundred
fail; see tests/objects.py.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
import pytest

from evojax.ledger import history
from evojax.ledger import records
from evojax.runtime import listing
from evojax.runtime import mirror
from evojax.runtime import storage
from tests import objects
from tests import tiny
from tests.faults import kill_test
from tests.faults import store_worker

_MAIN = """
import sys
import tests.objects
from absl import app
from evojax import main
app.run(main.main, flags_parser=main.parse_flags, argv=['main', *sys.argv[1:]])
"""


def command(*flags):
  """Runs the command line with the scheme objects://."""
  return subprocess.run(
      [sys.executable, '-c', _MAIN, *flags],
      cwd=tiny.ROOT,
      env=tiny.environment(COLUMNS='200'),
      capture_output=True,
      text=True,
      check=False,
  )


@pytest.mark.slow
class StoreTest(kill_test._Killed):
  WORKER, CONFIG = 'store_worker', 'tests.tiny'
  POINTS = tuple(store_worker.POINTS)

  @classmethod
  def setUpClass(cls):
    folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    variables = objects.make(folder)
    cls.enterClassContext(absltest.mock.patch.dict(os.environ, variables))
    super().setUpClass()
    cls.flags = f'--config=tests/tiny.py:{store_worker.POLICY}'
    cls.store = storage.Store(store_worker.URL)

  def objects(self):
    """Name -> content of what counts of the run."""
    names = listing.read(self.store).files
    return {name: self.store.read(name) for name in names}

  def test_the_end_is_that_of_a_local_run(self):
    with mirror.opened(store_worker.URL) as path:
      mirror.fetch(pathlib.Path(path))
      self.assert_bit_equal(pathlib.Path(path))
      checkpoints = sorted(os.listdir(f'{path}/checkpoints'))
    self.assertEqual(checkpoints, ['step_000002', 'step_000004'])

  def test_no_object_is_left_of_what_the_kills_cut_off(self):
    names = listing.read(self.store).files
    found = [n for n in self.store.list() if n.startswith('checkpoints/')]
    self.assertEqual(set(found), {n for n in names if n in found})
    cache = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'evojax/remote')
    self.assertEqual(os.listdir(cache / 'runs'), [])

  def test_every_process_went_on_from_a_checkpoint(self):
    self.assertEqual(self.finished_steps('naming'), [0, 1])
    # Nothing named the checkpoint, although all of its objects were there.
    self.assertEqual(self.finished_steps('sent')[:2], [0, 1])
    self.assertEqual(self.finished_steps('downloading'), [])
    self.assertEqual(self.finished_steps('exporting'), [2, 3])
    self.assertLessEqual(len(self.finished_steps('finish')), 2)

  @pytest.mark.long
  def test_a_report_is_made_from_it(self):
    before = self.objects()
    report = command('--mode=report', f'--workdir={store_worker.URL}')
    self.assertEqual(report.returncode, 0, report.stderr)
    self.assertIn(f'page: {store_worker.URL}/report.html', report.stdout)
    after = self.objects()
    self.assertIn(b'<html', after.pop('report.html'))
    del before['report.html']
    self.assertEqual(after, before)

  @pytest.mark.long
  def test_it_is_listed_beside_others(self):
    listed = command(
        '--mode=runs', '--workdir=objects://bucket', '--format=json'
    )
    self.assertEqual(listed.returncode, 0, listed.stderr)
    (run,) = json.loads(listed.stdout)
    self.assertEqual((run['name'], run['state']), ('killed', 'finished'))
    self.assertEqual(run['step'], 4)

  @pytest.mark.long
  def test_its_evidence_is_read(self):
    shown = command(
        self.flags, '--mode=inspect', f'--workdir={store_worker.URL}'
    )
    self.assertEqual(shown.returncode, 0, shown.stderr)
    self.assertIn('chain_sum', shown.stdout)

  @pytest.mark.long
  def test_its_policy_is_scored_beside_it(self):
    before = self.objects()
    flags = self.flags, '--mode=eval', f'--workdir={store_worker.URL}'
    for _ in range(2):  # The second one finds the first one's directory.
      scored = command(*flags)
      self.assertEqual(scored.returncode, 0, scored.stderr)
    beside = storage.Store(f'{store_worker.URL}-policy-eval')
    summary = json.loads(beside.read('eval.json'))
    self.assertIn('dev/avg_at_k', summary['metrics'])
    config = json.loads(beside.read('config.json'))['config']
    self.assertEqual(config['model']['path'], f'{store_worker.URL}/policy')
    self.assertEqual(self.objects(), before)


@pytest.mark.long
class ForkTest(absltest.TestCase):
  """Runs that evolve, in a store: one is forked from and compared with."""

  def _history(self, name):
    with mirror.opened(f'objects://bucket/{name}') as path:
      return history.read(pathlib.Path(path))

  def test_a_run_is_forked_from_and_compared_with_others_of_the_store(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(folder)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    at = lambda name: f'objects://bucket/{name}'
    config = '--config=tests/tiny.py:evolving'
    for flags in (
        [f'--workdir={at("first")}'],
        ['--mode=train', f'--workdir={at("plain")}'],
        [
            f'--workdir={at("second")}',
            f'--fork_from={at("first")}',
            '--fork_version=v0',
            f'--compare={at("plain")}',
        ],
    ):
      ended = command(config, *flags)
      self.assertEqual(ended.returncode, 0, f'{flags}: {ended.stderr}')
    first, second = map(self._history, ('first', 'second'))
    self.assertEqual(second.base.end, first.base.end)
    summary = json.loads(storage.Store(at('second')).read('summary.json'))
    self.assertIsInstance(summary['sealed']['smoke'], dict)  # Its variant.
    # Nothing was written to the runs that were only read, and no copy is left.
    self.assertEqual(second.find(records.Open).forked, 'first:v0')
    self.assertLen(self._history('first').rows, len(first.rows))
    cache = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'evojax/remote')
    self.assertEqual(os.listdir(cache / 'runs'), [])


if __name__ == '__main__':
  absltest.main()
