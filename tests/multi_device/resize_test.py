"""The same command goes on with another number of devices."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
import numpy as np
import pytest
import safetensors.numpy

from evojax import domains
from evojax.ledger import chain
from evojax.runtime import preemption
from tests import compiled
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
        ' '.join(self.printed.split()),
    )

  def test_a_first_start_on_fewer_devices_is_refused(self):
    self.assertRegex(
        self.printed,
        'refused: config.mesh asks for data=1 fsdp=4 tensor=2, and there are 4'
        ' devices; .*: start on 8 devices, or add --config.mesh.fsdp=2\n',
    )
    self.assertFalse((self.root / 'refused').exists())

  def test_a_run_that_evolves_goes_on(self):
    rows = chain.read(self.root / 'evolved/ledger.jsonl')
    steps = {row['payload']['step']: row['payload'] for row in rows}
    self.assertEqual(steps['race']['start'], steps['train']['end'])
    self.assertEqual(list(steps)[-1], 'final')


def two_heads(target):
  """Write the shipped policy with each key/value head twice, for `tensor`."""
  source = domains.policy_path('package:math')
  shutil.copytree(source, target)
  config = json.loads((source / 'config.json').read_text())
  config['num_key_value_heads'] *= 2
  (target / 'config.json').write_text(json.dumps(config))
  weights = safetensors.numpy.load_file(source / 'model.safetensors')
  for name, value in weights.items():
    if name.endswith(('k_proj.weight', 'v_proj.weight')):
      weights[name] = np.concatenate([value, value])
  safetensors.numpy.save_file(weights, target / 'model.safetensors')


@pytest.mark.long
class CommandTest(absltest.TestCase):

  def test_one_command_evolves_on_any_number_of_devices(self):
    """It is stopped on 8, 4 and 2 devices, and ends on 8."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    two_heads(root / 'policy')
    run = root / 'run'
    command = [
        *(sys.executable, '-m', 'evojax.main', '--mode=evolve'),
        '--config=tests/tiny.py:evolving',
        f'--config.model.path={root / "policy"}',
        *('--config.mesh.fsdp=4', '--config.mesh.tensor=2'),
        *('--config.checkpoint.every=1', f'--workdir={run}'),
        f'--compilation_cache={compiled.CACHE}',
    ]
    for devices, sign in (
        (8, 'arms/v0/evidence/train/step_000000.parquet'),
        (4, 'arms/r000-incumbent-0/evidence/train/step_000000.parquet'),
        (2, 'arms/r000-incumbent-2/evidence/train/step_000000.parquet'),
        (8, 'summary.json'),
    ):
      flags = f'--xla_force_host_platform_device_count={devices}'
      with open(root / 'log', 'ab') as log:
        process = subprocess.Popen(
            command,
            cwd=tiny.ROOT,
            env=tiny.environment(XLA_FLAGS=flags),
            stdout=log,
            stderr=log,
        )
      while process.poll() is None and not (run / sign).exists():
        time.sleep(0.05)
      text = lambda: (root / 'log').read_text()
      if sign == 'summary.json':
        self.assertEqual(process.wait(), 0, text()[-4000:])
      else:
        process.terminate()
        self.assertEqual(process.wait(), preemption.AGAIN, text()[-4000:])
    starts = json.loads((run / 'manifest.json').read_text())
    meshes = [(s['mesh']['fsdp'], s['mesh']['tensor']) for s in starts]
    self.assertEqual(meshes, [(4, 2), (2, 2), (1, 2), (4, 2)])
    rows = [row['payload'] for row in chain.read(run / 'ledger.jsonl')]
    steps = {row['step']: row for row in rows}
    self.assertEqual(steps['race']['start'], steps['train']['end'])
    arms = steps['race']['arms']
    # In a chain, each pair starts from what the last one left, bit for bit.
    ends = {arm['end'] for arm in arms} | {steps['race']['start']}
    self.assertContainsSubset({arm['start'] for arm in arms}, ends)
    self.assertEqual([arm['updates'] for arm in arms[:3]], [2, 2, 2])
    self.assertEqual(rows[-1]['step'], 'final')


if __name__ == '__main__':
  absltest.main()
