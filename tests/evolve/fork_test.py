"""Copies of a version of another run, before a row names them."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from evojax.evolve import fork as fork_lib
from evojax.harness import spec
from evojax.ledger import records
from evojax.training import loop
from tests.ledger import samples

STEP = 'checkpoints/step_000004'


class DurableTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.source, self.target = root / 'source', root / 'target'
    for name in (f'{STEP}/meta.json', 'evidence/train/step_000000.parquet'):
      file = self.source / 'arms/r001-incumbent-3' / name
      file.parent.mkdir(parents=True)
      file.write_text(name)
    self.target.mkdir()
    # Every sync and rename, in order, with the path.
    self.calls, replace = [], os.replace

    def fsync(fd):
      self.calls.append(('sync', os.path.realpath(f'/proc/self/fd/{fd}')))

    def renamed(old, new):
      self.calls.append(('rename', os.path.realpath(old)))
      replace(old, new)

    self.enterContext(
        absltest.mock.patch.multiple(os, fsync=fsync, replace=renamed)
    )

  def check(self, copy):
    """All of a copy is synced before its rename, and the rename after it."""
    kinds = [kind for kind, _ in self.calls]
    last = len(kinds) - 1 - kinds[::-1].index('rename')
    temporary = self.calls[last][1]
    wanted = {
        os.path.realpath(path).replace(os.path.realpath(copy), temporary)
        for path in (copy, *copy.rglob('*'))
    }
    synced = {path for kind, path in self.calls[:last] if kind == 'sync'}
    self.assertEmpty(wanted - synced)
    self.assertEqual(
        self.calls[last + 1 :], [('sync', os.path.realpath(copy.parent))]
    )

  def test_a_version_of_a_run_that_evolves(self):
    harness = spec.Harness({'optim.learning_rate': 3e-4}, {})
    spec.write(harness, self.source / 'harness')
    arm = 'arms/r001-incumbent-3'
    fields = dict(folder=arm, checkpoint=f'{arm}/{STEP}')
    row = samples.record(records.Train, harness=harness.sha256, **fields)
    (version,) = samples.run(row).versions
    fork_lib.Fork(self.source, version).copy(self.target)
    self.check(self.target / 'arms/v0')

  def test_a_source_without_a_version(self):
    (self.source / 'ledger.jsonl').touch()
    none = mock.Mock(versions=())
    with mock.patch.object(fork_lib.history, 'read', return_value=none):
      with self.assertRaisesRegex(ValueError, 'it has no version yet'):
        fork_lib.open_fork(self.source, '')

  def test_a_checkpoint_of_a_run_that_trains(self):
    newest = self.source / 'arms/r001-incumbent-3' / STEP
    loop._fork(newest, self.target)
    self.check(self.target / 'checkpoints')


if __name__ == '__main__':
  absltest.main()
