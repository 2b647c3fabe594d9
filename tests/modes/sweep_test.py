"""Sweeps: what a file gives, which commands are left, and their table."""

import ast
import contextlib
import io
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
from ml_collections import config_flags
import pytest

from configs import math as math_config
from evojax import config as config_lib
from evojax.episodes import synthetic
from evojax.modes import sweep
from evojax.modes import sweep_file
from evojax.runtime import commands
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import mirror
from evojax.runtime import preemption
from evojax.runtime import storage
from evojax.training import reward_parts
from evojax.training import settings
from tests import objects
from tests import tiny
from tests.runtime import accelerators_test

SOURCE = 'configs/math.py:smoke'
FILE = """
MODE = 'train'
SEEDS = (1, 2)
SETTINGS = {
    'base': {},
    'wide': {'variant': 'reference', 'reward.weights': {'outcome': 1.0}},
}
GRID = {'optim.learning_rate': (1e-4, 3e-4), 'steps': (9,)}
"""
# A config in which one field refers to another.
REFERRING = """
from configs import math
def get_config(variant):
  c = math.get_config(variant).unlock()
  c.eval.samples = c.grpo.get_ref('group_size')
  return c.lock()
"""


class Fake(commands.ThisMachine):
  """Ends a run at once, with a score that its flags make."""

  def __init__(self, broken=()):
    super().__init__()
    self.broken, self.started = broken, []

  def start(self, command):
    self.started.append(command.name)
    values = dict(flag.split('=', 1) for flag in command.flags)
    path = pathlib.Path(values['--workdir'])
    text = 'import sys; sys.exit("error: no such luck")'
    if command.name not in self.broken:
      finish(
          path,
          0.1 * int(values['--config.seed'])
          + 1000 * float(values['--config.optim.learning_rate']),
          config_of(command.flags),
      )
      text = ''
    small = commands.Command(
        command.name, (text,), command.log, command.is_done
    )
    with absltest.mock.patch.object(
        commands.Command, 'argv', lambda c: ['python3', '-c', *c.flags]
    ):
      return super().start(small)


def config_of(arguments):
  """Return the config that a run of evojax gets from its command line."""
  argv = ['x', *(a for a in arguments if a.startswith('--config'))]
  values = flags.FlagValues()
  with absltest.mock.patch.object(sys, 'argv', argv):
    config_flags.DEFINE_config_file('config', flag_values=values)
    values(argv)
  return config_lib.to_mapping(values.config)


def finish(path, score, config):
  """Write what a training leaves."""
  path.mkdir(parents=True)
  saved = {'hash': '', 'mode': 'train', 'config': config}
  (path / 'config.json').write_text(json.dumps(saved))
  metrics = {
      'dev/avg_at_k': score,
      'dev/avg_at_k_low': score,
      'dev/avg_at_k_high': score,
  }
  (path / 'eval.json').write_text(json.dumps({'metrics': metrics}))
  (path / 'summary.json').write_text('{}')


class SweepTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.file = self.root / 'mine.py'
    self.file.write_text(FILE)
    self.workdir = self.root / 'runs'

  def run_it(
      self,
      engine=None,
      source=SOURCE,
      open_engine=None,
      config=None,
      **options,
  ):
    defaults = dict(
        sweep=str(self.file),
        given=sweep.CommandLine(
            source, {'grpo.group_size': 4}, ('--compilation_cache=',)
        ),
        executor='local',
        workers=2,
        arm_resources=(),
        arm_hosts='',
        dry_run=False,
    )
    patch = absltest.mock.patch.object
    with (
        patch(commands, 'open_engine', open_engine or (lambda *_: engine)),
        patch(sweep, '_POLL_SECONDS', 0.01),
        patch(sweep.output, 'say') as say,
        absltest.mock.patch.dict(os.environ, COLUMNS='200'),
        contextlib.redirect_stdout(io.StringIO()) as self.out,
    ):
      code = sweep.run(
          config or math_config.get_config('smoke'),
          str(self.workdir),
          **defaults | options,
      )
    self.said = [call.args[0] for call in say.call_args_list]
    return code

  def test_dev_scores_stand_beside_sealed_ones(self):

    class Trained(Fake):
      """Ends a training that has scored dev and sealed problems."""

      def start(self, command):
        made = super().start(command)
        values = dict(flag.split('=', 1) for flag in command.flags)
        path = pathlib.Path(values['--workdir'])
        (path / 'eval.json').unlink()
        seed = int(values['--config.seed'])
        for step, dev in ((0, 0.2), (5, 0.9), (9, 0.3 + 0.1 * seed)):
          with (path / 'metrics.jsonl').open('a') as file:
            row = {'step': step, 'dev/avg_at_k': dev, 'dev/avg_at_k_low': 0.0}
            row['dev/avg_at_k_high'] = 1.0
            file.write(json.dumps(row) + '\n')
        (path / 'summary.json').write_text('{"steps": 9}')
        found = dict(value=0.1 * seed, low=0.0, high=1.0)
        sealed = dict(split='sealed', before=found, after=found, gain=found)
        (path / 'sealed.json').write_text(json.dumps(sealed))
        return made

    self.file.write_text(
        "MODE = 'train'\nSEEDS = (1, 2)\n"
        "SETTINGS = {'all': {'optim.learning_rate': 1e-4}}\n"
    )
    self.assertEqual(self.run_it(Trained()), 0)
    (row,) = json.loads((self.workdir / 'sweep.json').read_text())
    for field, mean in (('score', 0.15), ('dev', 0.45), ('dev_gain', 0.25)):
      self.assertAlmostEqual(row[field][0], mean, msg=field)
    self.assertRegex(self.out.getvalue(), r'dev +dev gain\n')
    self.assertIn('45.0 % [0.0, 100.0]', self.out.getvalue())
    self.assertIn('+25.0 [', self.out.getvalue())
    page = (self.workdir / 'sweep.html').read_text()
    self.assertIn('data-name="dev gain"', page)
    self.assertIn('Dev: the last score on dev problems', page)

  def test_grid_times_settings_times_seeds(self):
    self.assertEqual(self.run_it(dry_run=True), 0)
    lines = self.out.getvalue().splitlines()
    self.assertLen(lines, 8)
    names = ('base', 'wide')
    expected = [
        f'--workdir={self.workdir.absolute()}/{name},learning_rate={rate}'
        f'/seed-{seed}'
        for seed in (1, 2)
        for name in names
        for rate in (0.0001, 0.0003)
    ]
    for line, workdir in zip(lines, expected):
      self.assertIn(workdir, line)
      self.assertIn('--mode=train', line)
      self.assertEndsWith(line, ' --compilation_cache=')
      self.assertIn('--config.grpo.group_size=4', line)
      self.assertIn('--config.steps=9', line)
    self.assertIn('configs/math.py:reference', lines[2])
    self.assertIn("'--config.reward.weights={'\"'\"'outcome", lines[2])
    self.assertFalse(self.workdir.exists())

  def test_a_point_lies_in_the_directory_of_its_sweep(self):
    """Values with slashes, quotes and blanks make names of one directory."""
    self.file.write_text("""
SEEDS = (1,)
GRID = {'model.path': ('../../a', '/b c'), 'grpo.kl_coef': (0.0, 1e-3)}
""")
    self.run_it(dry_run=True)
    lines = self.out.getvalue().splitlines()
    names = [
        f'all,path={path},kl_coef={coefficient}'
        for path in ('.._.._a', 'b_c')
        for coefficient in ('0.0', '0.001')
    ]
    for line, name in zip(lines, names, strict=True):
      self.assertIn(f'--workdir={self.workdir}/{name}/seed-1 ', line)
    self.assertIn('--config.model.path=../../a ', lines[0])

  def test_the_printed_table_names_its_settings(self):
    """Also in a log of 80 columns, where intervals are wide."""
    rows = [
        dict(setting=f'all,learning_rate={rate}', seeds=2, of=2, split='dev')
        | dict(score=[0.375, 0.0, 1.0], gain=[0.06, -1.0, 1.0], over=over)
        | dict(unscored=0, dev=None, dev_gain=None)
        for rate, over in ((0.0003, None), (0.001, [-0.03, -0.82, 0.76]))
    ]
    out = io.StringIO()
    with (
        absltest.mock.patch.dict(os.environ, COLUMNS='80'),
        absltest.mock.patch.object(sweep.output, 'say') as say,
        contextlib.redirect_stdout(out),
    ):
      sweep.show(rows, self.workdir)
    for number in ('37.5 % [0.0, 100.0]', '+6.0 [', '−3.0 [−82.0, +76.0]'):
      self.assertIn(number, out.getvalue())
    self.assertEqual(out.getvalue().count('all,learning_rate=0.0003'), 2)
    (said,) = say.call_args.args
    self.assertIn('solved share on dev problems', said)
    self.assertIn('points over all,learning_rate=0.0003', said)

  def test_runs_what_is_left_and_shows_a_table(self):
    failing = Fake(broken=('wide,learning_rate=0.0003/seed-2',))
    self.assertEqual(self.run_it(failing), 1)
    self.assertLen(failing.started, 8)
    self.assertRegex(self.said[-1], 'seed-2 ended.*error: no such luck')
    text = (self.workdir / 'sweep.html').read_text()
    self.assertIn('Not finished: wide,learning_rate=0.0003/seed-2;', text)
    again = Fake()
    self.assertEqual(self.run_it(again), 0)
    self.assertEqual(again.started, list(failing.broken))
    rows = json.loads((self.workdir / 'sweep.json').read_text())
    self.assertEqual([row['seeds'] for row in rows], [2, 2, 2, 2])
    # 0.1 * seed + 0.1: mean 0.25; t(1, 0.975) = 12.71, standard error 0.05. A
    # share is not below 0.
    mean, low, high = rows[0]['score']
    self.assertAlmostEqual(mean, 0.25)
    self.assertEqual(low, 0.0)
    self.assertAlmostEqual(high, 0.25 + 0.05 * 12.7062, places=3)
    self.assertIsNone(rows[0]['over'])
    # By seed: 0.2 each, without any spread.
    self.assertAlmostEqual(rows[1]['over'][0], 0.2)
    self.assertAlmostEqual(rows[1]['over'][1], 0.2)
    self.assertIn('+20.0 [+20.0, +20.0]', self.out.getvalue())
    page = (self.workdir / 'sweep.html').read_text()
    self.assertIn('base,learning_rate=0.0003', page)
    self.assertIn(f'<h1>Sweep {self.workdir}</h1>', page)
    self.assertIn('Gain: points over the base policy.', page)
    self.assertIn('+20.0', page)

  def test_a_run_that_ended_without_a_score_leaves_the_others(self):
    # A run of evolve that has spent evolve.dollars is not scored.
    self.assertEqual(self.run_it(Fake()), 0)
    for name in ('base,learning_rate=0.0001', 'wide,learning_rate=0.0003'):
      path = self.workdir / name / 'seed-1' / 'eval.json'
      path.write_text(json.dumps({'metrics': {}}))
    self.assertEqual(self.run_it(Fake()), 0)
    rows = json.loads((self.workdir / 'sweep.json').read_text())
    self.assertEqual([row['seeds'] for row in rows], [1, 2, 2, 1])
    self.assertEqual([row['unscored'] for row in rows], [1, 0, 0, 1])
    # The first seed of the first setting is one of those without a score.
    self.assertEqual([row['split'] for row in rows], ['dev'] * 4)
    text = 'wide,learning_rate=0.0003: 1 run ended without a score.'
    self.assertIn(text, self.said[-1])
    self.assertIn(text, (self.workdir / 'sweep.html').read_text())
    scores = [row['score'][0] for row in rows]
    for score, expected in zip(scores, (0.3, 0.45, 0.25, 0.5), strict=True):
      self.assertAlmostEqual(score, expected)
    # Only seed 2 has a score of both.
    self.assertAlmostEqual(rows[3]['over'][0], 0.2)
    self.assertIsNone(rows[3]['over'][1])

  def test_the_page_of_a_running_sweep_loads_itself_again(self):
    pages, put = [], sweep.mirror.put

    def keep(path):
      if path.name == 'sweep.html':
        pages.append(path.read_text())
      put(path)

    with absltest.mock.patch.object(sweep.mirror, 'put', keep):
      self.assertEqual(self.run_it(Fake(), workers=1), 0)
    for text in (
        'data-state="running" data-',
        'data-next="60"',
        ' of 8 points have ended',
        'reloads while',
    ):
      with self.subTest(text):
        found = [text in page for page in (pages[0], pages[-1])]
        self.assertEqual(found, [True, False])

  def test_the_page_of_a_stopped_sweep_does_not_claim_to_run(self):

    def stop(pool, name):
      del pool, name
      os.kill(os.getpid(), signal.SIGTERM)

    check = absltest.mock.patch.object(commands.Pool, 'check', stop)
    with check, self.assertRaises(preemption.Preempted):
      self.run_it(Fake(), workers=1)
    page = (self.workdir / 'sweep.html').read_text()
    self.assertEqual(re.search('data-state="([a-z]*)" ', page)[1], '')

  def edit(self, before, after):
    """Change the sweep's file."""
    text = self.file.read_text()
    self.assertIn(before, text)
    self.file.write_text(text.replace(before, after))

  def test_points_of_another_config_are_refused(self):
    self.assertEqual(self.run_it(Fake()), 0)
    self.edit("'outcome': 1.0", "'outcome': 2.0")
    message = (
        r'the point wide,learning_rate=0.0001/seed-1 was run with another'
        r' config:\n  reward.weights.outcome: 1.0 -> 2.0\nNothing .*'
        rf'other points that differ: 3.* delete {self.workdir}/wide,'
        r'learning_rate=0.0001/seed-1 .*another --workdir'
    )
    for dry_run in (True, False):
      again = Fake()
      with self.assertRaisesRegex(ValueError, message):
        self.run_it(again, dry_run=dry_run)
      self.assertEqual((again.started, self.out.getvalue()), ([], ''))
    shutil.rmtree(self.workdir)
    self.assertEqual(self.run_it(again), 0)
    self.assertLen(again.started, 8)

  @parameterized.parameters(
      # A resumed run may change these, but the results of one that has ended
      # depend on them.
      ("'base': {}", "'base': {'steps': 7}", 'steps: 9 -> 7', ''),
      (
          "'base': {}",
          "'base': {'eval.samples': 2}",
          'eval.samples: 4 -> 2',
          '',
      ),
      # Nothing depends on this one.
      ("'base': {}", "'base': {'log.every': 7}", '', ''),
      (
          "'base': {}",
          "'base': {'grpo.epochs': 2}",
          'grpo.epochs: 1 -> 2',
          'grpo.epochs: 1 -> 2',
      ),
      ("'train'", "'evolve'", 'mode: "train" -> "evolve"', 'mode: "train"'),
      # evolve without a round trains.
      (
          'GRID = {',
          "MODE = 'evolve'\nGRID = {'evolve.rounds': (0,), ",
          '',
          '',
      ),
  )
  def test_what_ended_and_stopped_points_may_change(
      self, before, after, ended, stopped
  ):
    self.assertEqual(self.run_it(Fake()), 0)
    self.edit(before, after)

    def expect(refused, points):
      if refused:
        with self.assertRaisesRegex(ValueError, refused):
          self.run_it(dry_run=True)
      else:
        self.run_it(dry_run=True)
        self.assertLen(self.out.getvalue().splitlines(), points)

    expect(ended, 0)
    for path in self.workdir.glob('*/seed-*/summary.json'):
      path.unlink()
    for path in self.workdir.glob('*/seed-*/eval.json'):
      path.unlink()
    expect(stopped, 8)

  def test_points_are_checked_against_the_config_of_their_command(self):
    source = self.root / 'config.py'
    source.write_text(REFERRING)
    self.file.write_text("""
MODE = 'train'
SEEDS = (1,)
SETTINGS = {
    'kinds': {'data.families': ['chain_sum:0'], 'optim.learning_rate': 1},
    'dict': {'reward.weights': {'outcome': 1, 'overlong': 1}},
    'variant': {'variant': 'random', 'grpo.prompts': 8},
    'referred': {'grpo.group_size': 8},
}
""")
    kwargs = ml_collections.ConfigDict({'families': ('gcd:0',)})
    given = sweep.CommandLine(f'{source}:smoke', {'domain.kwargs': kwargs})
    read = sweep_file.read(str(self.file))
    config = runpy.run_path(str(source))['get_config']('smoke')
    for point in sweep.make_points(read, self.workdir, given):
      with self.subTest(point.setting):
        fields = read.settings[point.setting]
        made = sweep.check(config, given, point.setting, fields)
        made.seed = point.seed
        self.assertEqual(
            config_lib.to_mapping(made), config_of(point.command.flags)
        )

  def test_settings_with_equal_scores_differ_by_exactly_nothing(self):
    interval = lambda *values: sweep._interval(values, least=0.0)
    self.assertEqual(interval(*[0.0] * 5), [0.0, 0.0, 0.0])
    # Student's interval of these two seeds is [-1.57, 2.24].
    _, low, high = interval(0.2, 0.5)
    self.assertEqual((low, high), (0.0, 1.0))
    self.assertEqual(interval(0.2), [0.2, None, None])

  def test_slurm_runs_one_point_per_task(self):
    with absltest.mock.patch.object(
        commands.Command, 'argv', lambda c: ['echo', 'a b', *c.flags]
    ):
      self.assertEqual(self.run_it(executor='slurm', workers=3), 0)
    script = self.workdir / 'array.sh'
    self.assertIn('--array=0-7%3', script.read_text())
    ran = subprocess.run(
        ['bash', script],
        env={'SLURM_ARRAY_TASK_ID': '2', 'PATH': '/usr/bin:/bin'},
        capture_output=True,
        text=True,
        check=True,
    )
    self.assertIn('a b --mode=train', ran.stdout)
    self.assertIn('wide,learning_rate=0.0001/seed-1', ran.stdout)

  def test_slurm_reads_a_workdir_with_blanks(self):
    self.workdir = self.root / 'two words, 50 %a'
    self.assertEqual(self.run_it(executor='slurm'), 0)
    script = self.workdir / 'array.sh'
    lines = script.read_text().splitlines()
    options = [
        # As Slurm: quotes are kept together, and # begins a comment.
        shlex.split(line.removeprefix('#SBATCH'), comments=True)
        for line in lines
        if line.startswith('#SBATCH')
    ]
    self.assertEqual({len(words) for words in options}, {1})
    found = dict(word.split('=', 1) for (word,) in options)
    self.assertEqual(found['--job-name'], self.workdir.name)
    logs = f'{self.root}/two words, 50 %%a/logs/%a.log'
    self.assertEqual(found['--output'], logs)
    (said,) = (line for line in self.said if 'sbatch' in line)
    self.assertEqual(
        shlex.split(said.partition('are left: ')[2]), ['sbatch', str(script)]
    )

  def test_two_sweeps_of_one_workdir_do_not_disturb_each_other(self):
    other, this = Fake(), Fake()

    def begin(engine, command):
      # The other sweep is under way.
      if not this.started:
        this.started.append('refused')
        with self.assertRaisesRegex(ValueError, f'{self.workdir} is in use by'):
          self.run_it(this)
      return Fake.start(engine, command)

    with absltest.mock.patch.object(other, 'start', lambda c: begin(other, c)):
      self.assertEqual(self.run_it(other), 0)
    self.assertEqual(this.started, ['refused'])
    self.assertLen(other.started, 8)
    self.assertFalse((self.workdir / '.lock').exists())

  def test_the_workdir_of_a_run_is_refused(self):
    finish(self.workdir, 0.5, config_of(['--config=configs/math.py:smoke']))
    with self.assertRaisesRegex(
        ValueError, f'--workdir={self.workdir} holds a run of --mode=train'
    ):
      self.run_it(dry_run=True)

  def test_slurm_gets_no_script_for_a_sweep_that_has_ended(self):
    self.assertEqual(self.run_it(Fake()), 0)
    self.assertEqual(self.run_it(executor='slurm'), 0)
    self.assertFalse((self.workdir / 'array.sh').exists())
    self.assertNotIn('sbatch', ''.join(self.said))

  def test_slurm_finds_script_and_logs_of_a_sweep_in_a_store(self):
    variables = objects.make(self.root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    self.enterContext(contextlib.chdir(self.root))
    url = 'objects://bucket/swept'
    with mirror.opened_below(url) as self.workdir:
      self.run_it(executor='slurm', source=str(tiny.ROOT / SOURCE))
    script = self.root / 'runs/swept/array.sh'
    self.assertIn(f'sbatch {script}', ''.join(self.said))
    self.assertRegex(script.read_text(), rf'--workdir={url}/base,.*/seed-1')
    (logs,) = re.findall(r'--output=(.*)/%a.log', script.read_text())
    self.assertTrue(os.path.isdir(logs))
    self.assertContainsSubset(
        ['sweep.json', 'sweep.html'], storage.Store(url).list()
    )

  def test_each_point_gets_a_gpu_of_its_own(self):
    seen = self.root / 'seen'
    started = commands.ThisMachine.start

    def start(engine, command):
      text = f'echo $CUDA_VISIBLE_DEVICES >> {seen}; sleep 0.2; exit 1'
      with absltest.mock.patch.object(
          commands.Command, 'argv', lambda _: ['bash', '-c', text, '-']
      ):
        return started(engine, command)

    self.enterContext(
        absltest.mock.patch.object(commands.ThisMachine, 'start', start)
    )
    options = dict(engine=None, workers=2, open_engine=commands.open_engine)
    with accelerators_test.machine(GPU=2):
      self.assertEqual(self.run_it(**options), 1)
    places = seen.read_text().split()
    self.assertLen(places, 8)
    # Two points run at a time, never both on one.
    self.assertEqual(set(places[:2]), {'0', '1'})
    self.assertIn('with GPU 1, log', '\n'.join(self.said))

  def test_too_few_gpus_are_refused_before_anything_begins(self):
    options = dict(engine=None, open_engine=commands.open_engine)
    with accelerators_test.machine(GPU=1):
      with self.assertRaisesRegex(ValueError, '--workers=2: each of 2'):
        self.run_it(**options, workers=2)
    self.assertFalse(self.workdir.exists())

  def test_ray_is_told_what_a_point_gets(self):
    with self.assertRaisesRegex(ValueError, 'needs --arm_resources'):
      commands.open_engine('ray')

  def test_a_dry_run_on_ray_needs_what_the_run_needs(self):
    options = dict(executor='ray', dry_run=True)
    with self.assertRaisesRegex(ValueError, 'needs --arm_resources'):
      self.run_it(**options)
    self.run_it(**options, arm_resources=['CPU=1'])
    self.assertLen(self.out.getvalue().splitlines(), 8)

  @parameterized.parameters(
      (
          {'steps': 3},
          "--config.steps=3: .* sets steps=9 in setting 'base,.*; leave the",
      ),
      ({'seed': 3}, '--config.seed=3: SEEDS'),
      (
          {'reward.weights.outcome': 2.0},
          "--config.reward.weights.outcome=2.0.*sets reward.weights=.*'wide,",
      ),
      (
          {'reward.weights': ml_collections.ConfigDict({'outcome': 2.0})},
          "--config.reward.weights={'outcome': 2.0}: .*.weights.outcome=1.0",
          "'reward.weights.outcome': 1.0",
      ),
  )
  def test_a_field_of_the_file_is_refused_on_the_command_line(
      self, fields, message, own=''
  ):
    weights = "'reward.weights': {'outcome': 1.0}"
    self.edit(weights, own or weights)
    with self.assertRaisesRegex(ValueError, message):
      self.run_it(given=sweep.CommandLine(SOURCE, fields), dry_run=True)

  def test_a_variant_that_no_setting_uses_is_refused(self):
    self.edit("'base': {}", "'base': {'variant': 'random'}")
    with self.assertRaisesRegex(
        ValueError, 'math.py:smoke: .*, random, reference; leave :smoke out'
    ):
      self.run_it(dry_run=True)
    for source in ('configs/math.py', 'configs/math.py:random'):
      self.run_it(source=source, dry_run=True)

  @parameterized.parameters(
      ("'base': {}", "'base': {'optim.learning_rate': 3e-4}"),
      # Only the names of the configs differ.
      (
          "'base': {}",
          "'a': {'variant': 'default'}, 'base': {'variant': 'random',"
          " 'evolve.proposer': 'rules'}",
      ),
  )
  def test_settings_with_equal_configs_are_refused(self, before, after):
    self.edit(before, after)
    with self.assertRaisesRegex(
        ValueError, "settings '(a|base),.*' and 'base,.*' have equal configs"
    ):
      self.run_it(source='configs/math.py', dry_run=True)

  @parameterized.parameters(
      ('', 'needs --sweep=FILE'),
      ('x/y.py', 'there is no such file'),
  )
  def test_no_file(self, path, message):
    with self.assertRaisesRegex(ValueError, message):
      self.run_it(sweep=path)

  @parameterized.parameters(
      ('SEEDS = (1, 1)', 'SEEDS=.*none twice'),
      ('SEEDS = ()', 'SEEDS='),
      ("MODE = 'serve'", "MODE='serve': choose one"),
      ("SETTINGS = {'a/b': {}}", 'names of directories'),
      (
          "SETTINGS = {'a': {'grpo.clap': 1}}",
          "setting 'a.*': .*grpo.clap is not",
      ),
      (
          "SETTINGS = {'a': {'steps': -1}}",
          "(?s)setting 'a.*': .*config.steps=-1",
      ),
      ("SETTINGS = {'a': {'variant': 'x'}}", "setting 'a.*': .*choose one of"),
      ('SEEDS = 1 / 0', 'ZeroDivisionError'),
      ('SEEDS = 3', r'SEEDS=3 instead of \(seed, ...\)'),
      ("SEEDS = '12'", "SEEDS='12' instead of"),
      ('SEEDS = (1, 2.5)', 'SEEDS: 2.5: no whole number'),
      ('SEEDS = (1, -2)', 'SEEDS: -2: must lie in'),
      ("GRID = {'steps': 5}", "GRID: 'steps' has 5 instead of .value, ..."),
      ("GRID = {'steps': ()}", r"GRID: 'steps' has \(\) instead of"),
      ("GRID = {'model.path': 'abc'}", "GRID: 'model.path' has 'abc' instead"),
      ("GRID = ('steps', 5)", 'GRID=.* must be a dict: field'),
      (
          "GRID = {'optim.learning_rate': (1e-3, 0.001)}",
          r"GRID: 'optim.learning_rate' has 0.001 and 0.001, .*\(0.001\)",
      ),
      ("GRID = {'model.path': ('a/b', 'a b')}", r"'a/b' and 'a b', .*\(a_b\)"),
      ("GRID = {'seed': (1, 2)}", 'GRID sets seed: SEEDS does'),
      ("SETTINGS = {'a': 5}", "SETTINGS: 'a' has 5 instead of"),
      ("SETTINGS = {'a': {7: 5}}", r"SETTINGS: 'a': \[7\] are not names of f"),
      ("SETTINGS = {'a': {'seed': 5}}", "SETTINGS: 'a' sets seed: SEEDS"),
      ('SETTINGS = {7: {}}', r'SETTINGS: \[7\] are not names of directories'),
      ("SETTINGS = {'..': {}}", r"SETTINGS: \['\.\.'\] are not names of"),
      ("GRIDS = {'steps': (5,)}", 'GRIDS is none of SETTINGS.*mean GRID?'),
      ("grid = {'steps': (5,)}", 'grid is none of SETTINGS.*mean GRID?'),
      ('RATES = (1e-4,)', 'RATES is none of SETTINGS, .*; call yours _RATES'),
  )
  def test_what_is_wrong_is_told_before_anything_begins(self, line, message):
    self.file.write_text(f'{FILE}\n{line}\n')
    with self.assertRaisesRegex(ValueError, message):
      self.run_it()
    self.assertFalse(self.workdir.exists())

  def test_a_file_may_compute_what_it_says(self):
    self.file.write_text("""
import numpy as np
_RATES = np.geomspace(1e-4, 1e-3, 2)
rates = [float(rate) for rate in _RATES]
MODE = 'train'
SEEDS = np.arange(2)
GRID = {'optim.learning_rate': rates, 'steps': range(3, 5)}
""")
    self.run_it(dry_run=True)
    lines = self.out.getvalue().splitlines()
    self.assertLen(lines, 8)
    self.assertIn('all,learning_rate=0.0001,steps=4/seed-0', lines[1])

  def test_numbers_of_numpy_are_those_of_python(self):
    self.file.write_text("""
import numpy as np
MODE = 'train'
SEEDS = (0,)
_WEIGHTS = [{'outcome': weight} for weight in np.linspace(0.5, 1.0, 2)]
GRID = {'reward.weights': _WEIGHTS, 'steps': np.arange(3, 5)}
""")
    self.run_it(dry_run=True)
    lines = self.out.getvalue().splitlines()
    self.assertLen(lines, 4)
    made = config_of(shlex.split(lines[1]))
    self.assertEqual(made['reward']['weights'], {'outcome': 0.5})
    self.assertEqual(made['steps'], 4)
    self.assertIn('all,weights=outcome_0.5,steps=4/seed-0', lines[1])

  @parameterized.parameters(*sorted(tiny.ROOT.glob('configs/sweeps/*.py')))
  def test_shipped_sweeps_make_runs(self, path):
    # With the config that the file's own command names.
    command = ast.get_docstring(ast.parse(path.read_text()))
    self.assertIn(f'--sweep=configs/sweeps/{path.name}', command)
    source = re.search(r'--config=(\S+)', command)[1]
    file, _, variant = source.partition(':')
    config = runpy.run_path(file)['get_config'](variant or 'default')
    read = sweep_file.read(str(path))
    # Intervals are over seeds; one setting alone makes a table, too.
    self.assertGreater(len(read.seeds), 1)
    # The plain config is enough.
    self.assertEmpty(variant)
    self.run_it(sweep=str(path), source=file, config=config, dry_run=True)
    self.assertLen(
        self.out.getvalue().splitlines(), len(read.settings) * len(read.seeds)
    )
    view, _ = synthetic.make_view(settings.make_domain(config), config)
    for name, fields in read.settings.items():
      with self.subTest(name):
        given = sweep.CommandLine(source, {})
        made = sweep.check(config, given, name, fields)
        domain = settings.make_domain(made, made.data.families)
        parts = reward_parts.load_parts(made.reward.parts, domain.reward_parts)
        self.assertContainsSubset(made.reward.weights, parts(view))


@pytest.mark.slow
class CommandTest(absltest.TestCase):

  def test_trains_on_this_machine_once_in_a_store(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    store = storage.Store('objects://bucket/runs')
    policy = tiny.make_policy(root / 'policy')
    (root / 'mine.py').write_text("MODE = 'train'\nSEEDS = (1, 2)\n")
    # Every process of the sweep knows the scheme objects://.
    (root / 'sitecustomize.py').write_text('import tests.objects\n')
    command = [
        *(sys.executable, '-m', 'evojax.main', '--mode=sweep'),
        *(f'--config=tests/tiny.py:{policy}', f'--sweep={root / "mine.py"}'),
        *('--config.steps=3', '--executor=local', '--workers=2'),
        *(f'--workdir={store.url}', '--compilation_cache='),
    ]
    paths = os.pathsep.join([str(root), str(tiny.ROOT)])

    def run():
      return subprocess.run(
          command,
          cwd=tiny.ROOT,
          env=tiny.environment(PYTHONPATH=paths, COLUMNS='200', **variables),
          capture_output=True,
          text=True,
          check=True,
      ).stdout

    first = run()
    self.assertIn('2 of 2 points have ended', first)
    self.assertIn(f'{store.url}/sweep.html', first)
    (row,) = json.loads(store.read('sweep.json'))
    self.assertEqual((row['seeds'], row['of']), (2, 2))
    page = store.read('sweep.html').decode()
    self.assertIn(f'Sweep {store.url}', page)
    self.assertIn('all/seed-1/report.html', page)
    self.assertIn('step 3/3', store.read('logs/all-1.log').decode())
    with mirror.opened(f'{store.url}/all/seed-2') as path:
      self.assertEqual(metrics_lib.read(pathlib.Path(path))[-1]['step'], 3)
    again = run()
    self.assertNotIn('have ended', again)
    self.assertIn('all', again)


if __name__ == '__main__':
  absltest.main()
