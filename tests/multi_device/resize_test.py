"""The same command goes on with another number of devices."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
import numpy as np
import pytest
import safetensors.numpy

from evojax.ledger import chain
from tests import tiny

WORKER = pathlib.Path(__file__).with_name('resize_worker.py')


@pytest.mark.slow
class ResizeTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    done = subprocess.run(
        [sys.executable, WORKER, cls.root],
        cwd=tiny.ROOT,
        env=os.environ
        | tiny.environment(
            XLA_FLAGS='--xla_force_host_platform_device_count=8'
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
      raise AssertionError(done.stdout[-2000:] + done.stderr[-4000:])
    cls.printed, cls.warned = done.stdout, done.stderr

  def test_parameters_and_moments_are_restored_bit_for_bit(self):
    seen = json.loads(self.printed.split('fingerprints ')[1].splitlines()[0])
    self.assertLen(seen, 4)
    ends = [end for _, end in seen]
    self.assertEqual([begin for begin, _ in seen[1:]], ends[:-1])
    self.assertLen(set(ends), 4)

  def test_later_steps_differ_by_rounding_alone(self):
    whole, moved = (
        safetensors.numpy.load_file(
            self.root / name / 'policy/model.safetensors'
        )
        for name in ('whole', 'moved')
    )
    for name, want in whole.items():
      np.testing.assert_allclose(
          moved[name].astype(np.float32),
          want.astype(np.float32),
          atol=2e-3,
          err_msg=name,
      )
    trained = [
        [row for line in file if 'loss' in (row := json.loads(line))]
        for name in ('whole', 'moved')
        for file in [(self.root / name / 'metrics.jsonl').open()]
    ]
    for a, b in zip(*trained, strict=True):
      self.assertEqual(a['step'], b['step'])
      self.assertEqual(a['sampled_tokens'], b['sampled_tokens'])
      self.assertAlmostEqual(a['loss'], b['loss'], delta=1e-3)

  def test_manifest_and_warning_tell(self):
    starts = json.loads((self.root / 'moved/manifest.json').read_text())
    meshes = [list(start['mesh'].values()) for start in starts]
    whole = [1, 1, 4, 2]
    self.assertEqual(meshes, [whole, [1, 1, 2, 2], [1, 1, 1, 2], whole])
    self.assertIn('mesh changed since the last start', self.warned)
    self.assertIn(
        'mesh: data=1 fsdp=1 tensor=2, since config.mesh asks for data=1 fsdp=4'
        ' tensor=2 and there are 2 devices',
        self.printed,
    )

  def test_a_run_that_evolves_goes_on(self):
    rows = chain.read(self.root / 'evolved/ledger.jsonl')
    steps = {row['payload']['step']: row['payload'] for row in rows}
    self.assertEqual(steps['race']['start'], steps['train']['end'])
    self.assertEqual(list(steps)[-1], 'final')


if __name__ == '__main__':
  absltest.main()
