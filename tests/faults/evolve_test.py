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
from tests import compiled
from tests import objects  # noqa: F401, which registers a scheme.
from tests import tiny

WORKER = pathlib.Path(__file__).with_name('evolve_worker.py')


class KillTest(absltest.TestCase):

  @pytest.mark.slow
  def test_same_ledger_verdicts_and_parameters(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    done = subprocess.run(
        [sys.executable, WORKER, root],
        cwd=tiny.ROOT,
        env=tiny.environment(**compiled.OPTIMISED),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
    undisturbed, killed = (
        [row['payload'] for row in chain.read(root / name / 'ledger.jsonl')]
        for name in ('reference', 'killed')
    )
    for expected, found in zip(undisturbed, killed, strict=True):
      self.assertEqual(found, expected)
    for policy in ('policy', 'policy_retrained'):
      weights = [
          (root / name / policy / 'model.safetensors').read_bytes()
          for name in ('reference', 'killed')
      ]
      self.assertEqual(*weights)
    self.assertLen(list((root / 'killed').glob('ledger.jsonl.damaged-*')), 1)

  @pytest.mark.long
  def test_same_ledger_in_an_object_store(self):
    """A row is an object, and the inbox is the user's in the store."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (root / 'objects').mkdir()
    variables = {
        'OBJECTS': str(root / 'objects'),
        'XDG_CACHE_HOME': str(root / 'cache'),
        'OBJECTS_FAILING': '0.05',
    }
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    url = 'objects://bucket/run'
    done = subprocess.run(
        [sys.executable, WORKER, root, url],
        cwd=tiny.ROOT,
        env=tiny.environment(**compiled.OPTIMISED),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
    with mirror.opened(url) as path:
      killed = pathlib.Path(path)
      mirror.fetch(killed)
      payloads = lambda folder: [
          row['payload'] for row in chain.read(folder / 'ledger.jsonl')
      ]
      self.assertEqual(payloads(killed), payloads(root / 'reference'))
      for name in ('policy', 'policy_retrained'):
        file = f'{name}/model.safetensors'
        self.assertEqual(
            (killed / file).read_bytes(),
            (root / 'reference' / file).read_bytes(),
        )
      names = lambda folder: {
          p.relative_to(folder).as_posix()
          for kind in ('*/*/checkpoints/*', 'harness/*', 'inbox/*')
          for p in folder.glob(kind)
      }
      self.assertEqual(names(killed), names(root / 'reference'))


if __name__ == '__main__':
  absltest.main()
