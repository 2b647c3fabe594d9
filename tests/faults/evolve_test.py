"""Killed before the row of every step, the run ends as if undisturbed."""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
import pytest

from evojax.ledger import chain
from evojax.runtime import mirror
from evojax.runtime import storage
from tests import compiled
from tests import objects
from tests import tiny

WORKER = pathlib.Path(__file__).with_name('evolve_worker.py')


URL = 'objects://bucket/run'


@pytest.mark.slow
class KillTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    variables = objects.make(cls.root)
    cls.enterClassContext(absltest.mock.patch.dict(os.environ, variables))
    done = subprocess.run(
        [sys.executable, WORKER, cls.root, URL],
        cwd=tiny.ROOT,
        env=tiny.environment(**compiled.OPTIMISED, OBJECTS_FAILING='0.05'),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
      raise AssertionError(done.stdout[-3000:] + done.stderr)

  def assert_same_end(self, workdir):
    """The rows and policies of a run are those of the undisturbed one."""
    reference = self.root / 'reference'
    undisturbed, killed = (
        [row['payload'] for row in chain.read(folder / 'ledger.jsonl')]
        for folder in (reference, workdir)
    )
    for expected, found in zip(undisturbed, killed, strict=True):
      self.assertEqual(found, expected)
    for policy in ('policy', 'policy_retrained'):
      weights = [
          (folder / policy / 'model.safetensors').read_bytes()
          for folder in (reference, workdir)
      ]
      self.assertEqual(*weights)

  def test_same_ledger_verdicts_and_parameters(self):
    self.assert_same_end(self.root / 'killed')
    self.assertLen(
        list((self.root / 'killed').glob('ledger.jsonl.damaged-*')), 1
    )

  def test_the_same_in_a_store(self):
    with mirror.opened(URL) as path:
      mirror.fetch(pathlib.Path(path))
      self.assert_same_end(pathlib.Path(path))
      names = {f.relative_to(path).as_posix() for f in files(path)}
    there = {n for n in storage.Store(URL).list() if not n.startswith('.')}
    rows = {name for name in there if name.startswith('ledger/')}
    self.assertLen(rows, len(chain.read(self.root / 'killed/ledger.jsonl')))
    # Nothing is left there of what the kills have cut off.
    self.assertEqual(there - rows, names - {'ledger.jsonl'})

  def test_a_store_names_no_folder_of_this_machine(self):
    with mirror.opened(URL) as path:
      texts = {f.name: f.read_text() for f in files(path) if f.suffix == '.txt'}
      self.assertIn('log.txt', texts)
      for name, text in texts.items():
        self.assertNotIn(str(self.root / 'cache'), text, name)


def files(root):
  return [file for file in pathlib.Path(root).rglob('*') if file.is_file()]


if __name__ == '__main__':
  absltest.main()
