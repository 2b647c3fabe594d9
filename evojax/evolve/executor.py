"""Placement of arms: in this process, or in workers on one or more machines.

    executor.submit(job)      # Queues the arm; it may start at once.
    arm = executor.wait(job)  # Returns its record once it has ended.
    executor.cancel(job)      # Ends an arm that is no longer wanted.

Records depend neither on the executor nor on the order in which arms finish.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import shutil
import time
from typing import Any

import jax

from evojax import records as step_records
from evojax.ledger import records
from evojax.runtime import accelerators
from evojax.runtime import commands
from evojax.runtime import durable
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import mirror
from evojax.runtime import peers
from evojax.runtime import progress as progress_lib
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.runtime import waits
from evojax.sandbox import probe
from evojax.training import arm as arm_lib
from evojax.training import setup as setup_lib

_LOG = 'worker.log'  # In the arm's folder.
KINDS = ('inprocess', 'local', 'ray')
_POLL_SECONDS = 0.1
_SHOW_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Placement:
  """The executor of a run; the fields are the flags of the same names."""

  executor: str = 'inprocess'
  workers: int = 0  # Arms trained at a time; unused by 'inprocess'.
  # For 'ray': resources of one arm, such as 'TPU=4'; () means those that this
  # process has.
  arm_resources: Sequence[str] = ()
  arm_hosts: str = ''  # For 'ray': machines of an arm, see `commands.share`.

  def check(self, sampler: str) -> None:
    """Check that arms can be placed in this way, without using a device.

    Args:
      sampler: config.rollout.kind.

    Raises:
      ValueError: If they cannot; the message names flag, value and remedy.
    """
    kind = self.executor
    if kind not in KINDS:
      raise ValueError(f'--executor={kind}: choose one of {KINDS}')
    for name in ('arm_resources', 'arm_hosts'):
      if (value := getattr(self, name)) and kind != 'ray':
        value = value if isinstance(value, str) else ','.join(value)
        raise ValueError(
            f'--{name}={value} says what Ray gives to an arm: it needs'
            ' --executor=ray'
        )
    if kind == 'inprocess':
      if self.workers:
        raise ValueError(
            f'--workers={self.workers} needs --executor=local or ray; without'
            ' it, arms are trained one after the other in this process'
        )
      return
    if self.workers < 1:
      raise ValueError(
          f'--workers={self.workers}: --executor={kind} needs at least one'
      )
    if jax.distributed.is_initialized():
      raise ValueError(
          f'--executor={kind} places arms in processes of their own, and'
          ' --distributed joins several: use --executor=inprocess'
      )
    if sampler != 'engine':
      raise ValueError(
          f"--executor={kind} with config.rollout.kind='{sampler}': servers"
          ' hold the weights of one arm at a time; use --executor=inprocess'
      )
    commands.share(self.arm_resources, self.arm_hosts)

  def divide(self, mesh: Mapping[str, int]) -> list[accelerators.Share]:
    """Return the devices of this process and of each worker; open none.

    Args:
      mesh: Axis -> size, from config.mesh; the same for all processes.

    Returns:
      The shares; empty if all processes use the same devices or if Ray gives
      arms theirs.

    Raises:
      ValueError: If this machine has too few devices for --executor=local.
    """
    if self.executor != 'local':
      return []
    return accelerators.divide(self.workers, [mesh], beside=True)


class Executor(abc.ABC):
  """Interface of an executor, which trains the arms of a run."""

  @abc.abstractmethod
  def submit(self, job: arm_lib.ArmJob) -> None:
    """Queue an arm; it may start at once."""

  @abc.abstractmethod
  def wait(self, job: arm_lib.ArmJob) -> records.Arm:
    """Return the record of a submitted arm once it has ended."""

  def cancel(self, job: arm_lib.ArmJob) -> None:
    """End an arm that is no longer wanted, and delete its files.

    Otherwise evidence that no ledger row names would count as tokens of the
    run.
    """
    if sharding.is_primary():
      mirror.take_back(job.path)
      shutil.rmtree(job.path, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class InProcess(Executor):
  """Trains an arm in `wait`, with the engine of the run.

  It also cancels arms that workers of an earlier start left unfinished.
  """

  setup: setup_lib.Setup
  engine: step_records.RolloutEngine
  phases: metrics_lib.Phases
  stop_if_asked: Callable[[], None]
  progress: progress_lib.Progress

  def submit(self, job: arm_lib.ArmJob) -> None:
    """Do nothing: the arm is trained in `wait`, as arms share the devices."""

  def wait(self, job: arm_lib.ArmJob) -> records.Arm:
    """Train the arm and return its record."""
    if sharding.is_primary():
      mirror.take_back(job.path)  # An earlier worker may have borrowed it.
    return arm_lib.train(
        job,
        self.setup,
        self.engine,
        self.phases,
        self.stop_if_asked,
        self.progress.update,
    )


class Workers(Executor):
  """Trains arms in child processes (`--mode=arm`), several at a time."""

  def __init__(
      self,
      pool: commands.Pool,
      stop_if_asked: Callable[[], None],
      progress: progress_lib.Progress,
  ):
    """Start nothing yet.

    Args:
      pool: Starts the processes.
      stop_if_asked: Called while waiting; may raise to stop the run.
      progress: Progress of the run; all workers share its one line.
    """
    self._pool, self._stop_if_asked = pool, stop_if_asked
    self._progress, self._shown = progress, time.monotonic()
    self._before = 0  # Steps of the stage before these arms.
    # Arms of this stage that have not ended, and the newest metrics of every
    # arm that trains side by side with them.
    self._left: dict[str, arm_lib.ArmJob] = {}
    self._newest: dict[str, Mapping[str, Any]] = {}

  def submit(self, job: arm_lib.ArmJob) -> None:
    """Queue an arm that has not ended; start it if a worker is free."""
    if not self._left:
      self._newest, self._shown = {}, time.monotonic()
      self._before = self._progress.done
    self._newest[job.folder] = {}
    self._left[job.folder] = job
    if _is_done(job):
      return
    if self._pool.elsewhere and mirror.is_copy(job.path):
      self._stop_if_asked()  # It also uploads what the arm reads.
      self._pool.submit(_lend(job))
      return
    mirror.take_back(job.path)
    # A worker reads and writes the local copy of a workdir in a store.
    mirror.fetch(job.path)
    if job.start:
      mirror.fetch(pathlib.Path(job.workdir, job.start))
    self._pool.submit(_command(job))

  def wait(self, job: arm_lib.ArmJob) -> records.Arm:
    """Return the arm's record once it has ended.

    Raises:
      commands.CommandError: If its worker fails.
      OSError: If the workdir is in a store that does not answer.
    """
    while (arm := arm_lib.result(job.path)) is None:
      self._stop_if_asked()
      self._pool.advance()
      self._pool.check(job.folder)
      mirror.publish_soon(job.path)
      self._show()
      # An arm that hangs is ended by its own limit.
      waits.advance()
      time.sleep(_POLL_SECONDS)
    self._pool.finish(job.folder)
    self._forget(job)
    return arm

  def _show(self) -> None:
    """Update the progress line from time to time with the arms' progress."""
    now = time.monotonic()
    if now - self._shown < _SHOW_SECONDS:
      return
    for folder in self._pool.running:
      if folder in self._left:
        path = self._left[folder].path
        mirror.peek(path / run_files.METRICS)
        self._newest[folder] = metrics_lib.newest(path)
    newest = self._newest.values()
    steps = self._before + sum(row.get('step', 0) for row in newest)
    furthest = max(newest, key=lambda row: row.get('step', 0), default={})
    self._progress.update_beside(steps, furthest)
    self._shown = now

  def _forget(self, job: arm_lib.ArmJob) -> None:
    if self._left.pop(job.folder, None):
      self._newest[job.folder] = metrics_lib.newest(job.path)

  def cancel(self, job: arm_lib.ArmJob) -> None:
    """Stop the arm's worker and delete the arm's files."""
    self._pool.cancel(job.folder)
    self._forget(job)
    super().cancel(job)


def _is_done(job: arm_lib.ArmJob) -> bool:
  """Return True if an arm has a result, which is then on this machine."""
  if mirror.is_there(job.path / run_files.ARM):
    mirror.take_back(job.path)
  return arm_lib.result(job.path) is not None


def _command(job: arm_lib.ArmJob) -> commands.Command:
  """Write the job file of an arm; return the command that trains it."""
  job.path.mkdir(parents=True, exist_ok=True)
  path = job.path / run_files.JOB
  # Written atomically: a worker never reads half a job, even after a kill.
  durable.write_atomic(path, job.to_json().encode())
  return _command_of(job, str(path), job.path / _LOG)


def _lend(job: arm_lib.ArmJob) -> commands.Command:
  """Lend the folder of an arm; return the command for another machine."""
  copy, run = mirror.of(job.path), pathlib.Path(job.workdir)
  files = copy.published(run / run_files.HARNESSES / job.harness)
  if job.start:
    files |= copy.published(run / job.start)
  there = dataclasses.replace(job, workdir=copy.url, files=files)
  url = copy.lend(job.path, there.to_json().encode())
  # The log is outside the folder, which only the arm writes.
  log = run / 'logs' / f'{job.folder}.log'
  log.parent.mkdir(parents=True, exist_ok=True)
  return _command_of(job, url, log)


def _command_of(
    job: arm_lib.ArmJob, path: str, log: pathlib.Path
) -> commands.Command:
  """Return the command that trains an arm from the job at a path or URL."""
  cache = jax.config.jax_compilation_cache_dir or ''
  flags = [
      '--mode=arm',
      f'--job={path}',
      f'--compilation_cache={cache}',
      f'--collective_seconds={peers.limit()}',
  ]
  if probe.tier() == 'T2':  # The user has allowed T2 for this run.
    flags.append('--allow_weak_sandbox')
  return commands.Command(
      job.folder, tuple(flags), log, lambda: _is_done(job)
  )


def _resources_here() -> tuple[str, ...]:
  """Return the resources of this process, in Ray's units.

  Arms need the same kind and number of devices to give the same results.
  """
  kind = jax.default_backend().upper()
  return (f'{kind}={1 if kind == "CPU" else jax.local_device_count()}',)


@contextlib.contextmanager
def open_executor(
    placement: Placement,
    in_process: InProcess,
    meter: commands.Meter | None = None,
    shares: Sequence[accelerators.Share] = (),
) -> Iterator[Executor]:
  """Yield the executor of a run; its workers are stopped on exit.

  Args:
    placement: Flags that have passed `check`.
    in_process: The executor to use if arms stay in this process.
    meter: Counts the device-seconds of arms that have their own devices.
    shares: Devices of each worker on this machine, see `Placement.divide`.

  Raises:
    ValueError: If the arms cannot be placed like this.
  """
  if placement.executor == 'inprocess':
    yield in_process
    return
  wanted = placement.arm_resources
  # A TPU slice, such as v5p:2x2x2, determines the resources itself.
  if not wanted and ':' not in placement.arm_hosts:
    wanted = _resources_here()
  engine = commands.open_engine(
      placement.executor, wanted, placement.arm_hosts, shares
  )
  with contextlib.closing(
      commands.Pool(engine, placement.workers, meter)
  ) as pool:
    yield Workers(pool, in_process.stop_if_asked, in_process.progress)
