"""Two processes evolve as one: the first decides, the other hears of it."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from absl.testing import absltest
import pytest

from evojax.ledger import chain
from tests import tiny

WORKER = pathlib.Path(__file__).with_name('evolve_worker.py')


class TwoProcessesTest(absltest.TestCase):

  @pytest.mark.slow
  def test_one_ledger_and_equal_decisions(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    with socket.socket() as s:
      s.bind(('localhost', 0))
      port = s.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, WORKER, path, str(i), str(port)],
            cwd=tiny.ROOT,
            env=os.environ
            | tiny.environment(
                XLA_FLAGS='--xla_force_host_platform_device_count=1'
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    printed = [p.communicate()[0] for p in processes]
    for process, text in zip(processes, printed, strict=True):
      self.assertEqual(process.returncode, 0, text[-4000:])
    rows = chain.read(path / 'ledger.jsonl')
    heads = [text.split('head ')[-1].split()[0] for text in printed]
    self.assertEqual(heads, [rows[-1]['hash']] * 2)
    # The second one shows and writes nothing of its own.
    self.assertIn('control 1/4', printed[0])
    self.assertNotIn('trial 0', printed[1])
    payloads = [row['payload'] for row in rows]
    (trial,) = [p for p in payloads if p['step'] == 'trial']
    self.assertLen({arm['start'] for arm in trial['arms']}, 1)
    self.assertEqual(payloads[-1]['step'], 'final')
    for arm in trial['arms']:
      lines = (path / arm['folder'] / 'metrics.jsonl').read_text()
      steps = [json.loads(line)['step'] for line in lines.splitlines()]
      self.assertEqual(steps, sorted(set(steps)))


if __name__ == '__main__':
  absltest.main()
