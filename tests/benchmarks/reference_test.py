"""The one command for a real checkpoint, on a random one."""

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
import pytest

from benchmarks import random_qwen3
from benchmarks import reference
from configs import gsm8k
from evojax import config as config_lib
from evojax import domains
from evojax.models import hf_config
from evojax.models import policy
from evojax.models import tokenizer
from evojax.modes import plan
from evojax.runtime import devices
from evojax.runtime import mirror
from tests import compiled
from tests import launch_test
from tests.aot import programs
from tests.runtime import storage_test

ROOT = pathlib.Path(__file__).resolve().parents[2]


class RowsTest(absltest.TestCase):

  def test_the_readme_has_the_rows_as_they_are(self):
    text = (ROOT / 'README.md').read_text()
    self.assertEqual(reference.with_table(text, reference.read()), text)
    # On its first screen, before what it does.
    self.assertLess(text.index(reference.MARKS[1]), text.index('## What works'))

  def test_a_run_takes_the_place_of_its_plan(self):
    path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()), 'r')
    plans = [{'checkpoint': c, 'hardware': 'H'} for c in 'ab']
    path.write_text(''.join(json.dumps(plan) + '\n' for plan in plans))
    (example,) = [r for r in reference.read() if 'date' in r][:1]
    run = example | {'checkpoint': 'b', 'hardware': 'H'}
    run |= {'mfu': 0.421, 'dollars': 1234.5, 'random': False}
    run |= {'jax': '1', 'evojax': 40 * 'a' + '-dirty'}
    reference.record(run, path)
    rows = reference.read(path)
    self.assertLen(rows, 2)
    *_, first, second = reference.table(rows).splitlines()
    self.assertStartsWith(first, '| b | H | ')
    self.assertIn('| 42.1% |', first)
    self.assertIn('| $1,234.50 |', first)
    self.assertIn('| 1, aaaaaaaaa-dirty |', first)
    # A run of fewer steps than planned does not look like the planned one.
    self.assertIn(f' H | {run["steps"]} | ', first)
    self.assertEqual(second, '| a | H |' + '  |' * 8 + ' **not run yet** |')

  def test_a_small_price_is_not_none(self):
    texts = [reference._price(dollars) for dollars in (None, 0.0002, 1234.5)]
    self.assertEqual(texts, ['no price', 'below $0.01', '$1,234.50'])

  def test_a_workdir_without_a_finished_run(self):
    with self.assertRaisesRegex(ValueError, '--record=.*holds no finished run'):
      reference.row(self.enter_context(tempfile.TemporaryDirectory()))


class RunTest(storage_test.StorageTestCase):
  """A run of four steps of 10 s: two on 8 devices, a minute later two on 2."""

  def make(self, path):
    scores = dict(split='sealed', problems=4, samples=2)
    scores |= dict.fromkeys(
        ('before', 'after', 'gain'), dict(value=0.5, low=0.25, high=0.75)
    )
    config = gsm8k.get_config('smoke').unlock()
    config.model.path = 'package:math'
    config.evolve.dollars_per_device_hour = 36.0
    config = {'config': config_lib.to_mapping(config)}
    starts = [
        dict(start=start, devices=devices, device='TPU v5', platform='tpu')
        for start, devices in (
            ('1970-01-01T00:00:00+00:00', 8),
            ('1970-01-01T00:01:30+00:00', 2),
        )
    ]
    starts[-1] |= dict(jax='1', commit='2')
    times = [
        dict(step=step, start=start, began=end - 10.0, ended=end)
        for step, start, end in (
            *((1, 0, 20.0), (2, 0, 30.0), (3, 0, 40.0)),  # The third is lost.
            *((3, 1, 100.0), (4, 1, 110.0)),
        )
    ]
    rows = [
        dict(step=step, tokens_per_second=speed, goodput=0.4)
        for step, speed in ((1, 8.0), (2, 800.0), (3, 200.0), (4, 200.0))
    ]
    rows[-1]['mfu'] = 0.25  # The first start did not know the peak.
    path.mkdir(parents=True)
    for name, value in (
        ('config', config),
        ('summary', dict(steps=4, gain=dict(sealed=scores))),
        ('manifest', starts),
    ):
      (path / f'{name}.json').write_text(json.dumps(value))
    for name, lines in (('times', times), ('metrics', rows)):
      text = ''.join(json.dumps(line) + '\n' for line in lines)
      (path / f'{name}.jsonl').write_text(text)

  def test_a_step_counts_with_the_devices_that_made_it(self):
    self.make(self.root / 'run')
    row = reference.row(str(self.root / 'run'))
    self.assertEqual(row['hardware'], '8 x TPU v5, then 2 x TPU v5')
    self.assertEqual(row['tokens_per_second_device'], 100.0)
    self.assertEqual(row['mfu'], 0.25)
    # Until 40 s on 8 devices, and from 90 to 110 s on 2; a cent a second.
    self.assertAlmostEqual(row['device_hours'], (40 * 8 + 20 * 2) / 3600)
    self.assertAlmostEqual(row['dollars'], 3.6)

  def test_a_run_in_a_bucket(self):
    url = 'objects://bucket/run'
    with mirror.opened(url) as path:
      self.make(pathlib.Path(path))
      copy = mirror.of(path)
      copy.begin()
      copy.keep()
    self.make(self.root / 'run')
    self.assertEqual(reference.row(url), reference.row(f'{self.root}/run'))


class PlannedTest(absltest.TestCase):

  def test_what_is_not_run_yet_fits_by_plan(self):
    plans = [row for row in reference.read() if 'date' not in row]
    self.assertLen({row['hardware'] for row in plans}, 4)
    for row in plans:
      count, kind = row['hardware'].split(' x ')
      device = devices.peaks(kind)
      config = gsm8k.get_config().unlock()
      config.mesh.fsdp = int(count)
      computed = {name: config.model[name] for name in policy.COMPUTED}
      name = row['checkpoint'].lower().replace('-', '_').replace('.', 'p')
      shape = programs.SHAPES[name]
      opened = policy.Policy(
          pathlib.Path('unused'),
          dataclasses.replace(shape, **computed),
          tokenizer.Tokenizer(domains.policy_path('package:math')),
      )
      peak = plan.estimate(config, opened, ()).peak_on(device)
      with self.subTest(row['hardware'], checkpoint=row['checkpoint']):
        self.assertLessEqual(peak, 0.95 * device.memory_bytes)


class ScriptTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )

  def run_script(self, *arguments, **variables):
    return subprocess.run(
        ['bash', ROOT / 'launch/reference_run.sh', *arguments],
        cwd=self.folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )

  def test_refused(self):
    for arguments, said in (
        ((), 'error: wanted: bash launch/reference_run.sh DIR DATA'),
        (('nowhere', 'data'), 'error: DIR=.*/nowhere holds no config.json'),
    ):
      run = self.run_script(*arguments)
      self.assertEqual((run.returncode, run.stdout), (2, ''))
      self.assertRegex(run.stderr, said)

  def test_a_dry_run_names_model_and_data(self):
    (self.folder / 'model').mkdir()
    (self.folder / 'model/config.json').touch()
    (self.folder / 'data').mkdir()
    (self.folder / 'data/test.jsonl').touch()
    run = self.run_script('model', 'data', '--dry_run', '--config.steps=7')
    train, record = run.stdout.splitlines()
    for flag in (
        '--default_config=configs/gsm8k.py',
        f'--config.model.path={self.folder}/model',
        f'--config.domain.kwargs.jsonl.train={self.folder}/data/train.jsonl',
        f'--config.domain.kwargs.jsonl.sealed={self.folder}/data/test.jsonl',
        '--mode=train',
        '--workdir=runs/reference-model',
        '--config.steps=7',
    ):
      self.assertIn(f' {flag}', train)
    self.assertEndsWith(record, '--record=runs/reference-model')

  def test_what_is_trained_is_what_is_recorded(self):
    run = self.run_script(
        *('gs://bucket/model/', 'data', '--dry_run'),
        *('--workdir', 'gs://bucket/run'),
    )
    train, record = run.stdout.splitlines()
    self.assertIn(' --config.model.path=gs://bucket/model ', train)
    self.assertEndsWith(train, ' --workdir gs://bucket/run')
    self.assertEndsWith(record, ' --record=gs://bucket/run')

  def environment(self):
    """Return variables by which the script finds this Python installed."""
    shared = self.folder / 'environments'
    variables = {'EVOJAX_ENVIRONMENTS': str(shared), 'JAX_PLATFORMS': 'cpu'}
    with mock.patch.dict(os.environ, variables):
      files = launch_test.environment.requirement_files(['accelerator'])
      pins = launch_test.environment.pins_hash(files)
      path = launch_test.environment.environment_path('', pins)
    launch_test.script(
        path / 'bin/python',
        f'PYTHONPATH={shlex.quote(os.pathsep.join(filter(None, sys.path)))}'
        f' exec {shlex.quote(sys.executable)} "$@"',
    )
    (path / launch_test.environment.STAMP).write_text(pins)
    return variables

  @pytest.mark.slow
  @pytest.mark.long
  def test_a_random_qwen3_from_end_to_end(self):
    """The command itself, with this Python as its environment."""
    model, data = self.folder / 'qwen3-random', self.folder / 'data'
    random_qwen3.make_model(model)
    random_qwen3.make_data(data)
    self.assertEqual(hf_config.load(model).vocab_size, 151_936)
    read = tokenizer.Tokenizer(model)
    self.assertEqual(read.vocab_size, 151_669)
    text = 'Ann has 12,345 apples; how many?'
    self.assertEqual(read.decode(read.encode(text)), text)
    flags = (
        '--config=configs/gsm8k.py:smoke',
        f'--workdir={self.folder}/run',
        '--config.steps=2',
        '--config.eval.problems=4',
        '--config.evolve.dollars_per_device_hour=3.6',
        '--config.log.peak_flops=1e11',
    )
    rows, readme = self.folder / 'rows.jsonl', ROOT / 'README.md'
    before = readme.read_text()
    home = compiled.as_home(self.enter_context(tempfile.TemporaryDirectory()))
    run = self.run_script(
        model,
        data,
        *flags,
        f'--rows={rows}',
        **self.environment(),
        **home,
    )
    self.assertEqual(run.returncode, 0, run.stderr[-4000:])
    self.assertIn('| qwen3-random (random weights) | CPU', run.stdout)
    self.assertEqual(readme.read_text(), before)
    (row,) = reference.read(rows)
    self.assertEqual(row['checkpoint'], 'qwen3-random')
    self.assertTrue(row['random'])
    self.assertEqual((row['steps'], row['split']), (2, 'sealed'))
    self.assertEqual((row['problems'], row['samples']), (4, 2))
    # At this peak; nobody knows that of a CPU.
    self.assertBetween(row['mfu'], 1e-4, 10)
    self.assertGreater(row['tokens_per_second_device'], 0)
    # 3.6 dollars an hour are a thousandth of a dollar a second.
    seconds = 3600 * row['device_hours']
    self.assertAlmostEqual(row['dollars'], seconds / 1000)
    self.assertGreater(seconds, 0)


if __name__ == '__main__':
  absltest.main()
