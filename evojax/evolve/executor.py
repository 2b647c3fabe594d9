"""Placement of arms: in this process, or in workers on this machine.

    executor.submit(job)      # May begin it.
    arm = executor.wait(job)  # Its record, once it has ended.
    executor.cancel(job)      # It is not wanted any more.

The records do not depend on the executor, nor on what finishes first.
"""

import abc
from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import time

import jax

from evojax import records as step_records
from evojax.ledger import records
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import output
from evojax.runtime import progress as progress_lib
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.sandbox import probe
from evojax.training import arm as arm_lib
from evojax.training import setup as setup_lib

_LOG = 'worker.log'  # In the arm's folder.
KINDS = ('inprocess', 'local')
# Times that an arm is started again after a signal ended its worker: a machine
# that is short of memory kills every one of them.
ATTEMPTS = 3
_POLL_SECONDS = 0.1
_SHOW_SECONDS = 5.0
_SIGTERM_STATUS = 143  # What an arm that was asked to stop exits with.


class WorkerError(OSError):
  """A worker ended without a result; names its log."""


@dataclasses.dataclass(frozen=True)
class Placement:
  """Which executor a run uses: the flags --executor and --workers."""

  kind: str = 'inprocess'
  workers: int = 0  # Of kind 'local'.

  def check(self, sampler: str) -> None:
    """Raise if arms cannot be placed like this; touches no device.

    Args:
      sampler: config.rollout.kind.

    Raises:
      ValueError: Names the flag, its value and the remedy.
    """
    if self.kind not in KINDS:
      raise ValueError(f'--executor={self.kind}: choose one of {KINDS}')
    if self.kind == 'inprocess':
      if self.workers:
        raise ValueError(
            f'--workers={self.workers} needs --executor=local; without it, arms'
            ' are trained one after the other in this process'
        )
      return
    if self.workers < 1:
      raise ValueError(
          f'--workers={self.workers}: --executor=local needs at least one'
      )
    if jax.distributed.is_initialized():
      raise ValueError(
          '--executor=local places arms in processes of one machine, and'
          ' --distributed joins several: use --executor=inprocess'
      )
    if sampler != 'engine':
      raise ValueError(
          f"--executor=local with config.rollout.kind='{sampler}': servers hold"
          ' the weights of one arm at a time; use --executor=inprocess'
      )


class Executor(abc.ABC):
  """Interface of what trains the arms of a run."""

  @abc.abstractmethod
  def submit(self, job: arm_lib.ArmJob) -> None:
    """Queue an arm, which may begin at once."""

  @abc.abstractmethod
  def wait(self, job: arm_lib.ArmJob) -> records.Arm:
    """Return the record of a submitted arm once it has ended."""

  def cancel(self, job: arm_lib.ArmJob) -> None:
    """End an arm that is not wanted any more, and delete what it left.

    Evidence that no row names would count as tokens of the run.
    """
    if sharding.is_primary():
      shutil.rmtree(job.path, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class InProcess(Executor):
  """Trains an arm when it is waited for; shares the engine of the run.

  What is cancelled may have been left by workers when this run began.
  """

  setup: setup_lib.Setup
  engine: step_records.RolloutEngine
  phases: metrics_lib.Phases
  stop_if_asked: Callable[[], None]
  progress: progress_lib.Progress

  def submit(self, job: arm_lib.ArmJob) -> None:
    """Do nothing yet: devices are used by one arm at a time."""

  def wait(self, job: arm_lib.ArmJob) -> records.Arm:
    """Train the arm."""
    return arm_lib.train(
        job,
        self.setup,
        self.engine,
        self.phases,
        self.stop_if_asked,
        self.progress.update,
    )


class Local(Executor):
  """Trains arms in processes of `--mode=arm`, several at a time."""

  def __init__(
      self,
      workers: int,
      stop_if_asked: Callable[[], None],
      progress: progress_lib.Progress,
  ):
    """Start nothing yet.

    Args:
      workers: Processes at a time. They share the devices of this machine.
      stop_if_asked: Called while waiting; may raise to stop.
      progress: Of the run: one line for all workers.
    """
    self._workers, self._stop_if_asked = workers, stop_if_asked
    self._queue: list[arm_lib.ArmJob] = []
    self._running: dict[str, subprocess.Popen] = {}
    self._starts: dict[str, int] = {}  # How often, by folder.
    self._progress, self._shown = progress, time.monotonic()
    self._stage: list[arm_lib.ArmJob] = []  # Those that train side by side.

  def submit(self, job: arm_lib.ArmJob) -> None:
    """Queue an arm that has not ended; begins it if a worker is free."""
    if all(arm_lib.result(other.path) for other in self._stage):
      self._stage, self._shown = [], time.monotonic()
    self._stage.append(job)
    if arm_lib.result(job.path) is None:
      self._queue.append(job)
      self._fill()

  def wait(self, job: arm_lib.ArmJob) -> records.Arm:
    """Return the arm's record once it has ended.

    Raises:
      WorkerError: If its worker fails.
    """
    while (arm := arm_lib.result(job.path)) is None:
      self._stop_if_asked()
      self._reap(job)
      self._fill()
      self._show()
      time.sleep(_POLL_SECONDS)
    # It may still save what nobody needs; its slot is free once it is gone.
    if worker := self._running.pop(job.folder, None):
      worker.wait()
    return arm

  def _show(self) -> None:
    """Show now and then how far the arms of the stage are."""
    now = time.monotonic()
    if now - self._shown < _SHOW_SECONDS:
      return
    newest = [metrics_lib.newest(job.path) for job in self._stage]
    steps = sum(row.get('step', 0) for row in newest)
    furthest = max(newest, key=lambda row: row.get('step', 0), default={})
    self._progress.update_beside(steps, furthest)
    self._shown = now

  def _reap(self, job: arm_lib.ArmJob) -> None:
    """Watch the job's worker, and start it again where a signal ended it."""
    worker = self._running.get(job.folder)
    if worker is None or worker.poll() is None:
      return
    del self._running[job.folder]
    if arm_lib.result(job.path) is not None:
      return
    status = worker.returncode
    log = job.path / _LOG
    if status >= 0 and status != _SIGTERM_STATUS:
      raise WorkerError(
          f'the worker of {job.folder} ended with exit status {status}:'
          f' {_last_line(log)}; see {log}. The same command tries it again'
      )
    if self._starts[job.folder] >= ATTEMPTS:
      raise WorkerError(
          f'the worker of {job.folder} was ended by a signal {ATTEMPTS} times'
          f' (exit status {status}); see {log}. If memory is short, use fewer'
          ' --workers; the same command continues the arm'
      )
    self._queue.insert(0, job)

  def _fill(self) -> None:
    """Start queued jobs while workers are free."""
    free = lambda: self._workers - sum(
        worker.poll() is None for worker in self._running.values()
    )
    while self._queue and free() > 0:
      job = self._queue.pop(0)
      self._starts[job.folder] = self._starts.get(job.folder, 0) + 1
      self._running[job.folder] = _start(job)

  def cancel(self, job: arm_lib.ArmJob) -> None:
    """End the arm's worker, and delete what it left."""
    self._queue = [queued for queued in self._queue if queued != job]
    if worker := self._running.pop(job.folder, None):
      worker.kill()  # There is nothing to save.
      worker.wait()
    super().cancel(job)

  def close(self) -> None:
    """End all workers; they save, and the same jobs continue."""
    self._queue.clear()
    for worker in self._running.values():
      worker.terminate()
    for worker in self._running.values():
      worker.wait()
    self._running.clear()


def _last_line(path: pathlib.Path) -> str:
  lines = path.read_text(errors='replace').splitlines()
  return next((line for line in reversed(lines) if line.strip()), 'no output')


def _start(job: arm_lib.ArmJob) -> subprocess.Popen:
  """Start the process that trains an arm."""
  job.path.mkdir(parents=True, exist_ok=True)
  path = job.path / 'job.json'
  # A worker never reads half a job, not even that of a run killed before.
  workdir_lib.write_atomic(path, job.to_json().encode())
  cache = jax.config.jax_compilation_cache_dir or ''
  command = [
      sys.executable,
      '-m',
      'evojax.main',
      '--mode=arm',
      f'--job={path}',
      f'--parent={os.getpid()}',
      f'--compilation_cache={cache}',
  ]
  if probe.tier() == 'T2':  # Which this run was allowed.
    command.append('--allow_weak_sandbox')
  # Code of the user's own, named by dotted path, is found as it is here.
  paths = os.pathsep.join(path for path in sys.path if path)
  with open(job.path / _LOG, 'ab') as log:
    worker = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {'PYTHONPATH': paths},
        # Ctrl-C reaches this process alone, which then lets workers save.
        start_new_session=True,
    )
  output.say(f'{job.label}: process {worker.pid}, log {log.name}')
  return worker


@contextlib.contextmanager
def open_executor(
    placement: Placement, in_process: InProcess
) -> Iterator[Executor]:
  """Yield the executor of a run; workers end with it.

  Args:
    placement: Checked.
    in_process: Used where arms stay in this process.

  Raises:
    ValueError: If other processes cannot share this machine's devices.
  """
  if placement.kind == 'inprocess':
    yield in_process
    return
  if jax.default_backend() == 'tpu':
    raise ValueError(
        '--executor=local: only one process can hold the TPU chips of this'
        ' machine; use --executor=inprocess'
    )
  with contextlib.closing(
      Local(placement.workers, in_process.stop_if_asked, in_process.progress)
  ) as local:
    yield local
