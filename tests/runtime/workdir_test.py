"""Tests for the run directory: lock, config, manifest."""

import errno
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax import config as config_lib
from evojax.runtime import config_changes
from evojax.runtime import durable
from evojax.runtime import workdir as workdir_lib

EMPTY = ml_collections.ConfigDict()
CONFIG = {
    'name': 'run',
    'steps': 100,
    'optim': {'learning_rate': 1e-4, 'schedule': 'constant'},
    'rollout': {'stop': []},
    'checkpoint': {'every': 10, 'keep': 2},
    'eval': {'every': 0},
    'log': {'wandb': 'disabled'},
}


def changed(**fields):
  """CONFIG with fields such as optim__learning_rate changed."""
  config = json.loads(json.dumps(CONFIG))
  for name, value in fields.items():
    *parents, leaf = name.split('__')
    node = config
    for parent in parents:
      node = node[parent]
    node[leaf] = value
  return config


ROOT = pathlib.Path(__file__).resolve().parents[2]


class WorkdirTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.path = self.root / 'run'

  def open(self, config=None, **kwargs):
    config = ml_collections.ConfigDict(CONFIG if config is None else config)
    kwargs = {'mode': 'train'} | kwargs
    workdir = workdir_lib.open_workdir(self.path, config, **kwargs)
    self.addCleanup(workdir.close)
    return workdir


class ConfigTest(WorkdirTestCase):

  def test_new_then_resumed(self):
    with self.open() as workdir:
      self.assertFalse(workdir.resumed)
      self.assertEqual(workdir.path, self.path)
    saved = json.loads((self.path / 'config.json').read_text())
    sha = config_lib.sha256(ml_collections.ConfigDict(CONFIG))
    self.assertEqual(saved, {'mode': 'train', 'hash': sha, 'config': CONFIG})
    with self.open() as workdir:
      self.assertTrue(workdir.resumed)

  def test_changed_config_is_refused_with_the_difference_and_the_fork(self):
    self.open().close()
    before = (self.path / 'config.json').read_bytes()
    with self.assertRaises(workdir_lib.WorkdirError) as caught:
      self.open(changed(optim__learning_rate=3e-4, rollout__top_k=5, steps=7))
    message = str(caught.exception)
    self.assertIn('\n  optim.learning_rate: 0.0001 -> 0.0003\n', message)
    # The default, which a run without the field had.
    self.assertIn('\n  rollout.top_k: -1 -> 5\n', message)
    self.assertNotIn('steps', message)  # Free, as the schedule is constant.
    flags = f'--workdir={self.path}-fork --fork_from={self.path}'
    self.assertIn(flags, message)
    self.assertEqual((self.path / 'config.json').read_bytes(), before)
    self.open().close()  # The lock was given back.

  def test_what_a_run_did_before_a_field_existed(self):
    of = lambda settled: config_changes.refused(
        {'evolve': {'rounds': 2}},
        {'evolve': {'rounds': 2, 'settled': settled}},
        'evolve',
    )
    # Changes never waited, whatever the default is today.
    self.assertEqual(of(0.05), {'evolve.settled': (1.0, 0.05)})
    self.assertEqual(of(1.0), {})

  def test_what_only_a_plan_reads_does_not_bind_a_run(self):
    config = config_lib.base()
    without = config_lib.to_mapping(config)
    del without['plan']  # As in a run of an evojax before that field.
    recipe = config_changes.recipe(config)
    with config.unlocked():
      config.plan.mean_tokens = 28
    values = config_lib.to_mapping(config)
    for mode in ('train', 'evolve'):
      self.assertEqual(config_changes.refused(without, values, mode), {})
    self.assertEqual(config_changes.recipe(config), recipe)

  def test_a_run_continues_with_servers_at_other_addresses(self):
    config = config_lib.base()
    with config.unlocked():
      config.rollout.kind = 'sglang'
      config.rollout.urls = ('http://host-a:30000',)
    saved, recipe = config_lib.to_mapping(config), config_changes.recipe(config)
    with config.unlocked():
      config.rollout.urls, config.rollout.urls_file = (), '/mnt/run/servers'
      config.rollout.weights_dir = '/mnt/run'
    values = config_lib.to_mapping(config)
    for mode in ('train', 'evolve'):
      for ended in (True, False):
        found = config_changes.refused(saved, values, mode, ended)
        self.assertEqual(found, {})
    self.assertEqual(config_changes.recipe(config), recipe)
    with config.unlocked():
      config.rollout.kind = 'engine'
    found = config_changes.refused(
        saved, config_lib.to_mapping(config), 'train'
    )
    self.assertIn('rollout.kind', found)

  def test_the_temperature_of_scores_binds_a_run_that_keeps_changes_by_them(
      self,
  ):
    config = config_lib.base()
    saved = config_lib.to_mapping(config)
    with config.unlocked():
      config.eval.temperature, config.eval.problems = 0.5, 64
    values = config_lib.to_mapping(config)
    self.assertEqual(config_changes.refused(saved, values, 'train'), {})
    self.assertEqual(
        config_changes.refused(saved, values, 'evolve'),
        {'eval.temperature': (1.0, 0.5)},
    )

  def test_fork_command_is_this_command_in_another_directory(self):
    argv = [
        '/src/evojax/main.py',
        '--config=configs/math.py',
        '--workdir',
        'old',
        '--config.name=a b',
        '--fork_from=older',
    ]
    with absltest.mock.patch.multiple(
        sys, argv=argv, orig_argv=['python', '-m', 'evojax.main']
    ):
      command = workdir_lib._fork_command(pathlib.Path('/runs/old'))
    self.assertEqual(
        command,
        "python -m evojax.main --config=configs/math.py '--config.name=a b'"
        ' --workdir=/runs/old-fork --fork_from=/runs/old',
    )

  @parameterized.parameters(
      'steps',
      'name',
      'checkpoint__every',
      'checkpoint__keep',
      'eval__every',
      'log__wandb',
  )
  def test_field_that_does_not_touch_training_may_change(self, field):
    self.open().close()
    self.open(changed(**{field: 3})).close()
    saved = json.loads((self.path / 'config.json').read_text())['config']
    self.assertEqual(saved, changed(**{field: 3}))

  def test_steps_are_not_free_where_the_learning_rate_depends_on_them(self):
    self.open(changed(optim__schedule='cosine')).close()
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'steps: 100 -> 9'):
      self.open(changed(optim__schedule='cosine', steps=9))

  def test_prefix_of_a_free_field_is_not_free(self):
    self.open(changed(log_prob=1)).close()
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'log_prob: 1 -> 2'):
      self.open(changed(log_prob=2))

  def test_tuples_equal_lists(self):
    self.open().close()
    self.open(CONFIG | {'rollout': {'stop': ()}}).close()

  def test_foreign_config_file_is_named(self):
    self.path.mkdir()
    (self.path / 'config.json').write_text('{"learning_rate": ')
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'config.json is not'):
      self.open()


class LockTest(WorkdirTestCase):

  def test_second_run_is_refused_with_pid_and_host(self):
    with self.open():
      with self.assertRaisesRegex(
          workdir_lib.WorkdirError,
          f'{self.path} is in use by pid {os.getpid()} on'
          f' {os.uname().nodename} since ',
      ):
        self.open()
    self.open().close()

  def test_whether_a_process_works_on_it_is_asked_without_a_trace(self):
    self.assertFalse(workdir_lib.in_use(self.path))
    self.assertFalse(self.path.exists())
    with self.open():
      before = sorted(self.path.iterdir())
      self.assertTrue(workdir_lib.in_use(self.path))
      self.assertEqual(sorted(self.path.iterdir()), before)
    self.assertFalse(workdir_lib.in_use(self.path))
    self.open().close()  # Asking kept no lock.

  def test_a_question_at_the_same_moment_refuses_no_run(self):
    self.path.mkdir()
    asked = os.open(self.path / '.lock', os.O_RDONLY | os.O_CREAT)
    fcntl.flock(asked, fcntl.LOCK_SH)  # As `is_held` does, for a moment.
    threading.Timer(0.03, os.close, [asked]).start()
    self.open().close()

  @parameterized.parameters(errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
  def test_a_file_system_without_locks_is_named_as_such(self, number):
    # Lustre is often mounted without `-o flock`.
    def flock(fd, how):
      del fd, how
      raise OSError(number, os.strerror(number))

    with absltest.mock.patch.object(fcntl, 'flock', flock):
      with self.assertRaises(OSError) as caught:
        self.open()
      self.assertFalse(self.path.exists())
      self.path.mkdir()
      (self.path / '.lock').touch()
      self.assertFalse(workdir_lib.in_use(self.path))
    text = str(caught.exception)
    self.assertRegex(text, f'{self.path} cannot be locked .*-o flock')
    self.assertNotIn('Free space', text)

  def test_other_processes_of_the_same_run_take_no_lock(self):
    with self.open():
      other = self.open(primary=False)
      self.assertTrue(other.resumed)
      other.close()
      with self.assertRaises(workdir_lib.WorkdirError):
        self.open()

  def test_lock_of_a_killed_process_is_no_lock(self):
    # The process also leaves a forked child behind, as sandboxes may.
    script = f"""
        import os, signal, sys, time
        sys.path[:0] = {sys.path!r}
        import ml_collections
        from evojax.runtime import workdir
        empty = ml_collections.ConfigDict()
        workdir.open_workdir({str(self.path)!r}, empty, mode='train')
        if os.fork() == 0:
          print(os.getpid(), flush=True)  # It has let go of the lock by now.
          time.sleep(60)
          os._exit(0)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
      child = int(process.stdout.readline())
      try:
        with self.assertRaisesRegex(
            workdir_lib.WorkdirError, f'pid {process.pid} '
        ):
          workdir_lib.open_workdir(self.path, EMPTY, mode='train')
        process.kill()
        process.wait()
        os.kill(child, 0)  # Still there.
        workdir_lib.open_workdir(self.path, EMPTY, mode='train').close()
      finally:
        process.kill()
        os.kill(child, signal.SIGKILL)


class PathTest(WorkdirTestCase):

  def test_file(self):
    self.path.write_text('')
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'is a file'):
      self.open()

  def test_below_a_file(self):
    self.path.write_text('')
    self.path = self.path / 'below'
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'cannot be created'):
      self.open()

  def test_place_where_nobody_writes(self):
    self.path = pathlib.Path('/proc/evojax')
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'cannot be created'):
      self.open()

  def test_read_only_directory(self):
    self.path.mkdir()
    with absltest.mock.patch.object(os, 'access', return_value=False):
      with self.assertRaisesRegex(
          workdir_lib.WorkdirError, 'cannot be written'
      ):
        self.open()

  def test_a_name_that_no_checkpoint_can_be_read_from(self):
    name = os.fsdecode(b'caf\xe9')
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'are not UTF-8'):
      workdir_lib.check(self.path / name, ml_collections.ConfigDict(), 'train')

  def test_bucket(self):
    with self.assertRaisesRegex(
        workdir_lib.WorkdirError, 'is not a path of this machine'
    ):
      workdir_lib.open_workdir('gs://bucket/run', EMPTY, mode='train')

  def test_full_disk(self):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for call in ('pwrite', 'write'):
      with absltest.mock.patch.object(os, call, side_effect=full):
        with self.assertRaisesRegex(
            durable.DiskError, f'cannot write {self.path}.*No space left'
        ):
          self.open()
      self.assertFalse(self.path.exists())
    self.open().close()  # Neither left the lock behind.


class ManifestTest(WorkdirTestCase):

  def test_every_start_is_kept_and_changed_numerics_are_named(self):
    with self.open() as workdir:
      entry = workdir.record_start()
      manifest = self.path / 'manifest.json'
      self.assertEqual(json.loads(manifest.read_text()), [entry])
      self.assertContainsSubset(
          {
              'jax',
              'jaxlib',
              'flax',
              'optax',
              'orbax-checkpoint',
              'transformers',
              'python',
              'platform',
              'device',
              'devices',
              'commit',
              'XLA_FLAGS',
              'host',
              'start',
              'command',
          },
          entry,
      )
      self.assertEqual(entry['platform'], 'cpu')
      if (ROOT / '.git').exists():
        self.assertRegex(entry['commit'], '^[0-9a-f]{40}(-dirty)?$')
      manifest.write_text(json.dumps([entry | {'jaxlib': '0.1.0'}]))
      with self.assertLogs('absl', 'WARNING') as logs:
        workdir.record_start()
      self.assertLen(logs.output, 1)
      self.assertIn('jaxlib changed', logs.output[0])
      self.assertIn('0.1.0 -> ', logs.output[0])
      self.assertLen(json.loads(manifest.read_text()), 2)
      with self.assertNoLogs('absl', 'WARNING'):
        workdir.record_start()

  def test_a_split_that_the_last_start_did_not_use_is_kept_too(self):
    train, sealed = (dict(count=9, sha256=text) for text in ('a', 'b'))
    with self.open() as workdir:
      workdir.record_start(problems=dict(train=train, sealed=sealed))
      workdir.record_start(problems=dict(train=train))
      with self.assertRaisesRegex(workdir_lib.WorkdirError, ' sealed: 9 -> 8'):
        workdir.record_start(
            problems=dict(train=train, sealed=sealed | {'count': 8})
        )


if __name__ == '__main__':
  absltest.main()
