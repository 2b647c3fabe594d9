"""Commands as tasks of a Ray cluster, each in its own placement group.

A command with several machines, or with a TPU slice, has one process per
machine; jax.distributed connects the processes.

Ray places commands and reports their deaths; all state of a run is on disk, not
in Ray. All machines of the cluster need this checkout and its environment at
the same paths. They also need the workdir at the same path, unless it is in an
object store; the output of a command then arrives here only when the command
ends by itself. RAY_ADDRESS names the cluster; without it, the cluster of this
machine is used (`ray start --head`). No other module imports ray.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any

# Set before ray is imported, so that ray sends no usage statistics.
os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')

import ray
from ray import exceptions
from ray import util
from ray.util import scheduling_strategies
from ray.util import tpu

from evojax.runtime import commands
from evojax.runtime import mirror
from evojax.runtime import output
from evojax.runtime import preemption

_SAY_SECONDS = 30.0  # A line reports a command that waits longer for machines.
# After a failure of one process, the others of its command may take this long
# to end; `peers` makes them notice within a minute.
_PEERS_SECONDS = 90.0
# A cluster must accept a connection within this time.
_HEAD_SECONDS = 5.0
_LOCAL = 'localhost', '127.0.0.1', '::1'
# Time until a head that did not answer is asked again.
_MISSED_SECONDS = 10.0
# A run ends if the head has not answered for this long. Ray itself would end
# the process after 60 s, with status 1 and without a message; before that, the
# run needs up to `preemption.SAVE_SECONDS` to save.
_GONE_SECONDS = 25.0


def _accepts(address: tuple[str, int], seconds: float) -> bool:
  """Return True if a host and port accept connections."""
  try:
    socket.create_connection(address, seconds).close()
  except OSError:
    return False
  return True


def _check_head(address: str) -> None:
  """Check that a cluster accepts connections; `ray.init` would retry for long.

  Args:
    address: RAY_ADDRESS. A word, such as 'auto', is left to Ray.

  Raises:
    ConnectionError: If it does not.
  """
  match = re.fullmatch(r'(?:ray://)?\[?([^\s/]+?)\]?:(\d+)', address)
  if match is None:
    return
  hosts = [match[1]]
  if match[1] in _LOCAL:  # Ray then uses this machine's own address.
    hosts.append(util.get_node_ip_address())
  if not any(_accepts((h, int(match[2])), _HEAD_SECONDS) for h in hosts):
    raise ConnectionError(
        f'nothing accepts connections at RAY_ADDRESS={address}.'
    )


class _Head:
  """The head of a cluster, without which calls of Ray block."""

  def __init__(self):
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(':')
    self._address = host.strip('[]'), int(port)
    self._missed = -math.inf
    self._left = threading.Event()
    threading.Thread(target=self._watch, daemon=True).start()

  def answers(self) -> bool:
    """Return True if it accepts connections, or False within 3 s."""
    if time.monotonic() < self._missed + _MISSED_SECONDS:
      return False
    for pause in (0.5, 0.0):
      if _accepts(self._address, 1.0):
        return True
      time.sleep(pause)
    self._missed = time.monotonic()
    return False

  def leave(self) -> None:
    """Let the run continue without the head."""
    self._left.set()

  def _watch(self) -> None:
    """Send this process SIGTERM when the head no longer answers.

    The main thread may be blocked in a call of Ray. If it is, the signal thread
    of `preemption` ends the process.
    """
    answered = time.monotonic()
    while not self._left.wait(1.0):
      if _accepts(self._address, 1.0):
        answered = time.monotonic()
      elif time.monotonic() > answered + _GONE_SECONDS:
        output.say(
            'error: the head of the Ray cluster at'
            f' {self._address[0]}:{self._address[1]} has not answered for'
            f' {_GONE_SECONDS:g} s, so that the run ends; start the cluster,'
            ' and then the same command',
            error=True,
        )
        os.kill(os.getpid(), signal.SIGTERM)
        return


class Ray:
  """Starts commands on the machines of a cluster."""

  elsewhere = True

  def __init__(self, share: commands.Share):
    """Join the cluster.

    Args:
      share: What every command gets. Its resources are 'CPU', 'GPU', 'TPU' and
        custom resources of the cluster.

    Raises:
      ValueError: If there is no cluster, or no such TPU slice.
    """
    self._share = share
    self.devices = _devices(share)
    handlers = {n: signal.getsignal(n) for n in preemption.SIGNALS}
    address = os.environ.get('RAY_ADDRESS') or 'auto'
    try:
      _check_head(address)
      ray.init(
          address=address,
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
      # Restore the handlers that Ray replaced: its SIGTERM handler would end
      # this process before it has saved.
      if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
          signal.signal(number, handler)
    self._head = _Head()

  def start(self, command: commands.Command) -> 'Task':
    """Queue a command in the cluster; it ends when this process ends."""
    return Task(command, self._share, self._head)

  def close(self) -> None:
    """Leave the cluster."""
    self._head.leave()
    if self._head.answers():
      ray.shutdown()
    else:  # Here, and in exit handlers, Ray would wait 10 s for its answers.
      preemption.leave_at_once()


def _devices(share: commands.Share) -> int:
  """Return a command's number of accelerators, or of machines if it has none.

  Raises:
    ValueError: If Ray does not know the chip of a TPU slice, or the chip has no
      such topology.
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
  resources: Mapping[str, float]  # Those of each machine.
  release: Callable[[], None]


def _reserve(share: commands.Share) -> _Place:
  """Request machines; this blocks only for a TPU slice, until it is reserved.

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
  """A command that runs or waits in the cluster, on one machine or several."""

  has_devices = False

  def __init__(
      self, command: commands.Command, share: commands.Share, head: _Head
  ):
    """Request the machines of a command.

    Args:
      command: The command.
      share: The part of the cluster that it gets.
      head: The head of the cluster.
    """
    self._command, self._share, self._head = command, share, head
    self._status: int | None = None
    self._asked, self._said = time.monotonic(), False
    self._place: _Place | None = None
    # By number of the process: the future result of a running process, and the
    # status of one that has ended.
    self._ends: dict[int, ray.ObjectRef] = {}
    self._statuses: dict[int, int] = {}
    self._failed_at = math.inf
    if share.topology:
      self._reserve_slice()
    else:
      self._begin(_reserve(share))

  @property
  def place(self) -> str:
    """The machines and resources that the command requests."""
    share = self._share
    if share.topology:
      return f'a TPU slice of Ray, {share.chip} {share.topology}'
    each = ', '.join(f'{n}={number:g}' for n, number in share.resources.items())
    if share.hosts > 1:
      return f'tasks of Ray on {share.hosts} machines, each with {each}'
    return f'a task of Ray with {each}'

  def poll(self) -> int | None:
    """Return the status; None before the command's end."""
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
        self._statuses[index] = self._find_status(end, self._log_of(index))
        del self._ends[index]
    if any(self._statuses.values()):
      # The others should notice the failure by themselves; if they do not, they
      # would wait forever, so they are cancelled.
      self._failed_at = min(self._failed_at, time.monotonic())
      if time.monotonic() > self._failed_at + _PEERS_SECONDS:
        self._cancel()
        self._failed_at = time.monotonic()  # Until they are cancelled again.
    if not self._ends:
      self._status = _joint(self._statuses.values())
      self._place.release()
    return self._status

  def _reserve_slice(self) -> None:
    """Reserve a slice in a thread, because Ray's call blocks."""
    thread = futures.ThreadPoolExecutor(1)
    self._reserved = thread.submit(_reserve, self._share)
    thread.shutdown(wait=False)  # The thread ends after the reservation.

  def _take_place(self) -> bool:
    """Start the processes if the TPU slice is reserved; return True then."""
    if not self._reserved.done():
      return False
    try:
      place = self._reserved.result()
    except TimeoutError:  # No slice was free.
      self._reserve_slice()
      return False
    except RuntimeError as error:  # A machine does not name its slice.
      self._log(f'error: Ray cannot reserve {self.place}: {error}')
      self._status = 1
      return False
    self._begin(place)
    return True

  def _log_of(self, index: int) -> pathlib.Path:
    """Return the log of a process; machines cannot append to one file."""
    log = self._command.log
    return log.with_name(f'{log.name}.{index}') if index else log

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
    if place.hosts > 1:  # The address is that of the first process's machine.
      address = find_address.options(
          num_cpus=0, scheduling_strategy=strategies[0]
      ).remote()
    for index, strategy in enumerate(strategies):
      task = run.options(
          num_cpus=place.resources.get('CPU', 0),
          num_gpus=place.resources.get('GPU', 0),
          resources=others,
          scheduling_strategy=strategy,
          max_retries=0,  # `commands.Pool` counts and repeats failures.
          name=self._command.name,
      )
      log = self._log_of(index)
      self._ends[index] = task.remote(
          self._command.argv(),
          os.getcwd(),
          commands.python_path(),
          None if mirror.is_copy(log) else str(log),
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
          f'{self._command.name}: waits; no machine has enough free resources'
      )

  def _find_status(self, end: ray.ObjectRef, log: pathlib.Path) -> int:
    """Return the status of a process that has ended; write what it printed."""
    try:
      status, printed = ray.get(end)
      if printed:
        with open(log, 'ab') as file:
          file.write(printed)
      return status
    except exceptions.TaskCancelledError:
      return preemption.AGAIN
    except exceptions.RayTaskError as error:
      self._log(
          f'error: Ray cannot start it: {error.cause}; its machines need this'
          ' checkout, its environment and the workdir, unless that is in an'
          ' object store, at the same paths'
      )
      return 1
    except exceptions.RayError:  # The machine, or Ray's own process on it.
      return commands.LOST

  def _cancel(self) -> None:
    for end in self._ends.values():
      ray.cancel(end)

  def terminate(self) -> None:
    """Request that the command saves and ends."""
    if not self._head.answers():
      self._status = commands.LOST
    if self.poll() is not None:
      return
    if self._place is not None:
      self._cancel()
      return
    self._status = preemption.AGAIN
    self._reserved.add_done_callback(_give_back)

  # A killed command must have ended before its folder is deleted; therefore it
  # is ended as by `terminate`.
  kill = terminate

  def wait(self) -> int:
    """Wait until the command has ended; return its status.

    If the cluster no longer exists, the command has ended, too: its processes
    end with those of Ray that started them.
    """
    while self.poll() is None:
      if not self._head.answers():
        self._status = commands.LOST
      elif self._ends:
        ray.wait(list(self._ends.values()), num_returns=1, timeout=1)
    return self._status


def _give_back(reserved: futures.Future[_Place]) -> None:
  """Release a slice that was reserved after its command was terminated."""
  if reserved.exception() is None:
    reserved.result().release()


def _joint(statuses: Iterable[int]) -> int:
  """Return the status of a command from the statuses of its processes.

  When one process ends, the others end too, with different statuses. The status
  that is closest to the cause is returned.
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

  They are local functions because Ray then sends them by value; therefore they
  must not use anything of evojax.
  """

  def run(
      argv: Sequence[str],
      folder: str,
      paths: str,
      log: str | None,  # None: the output is returned.
      omp: str | None,
      address: str | None,
      hosts: int,
      index: int,
  ) -> tuple[int, bytes]:
    # Ray cancels by SIGINT. If a script has started the cluster in the
    # background, the cluster's processes ignore SIGINT by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    env = os.environ | {'PYTHONPATH': paths}
    # Ray sets this to the task's CPUs; float sums would depend on that number.
    env.pop('OMP_NUM_THREADS', None)
    if omp:
      env['OMP_NUM_THREADS'] = omp
    joined = ['--distributed', f'--coordinator={address}']
    joined += [f'--processes={hosts}', f'--process={index}']
    with open(log, 'ab') if log else tempfile.TemporaryFile() as file:
      file.write(f'on {socket.gethostname()}\n'.encode())
      file.flush()
      process = subprocess.Popen(
          # --parent makes it end when this process ends.
          [*argv, *(joined if address else ()), f'--parent={os.getpid()}'],
          cwd=folder,
          stdin=subprocess.DEVNULL,
          stdout=file,
          stderr=file,
          env=env,
      )
      try:
        while process.poll() is None:
          time.sleep(0.1)  # `Popen.wait` would not notice a cancellation.
      except BaseException:
        process.terminate()
        try:
          process.wait(60)  # Time to finish an update and to save.
        except subprocess.TimeoutExpired:
          process.kill()
          process.wait()
        raise
      if log:
        return process.returncode, b''
      size = file.seek(0, os.SEEK_END)
      file.seek(max(0, size - (1 << 20)))  # The last MiB is enough.
      return process.returncode, file.read()

  def find_address() -> str:
    with socket.socket() as free:
      free.bind(('', 0))
      port = free.getsockname()[1]
    return f'{ray.util.get_node_ip_address()}:{port}'

  return ray.remote(run), ray.remote(find_address)
