"""Commands as tasks of a Ray cluster, each in a placement group of its own.

Ray places a command and reports deaths; it keeps no state that counts. All of
its machines need this checkout, its environment and the workdir at the same
paths. RAY_ADDRESS names the cluster; without it, the one of this machine is
taken (`ray start --head`). The only module that imports ray.
"""

from collections.abc import Mapping, Sequence
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

from evojax.runtime import commands
from evojax.runtime import output
from evojax.runtime import preemption

_SAY_SECONDS = 30.0  # After them, a command says what it waits for.


class Ray:
  """Starts commands on the machines of a cluster."""

  def __init__(self, resources: Mapping[str, float]):
    """Join the cluster.

    Args:
      resources: What every command gets: 'CPU', 'GPU', 'TPU', or names of the
        cluster's own.

    Raises:
      ValueError: If there is no cluster.
    """
    self._resources = dict(resources)
    accelerators = resources.get('TPU', 0) + resources.get('GPU', 0)
    self.devices = max(1, round(accelerators))
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
    return Task(command, self._resources)

  def close(self) -> None:
    """Leave the cluster."""
    ray.shutdown()


class Task:
  """A command that the cluster runs, or will run."""

  has_devices = False

  def __init__(self, command: commands.Command, resources: Mapping[str, float]):
    """Ask for its resources.

    Args:
      command: What is run.
      resources: What it gets.
    """
    self._command, self._status = command, None
    self._resources, self._asked = dict(resources), time.monotonic()
    self._said = False
    self._group = util.placement_group([self._resources])
    strategy = scheduling_strategies.PlacementGroupSchedulingStrategy(
        self._group, placement_group_bundle_index=0
    )
    others = {
        name: number
        for name, number in self._resources.items()
        if name not in ('CPU', 'GPU')
    }
    task = _task().options(
        num_cpus=self._resources.get('CPU', 0),
        num_gpus=self._resources.get('GPU', 0),
        resources=others,
        scheduling_strategy=strategy,
        max_retries=0,  # They are counted, see `commands.Pool`.
        name=command.name,
    )
    self._end = task.remote(
        command.argv(),
        os.getcwd(),
        commands.python_path(),
        str(command.log),
        os.environ.get('OMP_NUM_THREADS'),
    )

  @property
  def place(self) -> str:
    """What it asked for."""
    return 'a task of Ray with ' + ', '.join(
        f'{name}={number:g}' for name, number in self._resources.items()
    )

  def poll(self) -> int | None:
    """Return its status, None before its end."""
    if self._status is None:
      if ray.wait([self._end], timeout=0)[0]:
        self._status = self._find_status()
        util.remove_placement_group(self._group)
      elif not self.has_devices:
        self._look_at_group()
    return self._status

  def _look_at_group(self) -> None:
    self.has_devices = self._group.wait(timeout_seconds=0)
    late = time.monotonic() > self._asked + _SAY_SECONDS
    if late and not self.has_devices and not self._said:
      self._said = True
      output.say(
          f'{self._command.name}: waits; no machine has free what it needs'
      )

  def _find_status(self) -> int:
    """Return the status of a task that has ended."""
    try:
      return ray.get(self._end)
    except exceptions.TaskCancelledError:
      return preemption.AGAIN
    except exceptions.RayTaskError as error:
      with open(self._command.log, 'a') as log:
        log.write(
            f'error: Ray cannot start it: {error.cause}; its machines need this'
            ' checkout, its environment and the workdir at the same paths\n'
        )
      return 1
    except exceptions.RayError:  # The machine, or Ray's own process on it.
      return commands.LOST

  def terminate(self) -> None:
    """Ask it to save and to end."""
    if self.poll() is None:
      ray.cancel(self._end)

  # What is cancelled is deleted once it has ended: it must end by itself.
  kill = terminate

  def wait(self) -> int:
    """Return its status once it has ended."""
    while self.poll() is None:
      ray.wait([self._end], timeout=1)
    return self._status


def _task() -> Any:
  """Return the task that runs a command.

  It is sent by its source, for which it must not use anything of evojax.
  """

  def run(
      argv: Sequence[str], folder: str, paths: str, log: str, omp: str | None
  ) -> int:
    env = os.environ | {'PYTHONPATH': paths}
    # Ray sets it to the CPUs of the task; sums of floats would depend on it.
    env.pop('OMP_NUM_THREADS', None)
    if omp:
      env['OMP_NUM_THREADS'] = omp
    with open(log, 'ab') as file:
      file.write(f'on {socket.gethostname()}\n'.encode())
      file.flush()
      process = subprocess.Popen(
          # It ends when this process does.
          [*argv, f'--parent={os.getpid()}'],
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

  return ray.remote(run)
