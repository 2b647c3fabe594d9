"""Arms in processes of their own: the same bits, whatever happens to them."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from absl.testing import absltest
from pyarrow import parquet
import pytest

from evojax import config as config_lib
from evojax.evolve import executor
from evojax.evolve import loop
from evojax.ledger import chain
from evojax.modes import arm as arm_mode
from evojax.runtime import commands
from evojax.runtime import metrics
from evojax.runtime import mirror
from evojax.runtime import preemption
from evojax.runtime import progress
from evojax.runtime import sharding
from evojax.runtime import storage
from evojax.runtime import workdir as workdir_lib
from evojax.training import arm as arm_lib
from evojax.training import reward_parts
from evojax.training import trainer as trainer_lib
from tests import objects
from tests import tiny
from tests.training import arm_test

# A shorter limit of tokens, under which `parts` fails once it was sampled with.
CRASHES = {
    'delta': {'overlay': {'rollout.token_limit': 16}},
    'hypothesis': 'Shorter is better.',
    'expected': [0.0, 0.5],
}


def parts(e):
  """A reward that no arm with a shorter limit survives."""
  short = e.max_tokens < 32 and e.n_tokens.max() <= e.max_tokens
  if short and e.n_tokens.size > 2:  # Not where the reward is tried out.
    raise reward_parts.RewardError('no reward for short completions')
  return {'outcome': e.outcome.astype('float32')}


def command(job):
  return [
      *(sys.executable, '-m', 'evojax.main', '--mode=arm'),
      *(f'--job={job.path / "job.json"}', '--compilation_cache='),
  ]


def write(job):
  job.path.mkdir(parents=True, exist_ok=True)
  (job.path / 'job.json').write_text(job.to_json())


def evidence(folder):
  """Name -> table, without what a clock writes."""
  return {
      file.name: parquet.read_table(file).drop_columns('grade_seconds')
      for file in sorted(folder.rglob('*.parquet'))
  }


def wait_for(path, seconds=120):
  deadline = time.monotonic() + seconds
  while not path.exists():
    assert time.monotonic() < deadline, path
    time.sleep(0.005)


class CommandTest(absltest.TestCase):
  """`python -m evojax.main --mode=arm --job=JOB.json`."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.root / 'policy')
    cls.job = arm_test.make_job(cls.root, cls.policy)
    cls.environment = tiny.environment()

  def start(self, job):
    write(job)
    return subprocess.Popen(
        command(job),
        cwd=tiny.ROOT,
        env=self.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

  def test_same_bits_after_sigterm_as_in_this_process(self):
    expected = arm_test.train(dataclasses.replace(self.job, folder='arms/here'))
    worker = self.start(self.job)
    wait_for(self.job.path / 'evidence/train/step_000001.parquet')
    worker.terminate()
    out, err = worker.communicate()
    self.assertEqual(worker.returncode, preemption.AGAIN, out + err)
    self.assertIn('the same command continues', out)
    self.assertFalse((self.job.path / 'arm.json').exists())
    worker = self.start(self.job)
    out, err = worker.communicate()
    self.assertEqual(worker.returncode, 0, out + err)
    # JSON out: the last line, and the file.
    stored = json.loads((self.job.path / 'arm.json').read_text())
    self.assertEqual(json.loads(out.splitlines()[-1]), stored)
    self.assertEqual(stored['end'], expected.end)
    self.assertEqual(stored['outcome'], list(expected.outcome))
    found = evidence(self.job.path)
    reference = evidence(self.root / 'arms/here')
    self.assertEqual(found.keys(), reference.keys())
    for name, table in reference.items():
      self.assertTrue(table.equals(found[name]), name)

  def test_a_checkpoint_that_would_come_too_late_is_not_called_saved(self):
    job = dataclasses.replace(self.job, folder='arms/late')
    write(job)
    asked, train_step = [], trainer_lib.Trainer.train_step

    def one_step(trainer):
      log = train_step(trainer)
      asked.append(signal.SIGTERM)
      return log

    patch, out = absltest.mock.patch.object, io.StringIO()
    with (
        patch(preemption, 'stop_flag', lambda: contextlib.nullcontext(asked)),
        patch(preemption, 'seconds_left', lambda: 0.0),
        patch(trainer_lib.Trainer, 'train_step', one_step),
        contextlib.redirect_stdout(out),
        self.assertRaises(preemption.Preempted),
    ):
      arm_mode.run(str(job.path / 'job.json'))
    said = ' '.join(out.getvalue().split())
    self.assertIn('no checkpoint of step 1: ', said)
    self.assertIn('SIGTERM: arms/late goes on from its newest check', said)
    self.assertNotIn('is saved;', said)

  def test_a_signal_to_another_machine_of_the_arm_stops_this_one(self):
    job = dataclasses.replace(self.job, folder='arms/wide')
    write(job)
    with (
        absltest.mock.patch.object(
            sharding, 'in_any_process', lambda flag: True
        ),
        contextlib.redirect_stdout(io.StringIO()),
        self.assertRaises(preemption.Preempted) as caught,
    ):
      arm_mode.run(str(job.path / 'job.json'))
    self.assertEqual(caught.exception.code, preemption.AGAIN)

  def test_what_is_wrong_is_one_line(self):
    job = dataclasses.replace(
        self.job, folder='arms/wrong', changes={'steps': -1}
    )
    worker = self.start(job)
    out, err = worker.communicate()
    self.assertEqual(worker.returncode, 2, out + err)
    self.assertIn('config.steps=-1', err)
    self.assertNotIn('Traceback', err)


class OrphanTest(absltest.TestCase):

  @pytest.mark.slow
  def test_a_killed_parent_leaves_no_worker(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    policy = tiny.make_policy(root / 'policy')
    job = arm_test.make_job(root, policy, steps=10_000)
    (root / 'job.json').write_text(job.to_json())
    code = (
        'import pathlib, sys\n'
        'from evojax.evolve import executor\n'
        'from evojax.runtime import commands, progress\n'
        'from evojax.training import arm\n'
        'job = arm.read_job(pathlib.Path(sys.argv[1]))\n'
        'stage = progress.Stage(name="arm", steps=10_000)\n'
        'shown = progress.Progress([stage])\n'
        'pool = commands.Pool(commands.ThisMachine(), 1)\n'
        'local = executor.Workers(pool, lambda: None, shown)\n'
        'local.submit(job)\n'
        'local.wait(job)\n'
    )
    parent = subprocess.Popen(
        [sys.executable, '-c', code, root / 'job.json'],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = iter(parent.stdout.readline, '')
    first = next(line for line in lines if 'process ' in line)
    worker = int(first.partition('process ')[2].partition(',')[0])
    wait_for(job.path / 'evidence/train/step_000001.parquet')
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60
    while pathlib.Path(f'/proc/{worker}/cmdline').exists():
      if not pathlib.Path(f'/proc/{worker}/cmdline').read_bytes():
        break  # It ended; nobody waited for it.
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)
    said = ' '.join((job.path / 'worker.log').read_text().split())
    self.assertIn('goes on from its newest checkpoint', said)


class ExecutorTest(absltest.TestCase):

  @pytest.mark.slow
  def test_workers_give_the_rows_of_this_process(self):
    """With an arm that crashes, and a worker that is killed; in a store."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = tiny.environment(**objects.make(root))
    self.enterContext(
        absltest.mock.patch.dict(os.environ, variables, clear=True)
    )
    config = tiny.evolving(
        evolve__rounds=1, reward__parts='tests.faults.arm_test.parts'
    )
    killed = []

    def kill(folder, worker):
      wait_for(folder / 'evidence/train/step_000000.parquet')
      os.kill(worker.pid, signal.SIGKILL)
      killed.append(worker.wait())

    start = commands.ThisMachine.start

    def start_and_kill(engine, command):
      worker = start(engine, command)
      if command.name.endswith('incumbent-1') and not killed:
        folder = command.log.parent
        threading.Thread(target=kill, args=(folder, worker)).start()
      return worker

    self.enterContext(
        absltest.mock.patch.object(
            commands.ThisMachine, 'start', start_and_kill
        )
    )
    url = 'objects://bucket/workers'
    rows = {}
    for path, options in (
        (str(root / 'here'), {}),
        (url, dict(executor='local', workers=2)),
    ):
      with mirror.opened(path) as workdir:
        inbox = pathlib.Path(workdir, 'inbox')
        inbox.mkdir(parents=True)
        (inbox / 'a.json').write_text(json.dumps(CRASHES))
        loop.run(config, workdir, **options)
      with mirror.opened(path) as workdir:
        found = chain.read(pathlib.Path(workdir, 'ledger.jsonl'))
        rows[path] = [row['payload'] for row in found]
    here, workers = rows.values()
    self.assertEqual(killed, [-signal.SIGKILL])
    (race,) = [row for row in here if row['step'] == 'race']
    self.assertEqual(race['arms'][-1]['status'], 'crash')
    self.assertLen(race['arms'], 4)  # No arm after the one that crashed.
    self.assertEqual(here, workers)


class Elsewhere(commands.ThisMachine):
  """Trains arms at once in this process, but with a disk of their own."""

  elsewhere = True

  def __init__(self, disk):
    super().__init__()
    self._disk, self.started = disk, []

  def start(self, command):
    (job,) = (f[6:] for f in command.flags if f.startswith('--job='))
    self.started.append(job)
    disk = absltest.mock.patch.dict(os.environ, XDG_CACHE_HOME=self._disk)
    process = absltest.mock.Mock(place='here', has_devices=True)
    with disk, contextlib.redirect_stdout(io.StringIO()):
      try:
        arm_mode.run(job)
        process.poll.return_value = 0
      except preemption.Preempted as error:
        process.poll.return_value = error.code
    return process


class ElsewhereTest(absltest.TestCase):

  def test_an_arm_with_another_disk_gives_the_record_of_this_process(self):
    """It is stopped once, and goes on from what is in the store."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    job = arm_test.make_job(root / 'here', tiny.make_policy(root / 'policy'), 2)
    first = arm_test.train(job)
    start = str(arm_lib.checkpoint_of(job.folder, first.updates))
    expected = arm_test.train(
        dataclasses.replace(job, folder='arms/b', start=start)
    )
    engine = Elsewhere(str(root / 'disk'))
    write, asked = metrics.MetricWriter.write, []

    def write_and_stop(writer, step, row):
      write(writer, step, row)
      if not asked:
        asked.append(os.kill(os.getpid(), signal.SIGINT))

    self.enterContext(
        absltest.mock.patch.object(
            metrics.MetricWriter, 'write', write_and_stop
        )
    )
    config = config_lib.from_mapping(job.config)
    with (
        mirror.opened('objects://bucket/run') as path,
        workdir_lib.open_workdir(path, config, mode='evolve') as workdir,
    ):
      for folder in ('harness', 'arms/a'):
        shutil.copytree(root / 'here' / folder, pathlib.Path(path, folder))
      workdir.keep()
      there = dataclasses.replace(
          job, workdir=path, folder='arms/b', start=start
      )
      shown = progress.Progress([progress.Stage(name='arm', steps=2)])
      workers = executor.Workers(
          commands.Pool(engine, 1), lambda: None, shown
      )
      workers.submit(there)
      self.assertEqual(workers.wait(there), expected)
      job_url = 'objects://bucket/run/arms/b/.job.json'
      self.assertEqual(engine.started, [job_url, job_url])
      found, reference = map(evidence, (there.path, root / 'here/arms/b'))
      self.assertEqual(found.keys(), reference.keys())
      for name, table in reference.items():
        self.assertTrue(table.equals(found[name]), name)
      # Later arms begin with its checkpoint, which is only in the store.
      start = arm_lib.checkpoint_of(there.folder, 2)
      self.assertFalse(pathlib.Path(path, start, 'state').exists())
      third = dataclasses.replace(
          there,
          folder='arms/c',
          start=str(start),
          changes={'seed': 4, 'steps': 1},
      )
      workers.submit(third)
      self.assertEqual(workers.wait(third).start, expected.end)
      fourth = dataclasses.replace(third, folder='arms/d')
      mirror.of(path).lend(fourth.path, b'{}')
      workers.cancel(fourth)
    store = storage.Store('objects://bucket/run')
    self.assertEmpty([n for n in store.list('arms') if '/.' in n])
    self.assertEmpty(store.list('arms/d'))


if __name__ == '__main__':
  absltest.main()
