"""The table of runs: what it reads, what it passes over, how it compares."""

import contextlib
import csv
import datetime
import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax import config as config_lib
from evojax.modes import runs
from tests import tiny

FROZEN = tiny.ROOT / 'tests' / 'frozen'


def digest(root):
  """Every file below a directory, with its bytes and times."""
  return {
      str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat())
      for path in sorted(root.rglob('*'))
      if path.is_file()
  }


class RunsTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def make(self, name, steps=4, done=4, score=None, **overrides):
    """Write what a run of --mode=train leaves."""
    path = self.root / name
    path.mkdir(parents=True)
    config = config_lib.to_mapping(math_config.get_config('smoke'))
    config |= {'steps': steps, 'name': name}
    for field, value in overrides.items():
      group, _, leaf = field.partition('__')
      config[group] = config[group] | {leaf: value}
    content = {'mode': 'train', 'hash': 'x', 'config': config}
    (path / 'config.json').write_text(json.dumps(content))
    (path / 'manifest.json').write_text(
        json.dumps([{'start': '2026-11-21T10:00:00', 'devices': 2}])
    )
    rows = [
        {'step': s, 'sampled_tokens': 100.0, 'seconds/rollout': 1.5}
        for s in range(1, done + 1)
    ]
    if score is not None:
      dev = {'': score, '_low': score - 0.1, '_high': score + 0.1}
      rows.append(
          {'step': done} | {f'dev/avg_at_k{e}': v for e, v in dev.items()}
      )
    text = ''.join(json.dumps(row) + '\n' for row in rows)
    (path / 'metrics.jsonl').write_text(text + '{"step": 99, "re')
    if done == steps:
      (path / 'summary.json').write_text(json.dumps({'steps': steps}))
    return path

  def show(self, **options):
    options = {'format': 'table'} | options
    with contextlib.redirect_stdout(io.StringIO()) as out:
      runs.run(str(self.root), **options)
    return out.getvalue()

  def rows(self, **options):
    return json.loads(self.show(format='json', **options))


class ReadTest(RunsTestCase):

  def test_training(self):
    self.make(
        'a', score=0.5, grpo__group_size=4, evolve__dollars_per_device_hour=36.0
    )
    self.make('deep/er/b', done=2)
    a, b = self.rows()
    self.assertEqual(
        {k: a[k] for k in ('name', 'mode', 'state', 'step', 'tokens')},
        dict(name='a', mode='train', state='finished', step=4, tokens=400),
    )
    # 4 steps of 1.5 s on two devices, at a cent a second.
    self.assertAlmostEqual(a['dollars'], 0.12)
    self.assertEqual((a['score'], a['low'], a['split']), (0.5, 0.4, 'dev'))
    self.assertEqual(b['name'], 'deep/er/b')
    self.assertEqual(b['state'], 'stopped at step 2 of 4')
    self.assertIsNone(b['score'])

  def test_a_warm_start_counts_its_own_steps(self):
    path = self.make('w', warmstart__steps=12)
    for file in path.glob('*.json*'):  # It has no metrics, no summary.
      if file.name != 'config.json':
        file.unlink()
    content = json.loads((path / 'config.json').read_text())
    content['mode'] = 'warmstart'
    (path / 'config.json').write_text(json.dumps(content))
    (path / 'checkpoints' / 'step_000009').mkdir(parents=True)
    (path / 'checkpoints' / 'step_000012.tmp').mkdir()
    self.assertEqual(self.rows()[0]['state'], 'stopped at step 9 of 12')
    (path / 'checkpoints' / 'step_000012').mkdir()
    (path / 'policy').mkdir()
    (row,) = self.rows()
    self.assertEqual(
        (row['state'], row['step'], row['steps']), ('finished', 12, 12)
    )

  def test_a_fork_has_sampled_what_its_own_steps_have(self):
    path = self.make('fork', steps=102, done=102)
    rows = (path / 'metrics.jsonl').read_text().splitlines(keepends=True)
    (path / 'metrics.jsonl').write_text(''.join(rows[100:102]))
    (row,) = self.rows()
    self.assertEqual((row['step'], row['tokens']), (102, 200))

  def test_a_step_costs_the_devices_that_made_it(self):
    path = self.make('a', evolve__dollars_per_device_hour=36.0)
    starts = [
        {'start': f'2026-11-21T{hour}:00:00+00:00', 'devices': devices}
        for hour, devices in ((10, 8), (11, 2))
    ]
    (path / 'manifest.json').write_text(json.dumps(starts))
    ten = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC).timestamp()
    for step, start, ended in (
        (1, 0, ten + 60),
        (2, 0, ten + 70),
        (3, 0, ten + 80),  # Lost, and made again on two devices.
        (3, 1, ten + 3700),
        (4, 1, ten + 3710),
    ):
      with (path / 'times.jsonl').open('a') as file:
        row = dict(step=step, start=start, began=ended - 1.5, ended=ended)
        file.write(json.dumps(row) + '\n')
    (row,) = self.rows()
    # Steps of 1.5 s at a cent a device-second: two on 8, two on 2.
    self.assertAlmostEqual(row['dollars'], 0.01 * 1.5 * (2 * 8 + 2 * 2))
    self.assertAlmostEqual(row['seconds'], 6.0)

  def test_workdirs_of_older_versions(self):
    before = digest(FROZEN)
    for tree in FROZEN.glob('tree_*'):
      (self.root / tree.name).symlink_to(tree)
    names = [path.name for path in runs.find(FROZEN)]
    self.assertLen(names, 5)
    rows = {path.name: runs.read(path, FROZEN) for path in runs.find(FROZEN)}
    for name, row in rows.items():
      self.assertNotIn('broken', row['state'], name)
    math = rows['tree_2026_11_21_math']
    self.assertEqual((math['mode'], math['state']), ('evolve', 'finished'))
    summary = json.loads(
        (FROZEN / 'tree_2026_11_21_math/summary.json').read_text()
    )
    self.assertEqual(math['score'], summary['sealed']['evolved']['value'])
    self.assertEqual(math['gain'], summary['gains']['evolved']['value'])
    self.assertAlmostEqual(math['seconds'], summary['device_seconds'])
    self.assertEqual(digest(FROZEN), before)

  def test_what_is_not_ours_and_what_is_broken(self):
    good = self.make('good')
    for name, text in {
        'model/config.json': '{"model_type": "qwen3"}',
        'notes/config.json': 'no JSON',
        'list/config.json': '[]',
        'text/metrics.txt': '',
    }.items():
      path = self.root / name
      path.parent.mkdir()
      path.write_text(text)
    for name, file, text in (
        ('cut', 'config.json', '{"hash": "x", "conf'),
        ('other', 'metrics.jsonl', '{"no_step": 1}\n[1]\n'),
        ('sealed', 'sealed.json', '{"split": "sealed"}'),
        ('rows', 'ledger.jsonl', 'torn'),
        ('number', 'summary.json', '7'),
        ('empty', 'summary.json', ''),
        ('start', 'manifest.json', '[]'),
        ('torn', 'manifest.json', '[{"start": "2026'),
        ('large', 'metrics.jsonl', '{"step": 1, "sampled_tokens": 1e999}\n'),
        ('binary', 'config.json', '\x00\x1b[2J'),
    ):
      (self.make(name) / file).write_text(text)
    (good / 'arms' / 'v0').mkdir(parents=True)
    shutil.copy(good / 'metrics.jsonl', good / 'arms/v0/metrics.jsonl')
    before = digest(self.root)
    states = {row['name']: row['state'] for row in self.rows()}
    self.assertEqual(states.pop('good'), 'finished')
    self.assertEqual(
        set(states),
        set(
            'cut other sealed rows number empty start torn large binary'.split()
        ),
    )
    self.assertIn('manifest.json is damaged', states['torn'])
    self.assertIn('summary.json: Expecting value', states['empty'])
    for name, state in states.items():
      self.assertStartsWith(state, 'broken: ', name)
    text = self.show()
    self.assertNotIn('\x1b', text)
    self.assertIn('broken: ', text)
    self.assertEqual(digest(self.root), before)

  def test_a_run_that_goes_on(self):
    path = self.make('a', done=2)
    lock = path / '.lock'
    lock.write_text(f'pid {os.getpid()} on {socket.gethostname()} since now')
    # The file of a process that ended, whose number another one has.
    self.assertEqual(self.rows()[0]['state'], 'stopped at step 2 of 4')
    with lock.open('r+') as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      self.assertEqual(self.rows()[0]['state'], 'running at step 2 of 4')
      self.assertIn(' running 2/4 ', ' '.join(self.show().split()))
      lock.write_text('pid 1 on elsewhere since now')
      self.assertStartsWith(self.rows()[0]['state'], 'stopped')

  def test_an_older_run_has_the_default_of_a_new_field(self):
    path = self.make('old')
    self.make('new')
    content = json.loads((path / 'config.json').read_text())
    del content['config']['grpo']['tis_cap']
    (path / 'config.json').write_text(json.dumps(content))
    self.assertNotIn('config.grpo.tis_cap', self.rows()[0])


class CompareTest(RunsTestCase):

  def setUp(self):
    super().setUp()
    self.make('a', score=0.25, optim__learning_rate=1e-4)
    self.make('b', score=0.75, optim__learning_rate=3e-4)
    self.make('c', done=1, optim__learning_rate=1e-4)

  def names(self, **options):
    return [row['name'] for row in self.rows(**options)]

  def test_only_fields_that_differ(self):
    a, b, _ = self.rows()
    self.assertEqual(
        [name for name in a if name.startswith('config.')],
        ['config.optim.learning_rate'],
    )
    self.assertEqual(b['config.optim.learning_rate'], 3e-4)

  @parameterized.parameters(
      ('name', 'abc'),
      ('-name', 'cba'),
      # A run without a score comes last either way.
      ('score', 'abc'),
      ('-score', 'bac'),
      ('-config.optim.learning_rate', 'bac'),
  )
  def test_sort(self, field, names):
    self.assertEqual(''.join(self.names(sort=field)), names)

  @parameterized.parameters(
      (['state=finished'], 'ab'),
      (['state!=finished'], 'c'),
      (['score>0.5'], 'b'),
      (['score<0.8', 'config.optim.learning_rate=0.0001'], 'a'),
      (['mode=evolve'], ''),
  )
  def test_only(self, only, names):
    self.assertEqual(''.join(self.names(only=only)), names)

  @parameterized.parameters(
      (dict(sort='sscore'), "--sort=sscore: 'sscore' is not a field of a run"),
      (dict(only=['score']), '--only=score: wanted FIELD=VALUE'),
      (dict(only=['score>x']), "--only=score>x: 'x' is not a number"),
      (dict(only=['config.nothing=1']), 'config.nothing'),
  )
  def test_wrong_flags(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.rows(**options)

  def test_no_directory(self):
    with self.assertRaisesRegex(ValueError, 'there is no such directory'):
      runs.run(str(self.root / 'x'), format='table')

  def test_table(self):
    self.make('d' * 30, score=0.5, domain__name='own.domain')
    text = self.show()
    self.assertLessEqual(max(map(len, text.splitlines())), 80)
    flat = ' '.join(text.split())
    self.assertIn('b train finished 75.0 % [65.0, 85.0] 6 s', flat)
    self.assertIn('optim.learning_rate=0.0003', flat)
    self.assertIn('the others have domain.name=math,', flat)
    self.assertIn('optim.learning_rate=0.0001', flat)

  def test_csv(self):
    rows = list(csv.DictReader(io.StringIO(self.show(format='csv'))))
    self.assertEqual([row['score'] for row in rows], ['0.25', '0.75', ''])
    self.assertEqual(rows[0]['config.optim.learning_rate'], '0.0001')

  def test_html(self):
    (self.root / 'b' / 'report.html').write_text('')
    page = self.show(format='html', sort='-score')
    self.assertEqual(re.findall('href="(.*?)"', page), ['b/report.html'])
    self.assertIn('3 runs: 2 finished, 1 stopped.', page)
    self.assertIn('<code>optim.learning_rate=0.0003</code>', page)
    self.assertLess(page.index('75.0 %'), page.index('25.0 %'))
    self.assertNotIn('>dollars<', page.lower())  # No run has a price.

  def test_html_of_names_that_a_url_would_cut_off_and_of_capitals(self):
    path = self.make('lr:3#2 50%', domain__name='Own')
    (path / 'report.html').write_text('')
    self.make('P', domain__name='Own')
    self.make('Q', domain__name='Own')
    page = self.show(format='html')
    (link,) = re.findall('href="(.*?)"', page)
    self.assertEqual(link, 'lr%3A3%232%2050%25/report.html')
    self.assertIn('>The others have domain.name=Own, ', page)

  def test_nothing_there(self):
    (self.root / 'empty').mkdir()
    self.root /= 'empty'
    self.assertStartsWith(self.show(), 'no runs below ')
    self.assertEqual(self.show(format='json'), '[]\n')
    self.assertIn('0 runs', self.show(format='html'))


if __name__ == '__main__':
  absltest.main()
