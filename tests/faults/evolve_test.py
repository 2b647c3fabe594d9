"""Killed before the row of every step, the run ends as if undisturbed."""

import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
import pytest

from evojax.ledger import chain
from tests import compiled
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


if __name__ == '__main__':
  absltest.main()
