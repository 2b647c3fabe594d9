"""Commands as tasks of a Ray cluster, each in a placement group of its own.

A command with several machines, or with a TPU slice, has one process on each;
they join by jax.distributed.

Ray places a command and reports deaths; it keeps no state that counts. All of
its machines need this checkout, its environment and the workdir at the same
paths. RAY_ADDRESS names the cluster; without it, the one of this machine is
taken (`ray start --head`). The only module that imports ray.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import math
import os
import signal
import socket
import subprocess
import threading
import time
from typing import Any

# Before ray is imported: it would report to its makers.
os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')

import ray
from ray import exceptions
from ray import util
from ray.util import scheduling_strategies
from ray.util import tpu

from evojax.runtime import commands
from evojax.runtime import output
from evojax.runtime import preemption

_SAY_SECONDS = 30.0  # After them, a command says what it waits for.
# Processes of one command notice within a minute that another has ended.
_PEERS_SECONDS = 90.0


class Ray:
  """Starts commands on the machines of a cluster."""

  def __init__(self, share: commands.Share):
    """Join the cluster.

    Args:
      share: What every command gets: 'CPU', 'GPU', 'TPU', or names of the
        cluster's own.

    Raises:
      ValueError: If there is no cluster, or no such TPU slice.
    """
    self._share = share
    self.devices = _devices(share)
    handlers = {n: signal.getsignal(n) for n in preemption.SIGNALS}
    try:
      ray.init(
          address=os.environ.get('RAY_ADDRESS') or 'auto',
          log_to_driver=False,
          logging_level='ERROR',
      )
    except ConnectionError as error:
      raise ValueError(
          f'--executor=ray finds no cluster: {error} Start one (`ray start'
          ' --head` on this machine, `ray start --address=HOST:6379` on'
          ' others), or use --executor=local'
      ) from error
    finally:
      # Ray would end this process at SIGTERM; what is here to be saved, is.
      if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
          signal.signal(number, handler)

  def start(self, command: commands.Command) -> 'Task':
    """Queue a command with the cluster; it ends when this process does."""
    return Task(command, self._share)

  def close(self) -> None:
    """Leave the cluster."""
    ray.shutdown()


def _devices(share: commands.Share) -> int:
  """Return the accelerators of a command, or its machines without any.

  Raises:
    ValueError: If a TPU slice has a topology that its chip does not come in.
  """
  if not share.topology:
    accelerators = [share.resources.get(name, 0) for name in ('TPU', 'GPU')]
    return share.hosts * max(1, round(sum(accelerators)))
  try:
    hosts, each = tpu.get_tpu_worker_resources(share.topology, share.chip)
  except (ValueError, KeyError) as error:
    raise ValueError(
        f'--arm_hosts={share.chip}:{share.topology} is no TPU slice that Ray'
        f' knows: {error}'
    ) from error
  return round(hosts * each['TPU'])


@dataclasses.dataclass(frozen=True)
class _Place:
  """Machines that are reserved for one command."""

  group: Any  # Ray's PlacementGroup, with one bundle per machine.
  hosts: int
  resources: Mapping[str, float]  # Of each.
  release: Callable[[], None]


def _reserve(share: commands.Share) -> _Place:
  """Ask for machines; a TPU slice is waited for.

  Raises:
    TimeoutError: If no slice is free.
  """
  if share.topology:
    made = tpu.slice_placement_group(
        share.topology, share.chip, strategy='STRICT_SPREAD'
    )
    return _Place(
        made.placement_group,
        made.num_hosts,
        {n: float(count) for n, count in made.bundle_resources.items()},
        made.shutdown,
    )
  several = share.hosts > 1
  group = util.placement_group(
      [dict(share.resources)] * share.hosts,
      strategy='STRICT_SPREAD' if several else 'PACK',
  )
  release = functools.partial(util.remove_placement_group, group)
  return _Place(group, share.hosts, share.resources, release)


class Task:
  """A command that the cluster runs, or will run, on one machine or several."""

  has_devices = False

  def __init__(self, command: commands.Command, share: commands.Share):
    """Ask for its machines.

    Args:
      command: What is run.
      share: What it gets.
    """
    self._command, self._share = command, share
    self._status: int | None = None
    self._asked, self._said = time.monotonic(), False
    self._place: _Place | None = None
    self._ends: dict[int, ray.ObjectRef] = {}  # Of processes that run.
    self._statuses: dict[int, int] = {}  # Of those that have ended.
    self._failed_at = math.inf
    if share.topology:
      self._reserve_slice()
    else:
      self._begin(_reserve(share))

  @property
  def place(self) -> str:
    """The machines and resources that it asked for."""
    share = self._share
    if share.topology:
      return f'a TPU slice of Ray, {share.chip} {share.topology}'
    each = ', '.join(f'{n}={number:g}' for n, number in share.resources.items())
    if share.hosts > 1:
      return f'tasks of Ray on {share.hosts} machines, each with {each}'
    return f'a task of Ray with {each}'

  def poll(self) -> int | None:
    """Return its status, None before its end."""
    if self._status is not None:
      return self._status
    if self._place is None and not self._take_place():
      self._say_that_it_waits()
      return self._status
    if not self.has_devices:
      self.has_devices = self._place.group.wait(timeout_seconds=0)
      self._say_that_it_waits()
    for index, end in list(self._ends.items()):
      if ray.wait([end], timeout=0)[0]:
        self._statuses[index] = self._find_status(end)
        del self._ends[index]
    if any(self._statuses.values()):
      # The others notice it by themselves, or they wait for it forever.
      self._failed_at = min(self._failed_at, time.monotonic())
      if time.monotonic() > self._failed_at + _PEERS_SECONDS:
        self._cancel()
    if not self._ends:
      self._status = _joint(self._statuses.values())
      self._place.release()
    return self._status

  def _reserve_slice(self) -> None:
    """Reserve a slice in a thread: Ray has no call that returns at once."""
    thread = futures.ThreadPoolExecutor(1)
    self._reserved = thread.submit(_reserve, self._share)
    thread.shutdown(wait=False)  # It ends with the reservation.

  def _take_place(self) -> bool:
    """Start the processes once a TPU slice is reserved."""
    if not self._reserved.done():
      return False
    try:
      place = self._reserved.result()
    except TimeoutError:  # None was free.
      self._reserve_slice()
      return False
    except RuntimeError as error:  # A machine does not say what it is part of.
      self._log(f'error: Ray cannot reserve {self.place}: {error}')
      self._status = 1
      return False
    self._begin(place)
    return True

  def _log(self, line: str) -> None:
    with open(self._command.log, 'a') as log:
      log.write(f'{line}\n')

  def _begin(self, place: _Place) -> None:
    """Queue one process per machine."""
    self._place = place
    others = {
        name: number
        for name, number in place.resources.items()
        if name not in ('CPU', 'GPU')
    }
    strategies = [
        scheduling_strategies.PlacementGroupSchedulingStrategy(
            place.group, placement_group_bundle_index=index
        )
        for index in range(place.hosts)
    ]
    run, find_address = _functions()
    address = None
    if place.hosts > 1:  # It is found where the first process will run.
      address = find_address.options(
          num_cpus=0, scheduling_strategy=strategies[0]
      ).remote()
    for index, strategy in enumerate(strategies):
      task = run.options(
          num_cpus=place.resources.get('CPU', 0),
          num_gpus=place.resources.get('GPU', 0),
          resources=others,
          scheduling_strategy=strategy,
          max_retries=0,  # They are counted, see `commands.Pool`.
          name=self._command.name,
      )
      self._ends[index] = task.remote(
          self._command.argv(),
          os.getcwd(),
          commands.python_path(),
          # One log each: machines cannot append to one file together.
          f'{self._command.log}.{index}' if index else str(self._command.log),
          os.environ.get('OMP_NUM_THREADS'),
          address,
          place.hosts,
          index,
      )

  def _say_that_it_waits(self) -> None:
    late = time.monotonic() > self._asked + _SAY_SECONDS
    if late and not self.has_devices and not self._said:
      self._said = True
      output.say(
          f'{self._command.name}: waits; no machine has free what it needs'
      )

  def _find_status(self, end: ray.ObjectRef) -> int:
    """Return the status of a process that has ended."""
    try:
      return ray.get(end)
    except exceptions.TaskCancelledError:
      return preemption.AGAIN
    except exceptions.RayTaskError as error:
      self._log(
          f'error: Ray cannot start it: {error.cause}; its machines need this'
          ' checkout, its environment and the workdir at the same paths'
      )
      return 1
    except exceptions.RayError:  # The machine, or Ray's own process on it.
      return commands.LOST

  def _cancel(self) -> None:
    for end in self._ends.values():
      ray.cancel(end)

  def terminate(self) -> None:
    """Ask it to save and to end."""
    if self.poll() is not None:
      return
    if self._place is not None:
      self._cancel()
      return
    self._status = preemption.AGAIN
    self._reserved.add_done_callback(_give_back)

  # The folder of a cancelled command is deleted, so it must have ended by then.
  kill = terminate

  def wait(self) -> int:
    """Return its status once it has ended."""
    while self.poll() is None:
      ray.wait(list(self._ends.values()), num_returns=1, timeout=1)
    return self._status


def _give_back(reserved: futures.Future[_Place]) -> None:
  """Release a slice that nobody waits for any more."""
  if reserved.exception() is None:
    reserved.result().release()


def _joint(statuses: Iterable[int]) -> int:
  """Return the status of a command from those of its processes.

  One that ends ends the others, each in its own way: what explains most counts.
  """

  def rank(status: int) -> int:
    if status == commands.LOST:
      return 0
    if status < 0:
      return 1
    if status in preemption.STATUSES.values():
      return 3
    return 2 if status else 4

  return min(statuses, key=rank)


def _functions() -> tuple[Any, Any]:
  """Return the task that runs a process, and one that finds an address.

  They are sent by their source, for which they must not use anything of evojax.
  """

  def run(
      argv: Sequence[str],
      folder: str,
      paths: str,
      log: str,
      omp: str | None,
      address: str | None,
      hosts: int,
      index: int,
  ) -> int:
    # Ray cancels by SIGINT, which all processes of a cluster ignore that was
    # started in the background of a script.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    env = os.environ | {'PYTHONPATH': paths}
    # Ray sets it to the CPUs of the task; sums of floats would depend on it.
    env.pop('OMP_NUM_THREADS', None)
    if omp:
      env['OMP_NUM_THREADS'] = omp
    joined = ['--distributed', f'--coordinator={address}']
    joined += [f'--processes={hosts}', f'--process={index}']
    with open(log, 'ab') as file:
      file.write(f'on {socket.gethostname()}\n'.encode())
      file.flush()
      process = subprocess.Popen(
          # It ends when this process does.
          [*argv, *(joined if address else ()), f'--parent={os.getpid()}'],
          cwd=folder,
          stdin=subprocess.DEVNULL,
          stdout=file,
          stderr=file,
          env=env,
      )
    try:
      while process.poll() is None:
        time.sleep(0.1)  # `Popen.wait` would not hear that it is cancelled.
    except BaseException:
      process.terminate()
      try:
        process.wait(60)  # It ends its update, and saves.
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
      raise
    return process.returncode

  def find_address() -> str:
    with socket.socket() as free:
      free.bind(('', 0))
      port = free.getsockname()[1]
    return f'{ray.util.get_node_ip_address()}:{port}'

  return ray.remote(run), ray.remote(find_address)
