"""Workers: their number, their order, and the handling of their ends.

The workers are small programs that stand in for `--mode=arm`.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax

from configs import math as math_config
from evojax.evolve import executor
from evojax.evolve import opening
from evojax.evolve import recorder as recorder_lib
from evojax.ledger import budget
from evojax.ledger import chain
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.modes import aa
from evojax.runtime import commands
from evojax.runtime import devices
from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import peers
from evojax.runtime import preemption
from evojax.runtime import progress as progress_lib
from evojax.runtime import waits
from evojax.training import arm as arm_lib
from tests import tiny
from tests.ledger import samples
from tests.runtime import accelerators_test
from tests.runtime import storage_test

# Waits until a file gives the signal, then writes the result and reports it.
_WORKER = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
while not (folder / 'go').exists():
  time.sleep(0.01)
what = (folder / 'go').read_text()
if what != 'done':
  print('error: it is broken')
  sys.exit(int(what))
(folder / 'result').rename(folder / 'arm.json')
"""


def one_stage():
  """The progress of a stage with three arms of four steps."""
  stage = progress_lib.Stage(
      name='arm', arms=3, steps=4, prompts=1, group_size=1
  )
  return progress_lib.Progress([stage])


class Engine(commands.ThisMachine):
  """Starts the small programs, and records which it started."""

  def __init__(self, root):
    super().__init__()
    self._root, self.started, self.workers = root, [], []
    self.flags = ()  # Those of the newest worker.

  def start(self, command):
    folder = self._root / command.name
    arm = samples.record(records.Arm, folder=command.name, status='done')
    (folder / 'result').write_text(json.dumps(rows_lib.to_json(arm)))
    self.started.append(command.name)
    self.flags = command.flags
    small = dataclasses.replace(command, flags=(_WORKER, str(folder)))
    with absltest.mock.patch.object(
        commands.Command, 'argv', lambda c: [sys.executable, '-c', *c.flags]
    ):
      self.workers.append(super().start(small))
    return self.workers[-1]


class WorkersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.engine = Engine(self.root)
    self.started, self.workers = self.engine.started, self.engine.workers

  def jobs(self, count):
    job = samples.record(
        arm_lib.ArmJob, workdir=str(self.root), config={}, changes={}, files={}
    )
    return [dataclasses.replace(job, folder=f'arms/{i}') for i in range(count)]

  def local(self, workers=2, stop_if_asked=lambda: None):
    self.shown = one_stage()
    pool = commands.Pool(self.engine, workers)
    self.addCleanup(pool.close)
    return executor.Workers(pool, stop_if_asked, self.shown)

  def go(self, job, what='done'):
    job.path.mkdir(parents=True, exist_ok=True)
    # The worker may look at any time: the file appears with its content.
    durable.write_atomic(job.path / 'go', what.encode())

  def test_so_many_at_a_time_and_results_in_any_order(self):
    local, (a, b, c) = self.local(), self.jobs(3)
    for job in (a, b, c):
      local.submit(job)
    self.assertEqual(self.started, [a.folder, b.folder])
    self.go(b)
    self.go(c)
    self.assertEqual(local.wait(b).folder, b.folder)
    self.assertEqual(local.wait(c).folder, c.folder)
    self.assertEqual(self.started, [a.folder, b.folder, c.folder])
    self.go(a)
    self.assertEqual(local.wait(a).folder, a.folder)

  def test_a_worker_has_the_limit_of_its_run_and_waiting_is_progress(self):
    self.addCleanup(peers.set_limit, peers.limit())
    peers.set_limit(7)
    (job,), before = self.jobs(1), waits.state().changes
    stop = lambda: waits.state().changes > before + 1 and self.go(job)
    local = self.local(stop_if_asked=stop)
    local.submit(job)
    local.wait(job)
    self.assertIn('--collective_seconds=7', self.engine.flags)

  def test_one_line_for_all_workers(self):
    self.enterContext(absltest.mock.patch.object(executor, '_SHOW_SECONDS', 0))
    local, jobs, asked = self.local(), self.jobs(2), []
    local._stop_if_asked = lambda: asked.append(self._train(jobs, len(asked)))
    for job in jobs:
      local.submit(job)
    out = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    local.wait(jobs[0])
    local.wait(jobs[1])
    lines = out.getvalue().splitlines()
    self.assertStartsWith(lines[0], 'arm 3 arms, step 2/12  solved 50.0%')
    self.assertStartsWith(lines[-1], 'arm 3 arms, step 8/12  solved 50.0%')
    self.assertLen(lines, 4)  # One for each step that both have made.
    # The next arms of the stage begin once these have ended.
    self.shown.enter('arm', arm=2)
    *_, third = self.jobs(3)
    local._stop_if_asked = lambda: asked.append(
        self._train([third], len(asked) - first)
    )
    first = len(asked)
    local.submit(third)
    local.wait(third)
    last = out.getvalue().splitlines()[-1]
    self.assertStartsWith(last, 'arm 3 arms, step 12/12  solved 50.0%')

  def _train(self, jobs, step):
    for job in jobs:
      row = json.dumps({'step': min(step + 1, 4), 'outcome': 0.5})
      (job.path / 'metrics.jsonl').write_text(f'{row}\n{{"step": ')
      if step == 8:
        self.go(job)

  def test_an_arm_that_has_ended_starts_no_worker(self):
    (job,) = self.jobs(1)
    first = self.local()
    first.submit(job)
    self.go(job)
    first.wait(job)
    second = self.local()
    second.submit(job)
    self.assertEqual(second.wait(job).status, 'done')
    self.assertLen(self.started, 1)

  def test_an_arm_whose_worker_was_killed_is_run_again(self):
    local, (job,) = self.local(), self.jobs(1)
    local.submit(job)
    self.workers[0].kill()
    self.workers[0].wait()
    self.go(job)
    self.assertEqual(local.wait(job).status, 'done')
    self.assertLen(self.started, 2)

  def test_a_worker_that_is_killed_again_and_again(self):
    (job,) = self.jobs(1)
    local = self.local(stop_if_asked=lambda: self.workers[-1].kill())
    local.submit(job)
    with self.assertRaisesRegex(
        commands.CommandError,
        'by a signal 3 times.*worker.log.*fewer --workers',
    ):
      local.wait(job)
    self.assertLen(self.started, commands.KILLS)

  @parameterized.parameters(*preemption.STATUSES.values())
  def test_a_worker_that_has_to_start_again_is_no_failure(self, status):
    local, (job,) = self.local(), self.jobs(1)
    local.submit(job)
    self.go(job, str(status))
    self.workers[0].wait()
    self.go(job)
    self.assertEqual(local.wait(job).status, 'done')
    self.assertLen(self.started, 2)
    self.assertEqual(local._pool.deaths, (0, 1))

  def test_a_worker_that_fails_names_its_log(self):
    local, (job,) = self.local(), self.jobs(1)
    local.submit(job)
    self.go(job, '2')
    with self.assertRaisesRegex(
        commands.CommandError,
        'arms/0 ended with exit status 2: error: it is broken; see'
        ' .*arms/0/worker.log',
    ):
      local.wait(job)
    self.assertLen(self.started, 1)

  def test_the_whole_error_of_a_worker_is_told(self):
    """A log wraps lines at 80 columns."""
    folder = self.enterContext(tempfile.TemporaryDirectory())
    log = pathlib.Path(folder, 'worker.log')
    lines = ('step 1', 'error: an old one', 'error: /x has no config.json,')
    log.write_text('\n'.join([*lines, 'so it is no', 'directory.', '']))
    self.assertEqual(
        commands._why(log),
        'error: /x has no config.json, so it is no directory.',
    )

  def test_what_fails_is_said_when_it_is_waited_for(self):
    """Failures are reported in job order, not in the order of ends."""
    local, (a, b) = self.local(), self.jobs(2)
    for job in (a, b):
      local.submit(job)
    self.go(b, '2')
    self.workers[1].wait()
    self.go(a)
    self.assertEqual(local.wait(a).folder, a.folder)
    with self.assertRaisesRegex(commands.CommandError, 'arms/1 ended with'):
      local.wait(b)

  def test_a_worker_that_ends_is_replaced_while_another_is_waited_for(self):
    local, (a, b) = self.local(), self.jobs(2)
    for job in (a, b):
      local.submit(job)
    self.workers[1].kill()
    local._stop_if_asked = lambda: len(self.started) == 3 and self.go(a)
    local.wait(a)
    self.assertEqual(self.started, [a.folder, b.folder, b.folder])

  @parameterized.parameters((60.0, 'done'), (0.0, 'ended with exit status 0'))
  def test_a_result_that_other_machines_see_late(self, seconds, expected):
    self.enterContext(
        absltest.mock.patch.object(commands, '_LATE_SECONDS', seconds)
    )
    (job,) = self.jobs(1)
    asked = []

    def stop_if_asked():
      asked.append(self.workers[0].wait())
      if len(asked) == 3:  # It ended long ago.
        (job.path / 'arm.json').write_text((job.path / 'result').read_text())

    local = self.local(stop_if_asked=stop_if_asked)
    local.submit(job)
    self.go(job, '0')
    try:
      found = local.wait(job).status
    except commands.CommandError as error:
      found = str(error)
    self.assertIn(expected, found)

  def test_what_is_cancelled_ends_and_leaves_nothing(self):
    local, (a, b, c) = self.local(), self.jobs(3)
    for job in (a, b, c):
      local.submit(job)
    local.cancel(b)
    local.cancel(c)
    self.assertIsNotNone(self.workers[1].poll())
    self.assertFalse(b.path.exists())
    self.go(a)
    local.wait(a)
    self.assertEqual(self.started, [a.folder, b.folder])

  def test_a_budget_counts_all_arms_that_run_side_by_side(self):
    self.engine.devices = 100
    meter = commands.Meter()
    recorder = recorder_lib.Recorder(
        chain.Ledger(self.root / 'ledger.jsonl'),
        budget.Budget(device_seconds=100.0),
        lambda: None,
        lambda: None,
        meter,
    )
    deadline = time.monotonic() + 60

    def stop_if_asked():
      self.assertLess(time.monotonic(), deadline)
      recorder.stop_if_asked()

    pool = commands.Pool(self.engine, 2, meter)
    workers = executor.Workers(pool, stop_if_asked, one_stage())
    jobs = self.jobs(3)
    for job in jobs:
      workers.submit(job)
    with self.assertRaises(recorder_lib.BudgetExhaustedError):
      workers.wait(jobs[0])
    # Half a second of two arms; the third one waits, and costs nothing.
    self.assertEqual(self.started, [job.folder for job in jobs[:2]])
    pool.close()
    for worker in self.workers:
      self.assertIsNotNone(worker.poll())
    self.assertGreater(meter.total(), 90)

  def test_a_stop_ends_all_workers_and_keeps_what_they_left(self):
    class Stop(Exception):
      pass

    def stop():
      raise Stop

    self.enterContext(
        absltest.mock.patch.object(
            commands, 'open_engine', return_value=self.engine
        )
    )
    jobs = self.jobs(3)
    with self.assertRaises(Stop):
      with executor.open_executor(
          executor.Placement('local', 2),
          absltest.mock.Mock(
              spec=executor.InProcess,
              stop_if_asked=stop,
              progress=one_stage(),
          ),
      ) as local:
        for job in jobs:
          local.submit(job)
        local.wait(jobs[0])
    self.assertLen(self.workers, 2)
    for worker in self.workers:
      self.assertIsNotNone(worker.poll())
    self.assertTrue((jobs[0].path / 'worker.log').exists())


class StoreTest(storage_test.StorageTestCase):

  def test_a_worker_finds_the_parameters_of_a_workdir_in_a_store(self):
    start, own = (
        'arms/a/checkpoints/step_000002',
        'arms/b/checkpoints/step_000001',
    )
    names = [
        f'{x}/{y}' for x in (start, own) for y in ('SHA256SUMS', 'state/d')
    ]
    for name in names:
      self.store.write(name, b'1')
    listed = {'count': 1, 'files': dict.fromkeys(names, 1)}
    self.store.write('.files.json', json.dumps(listed).encode())
    with mirror.opened(self.store.url) as path:
      job = samples.record(
          arm_lib.ArmJob,
          workdir=path,
          folder='arms/b',
          start=start,
          config={},
          changes={},
          files={},
      )
      parameters = [pathlib.Path(path, x, 'state/d') for x in (start, own)]
      self.assertEqual([p.exists() for p in parameters], [False, False])
      pool = absltest.mock.Mock(spec=commands.Pool, elsewhere=False)
      executor.Workers(pool, lambda: None, one_stage()).submit(job)
      pool.submit.assert_called_once()
      self.assertEqual([p.exists() for p in parameters], [True, True])


class PlacementTest(parameterized.TestCase):

  @parameterized.parameters(
      (('inprocess', 0), 'engine'),
      (('inprocess', 0), 'sglang'),
      (('local', 1), 'engine'),
      (('ray', 6, ['CPU=4', 'TPU=8']), 'engine'),
  )
  def test_is_fine(self, placement, sampler):
    executor.Placement(*placement).check(sampler)

  @parameterized.parameters(
      (('slurm', 1), 'engine', '--executor=slurm: choose one of'),
      (('inprocess', 2), 'engine', '--workers=2 needs --executor=local or'),
      (('local', 0), 'engine', '--workers=0: --executor=local needs at least'),
      (('local', 2, ['CPU=4']), 'engine', '--arm_resources=CPU=4 says what'),
      (('ray', 2, ['4']), 'engine', "--arm_resources=4: '4' is not NAME=NUM"),
      (('local', 2, [], '2'), 'engine', '--arm_hosts=2 says what Ray gives'),
      (('ray', 2, [], 'two'), 'engine', '--arm_hosts=two is neither a number'),
      (('ray', 2, [], '0'), 'engine', '--arm_hosts=0 is neither a number'),
      (('ray', 2, ['TPU=4'], 'v5p:2x2x2'), 'engine', 'leave --arm_resources'),
      (('local', 2), 'sglang', "rollout.kind='sglang': servers hold"),
  )
  def test_is_refused(self, placement, sampler, message):
    with self.assertRaisesRegex(ValueError, message):
      executor.Placement(*placement).check(sampler)

  @parameterized.parameters(
      ('cpu', 8, (), '', ('CPU=1',)),
      ('gpu', 8, (), '2', ('GPU=8',)),
      ('tpu', 4, (), '', ('TPU=4',)),
      ('gpu', 8, ['GPU=1'], '', ['GPU=1']),
      ('tpu', 4, (), 'v5p:2x2x2', ()),  # All chips of a slice.
  )
  def test_an_arm_gets_what_this_process_has(
      self, kind, count, given, hosts, wanted
  ):
    patch = absltest.mock.patch.object
    with (
        patch(jax, 'default_backend', return_value=kind),
        patch(jax, 'local_device_count', return_value=count),
        patch(commands, 'open_engine') as opened,
        executor.open_executor(
            executor.Placement('ray', 2, given, hosts),
            absltest.mock.Mock(
                spec=executor.InProcess,
                stop_if_asked=lambda: None,
                progress=one_stage(),
            ),
        ),
    ):
      opened.assert_called_once_with('ray', wanted, hosts, ())

  def test_this_process_and_its_workers_get_a_share_each(self):
    mesh = math_config.get_config().mesh.to_dict()
    with accelerators_test.machine(GPU=4):
      shares = executor.Placement('local', 3).divide(mesh)
      self.assertEqual([s.name for s in shares], [f'GPU {i}' for i in range(4)])
      self.assertEmpty(executor.Placement('ray', 3, ['GPU=1']).divide(mesh))
      with self.assertRaisesRegex(ValueError, '--workers=4: each of 5'):
        opening.check(
            math_config.get_config(),
            opening.Options(placement=executor.Placement('local', 4)),
        )

  @parameterized.parameters('evolve', 'aa')
  def test_an_opened_run_takes_its_share_and_hands_on_the_others(self, mode):
    # This process has opened the CPU, and stays with it.
    opened = absltest.mock.patch.object(devices, 'open_all', jax.devices)
    self.enterContext(opened)
    workdir = self.enterContext(tempfile.TemporaryDirectory()) + '/run'
    config, placement = tiny.evolving(), executor.Placement('local', 2)
    options = opening.Options(placement=placement)
    with (
        accelerators_test.machine(GPU=6),
        absltest.mock.patch.object(commands, 'open_engine') as opened,
        opening.open_run(config, workdir, options)
        if mode == 'evolve'
        else aa._open(config, workdir, placement),
    ):
      self.assertEqual(os.environ['CUDA_VISIBLE_DEVICES'], '0,1')
      kind, _, _, shares = opened.call_args.args
    self.assertEqual(kind, 'local')
    self.assertEqual([s.name for s in shares], ['GPU 2,3', 'GPU 4,5'])

  def test_several_jax_processes_train_in_process(self):
    with absltest.mock.patch.object(
        jax.distributed, 'is_initialized', return_value=True
    ):
      with self.assertRaisesRegex(ValueError, '--executor=inprocess'):
        executor.Placement('local', 2).check('engine')


if __name__ == '__main__':
  absltest.main()
