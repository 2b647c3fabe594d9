"""A start that comes to nothing leaves a workdir as it was, byte by byte."""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized

import evojax
from evojax.eval import evaluate as evaluate_lib
from evojax.evolve.steps import start as start_step
from evojax.models import warmstart as warmstart_lib
from evojax.modes import evaluate as evaluate_mode
from evojax.modes import warmstart as warmstart_mode
from evojax.runtime import devices
from evojax.runtime import metrics
from evojax.runtime import preemption
from evojax.runtime import workdir as workdir_lib
from evojax.training import trainer as trainer_lib
from tests import compiled
from tests import tiny
from tests.faults import wrong_input_test

tree = wrong_input_test.tree


class StartsTestCase(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.shared = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.shared / 'policy')
    cls.run_ = cls.shared / 'run'
    evojax.run(cls.make_config(), str(cls.run_))

  @classmethod
  def make_config(cls, **overrides):
    return tiny.make_config(cls.policy, checkpoint__every=1, **overrides)

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder)

  def workdirs(self):
    """A new one, one with files of the user, and two of killed runs."""
    (self.root / 'own/inbox').mkdir(parents=True)
    (self.root / 'own/inbox/mine.py').write_text('# Mine.\n')
    killed = self.root / 'killed'
    shutil.copytree(self.run_, killed)
    (killed / '.lock').write_text('pid 1 on a host that is gone')
    # Evidence and metrics of a step without a checkpoint.
    train = killed / 'evidence/train'
    shutil.copy(train / 'step_000001.parquet', train / 'step_000002.parquet')
    with open(killed / 'metrics.jsonl', 'a') as file:
      file.write('{"step": 3, "loss": 0.5}\n{"step"')
    begun = self.root / 'begun'  # Killed before its first checkpoint.
    shutil.copytree(killed, begun)
    shutil.rmtree(begun / 'checkpoints')
    return self.root / 'a/new', self.root / 'own', killed, begun


class FailedTest(StartsTestCase):
  """Within a program; the error or signal arrives somewhere in the start."""

  def assert_unchanged(self, workdir, config, run=evojax.run, error=Exception):
    before = tree(self.root)
    with self.assertRaises(error):
      run(config, str(workdir))
    self.assertEqual(tree(self.root).keys() ^ before.keys(), set())
    self.assertEqual(tree(self.root), before)

  @parameterized.parameters(
      (workdir_lib, 'environment', ValueError),
      (trainer_lib.Trainer, 'install', OSError),
      (metrics.MetricWriter, 'write', KeyboardInterrupt),
      (trainer_lib.Trainer, 'evaluate', TypeError),
  )
  def test_training(self, owner, name, error):
    original = getattr(owner, name)

    def fail(*args, **kwargs):
      original(*args, **kwargs)
      raise error

    for workdir in self.workdirs():
      if workdir.name == 'killed' and name in ('write', 'evaluate'):
        continue  # A run that continues does not score its base policy.
      with self.subTest(workdir.name):
        with absltest.mock.patch.object(owner, name, fail):
          self.assert_unchanged(workdir, self.make_config(steps=4), error=error)

  def test_signal_before_the_first_step(self):
    describe = devices.describe

    def ask():
      os.kill(os.getpid(), signal.SIGINT)
      return describe()

    with absltest.mock.patch.object(devices, 'describe', ask):
      for workdir in self.workdirs():
        with self.subTest(workdir.name):
          self.assert_unchanged(
              workdir,
              self.make_config(steps=4),
              error=preemption.Preempted,
          )

  def test_full_disk(self):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for workdir in self.workdirs():
      for room in (0, 100):
        with self.subTest(f'{workdir.name} {room}'):
          resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
          try:
            self.assert_unchanged(
                workdir, self.make_config(steps=4), error=OSError
            )
          finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

  def test_evolving(self):
    new, own, *_ = self.workdirs()
    with absltest.mock.patch.object(
        start_step, 'train', side_effect=KeyboardInterrupt
    ):
      for workdir in (new, own):
        self.assert_unchanged(workdir, tiny.evolving(), error=KeyboardInterrupt)

  def test_evaluation_that_is_stopped(self):
    workdir = self.root / 'eval'
    evaluate_mode.run(self.make_config(), str(workdir))
    for name in ('eval', 'new'):
      with absltest.mock.patch.object(
          evaluate_lib, '_result', side_effect=KeyboardInterrupt
      ):
        self.assert_unchanged(
            self.root / name,
            self.make_config(eval__problems=3),
            run=evaluate_mode.run,
            error=KeyboardInterrupt,
        )

  def test_warm_start(self):
    config = tiny.evolving(warmstart__steps=2, warmstart__warmup_steps=1)
    with absltest.mock.patch.object(
        warmstart_lib, 'optimizer', side_effect=KeyboardInterrupt
    ):
      self.assert_unchanged(
          self.root / 'new',
          config,
          run=warmstart_mode.run,
          error=KeyboardInterrupt,
      )


class SignalledTest(StartsTestCase):
  """By commands."""

  def start(self, workdir, *flags, **environment):
    return subprocess.Popen(
        [
            sys.executable,
            '-m',
            'evojax.main',
            f'--config=tests/tiny.py:{self.policy}',
            f'--compilation_cache={compiled.CACHE}',
            f'--workdir={workdir}',
            *flags,
        ],
        cwd=tiny.ROOT,
        env=tiny.environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

  @parameterized.parameters(
      ('train', 'SIGINT', 0.2),
      ('train', 'SIGTERM', 1.0),
      ('eval', 'SIGINT', 1.5),
      ('plan', 'SIGINT', 2.0),
  )
  def test_at_some_moment(self, mode, name, seconds):
    command = self.start(self.root / 'a/new', f'--mode={mode}')
    # Until it hears SIGTERM, Python itself is starting.
    status = pathlib.Path(f'/proc/{command.pid}/status')
    caught = lambda: re.search(r'SigCgt:\s*(\w+)', status.read_text())[1]
    while status.exists() and not int(caught(), 16) >> (signal.SIGTERM - 1) & 1:
      time.sleep(0.01)
    time.sleep(seconds)
    # As a terminal does: to the command and all of its children.
    os.killpg(command.pid, getattr(signal, name))
    out, err = command.communicate()
    expected = preemption.STATUSES[getattr(signal, name)]
    self.assertEqual(command.returncode, expected, err)
    self.assertLessEqual(len(err.splitlines()[0]), 80)
    self.assertRegex(
        ' '.join(err.replace('\\\n', '').split()),
        rf'^{name}: stopped before the first step, nothing has changed; the'
        rf' same command continues: \S+ -m evojax\.main --config=.*{mode}$',
    )
    self.assertEmpty(tree(self.root))

  def test_when_the_reward_is_tried(self):
    command = self.start(
        self.root / 'new',
        '--config.reward.parts=tests.faults.fatal_reward.parts',
        FATAL=f'{signal.SIGINT}@1',
    )
    _, err = command.communicate()
    self.assertEqual(command.returncode, 130, err)
    self.assertStartsWith(err, 'SIGINT: stopped before the first step')
    self.assertEmpty(tree(self.root))


if __name__ == '__main__':
  absltest.main()
