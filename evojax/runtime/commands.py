"""A pool of evojax commands that an engine runs side by side.

    pool = Pool(ThisMachine(), workers=2)
    pool.submit(command)     # Starts the command if a worker is free.
    pool.advance()           # Called repeatedly; starts waiting commands.
    pool.check(command.name)  # Raises if the command failed for good.

A command keeps its result and its progress on disk. Therefore a command that
was killed by a signal or lost its machine is started again and continues.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Protocol, runtime_checkable

from evojax.runtime import accelerators
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import preemption

# The status of a command whose machine was lost. Other statuses are exit
# statuses (>= 0) and negated signals (< 0, as in subprocess).
LOST = -1000
# A command fails for good after KILLS deaths by a signal (the kernel sends one
# if memory runs out), or after LOSSES losses or preemptions of its machine.
KILLS, LOSSES = 3, 20
# On a shared file system, other machines may see a new file up to this late.
_LATE_SECONDS = 60.0
_MOST_CHARS = 500  # Shown of the error at the end of a log.


class CommandError(OSError):
  """A command ended without its result; the message names its log."""


@dataclasses.dataclass(frozen=True)
class Command:
  """One call of `python -m evojax.main`."""

  name: str  # Unique in its pool, for messages.
  flags: tuple[str, ...]
  log: pathlib.Path  # Its output is appended here.
  is_done: Callable[[], bool]  # Returns True if the result is on disk.

  def argv(self) -> list[str]:
    """Return the program and its arguments."""
    return [sys.executable, '-m', 'evojax.main', *self.flags]


@runtime_checkable
class Process(Protocol):
  """A started command, with methods like those of `subprocess.Popen`."""

  place: str  # Place of the command, for messages: 'process 7'.
  has_devices: bool  # False while the command waits for devices.

  def poll(self) -> int | None:
    """Return the status; None before the command's end."""

  def terminate(self) -> None:
    """Request that the command saves and ends."""

  def kill(self) -> None:
    """End the command at once; unsaved work is lost."""

  def wait(self) -> int:
    """Wait until the command has ended; return its status."""


@runtime_checkable
class Engine(Protocol):
  """A way to start commands: on this machine, or on those of a cluster."""

  devices: int  # Devices per command; 0 if it shares those of this process.
  elsewhere: bool  # True if commands may run on machines with other disks.

  def start(self, command: Command) -> Process:
    """Start a command."""

  def close(self) -> None:
    """Free the engine's resources; called after all commands have ended."""


class _Child(subprocess.Popen):
  """A process of this machine."""

  has_devices = True
  share: accelerators.Share | None = None

  @property
  def place(self) -> str:
    own = f' with {self.share.name}' if self.share else ''
    return f'process {self.pid}{own}'


class ThisMachine:
  """Starts commands as other processes on this machine.

  They share the devices of this process, or each gets a part of the machine's.
  """

  elsewhere = False

  def __init__(self, shares: Sequence[accelerators.Share] = ()):
    """Start nothing yet.

    Args:
      shares: Devices of each command that runs at the same time; empty: all
        commands share the devices of this process.
    """
    self.devices = shares[0].devices if shares else 0
    self._shares = shares
    self._users: dict[str, _Child] = {}  # The newest one of each share.

  def start(self, command: Command) -> Process:
    """Start a command that ends when this process ends."""
    busy = {name for name, p in self._users.items() if p.poll() is None}
    # The pool starts no more commands at a time than there are shares.
    share = next((s for s in self._shares if s.name not in busy), None)
    with open(command.log, 'ab') as log:
      child = _Child(
          [*command.argv(), f'--parent={os.getpid()}'],
          stdin=subprocess.DEVNULL,
          stdout=log,
          stderr=log,
          env=os.environ
          | {'PYTHONPATH': python_path()}
          | (share.variables if share else {}),
          # Ctrl-C then reaches only this process, which lets the commands save.
          start_new_session=True,
      )
    if share:
      child.share = share
      self._users[share.name] = child
    return child

  def close(self) -> None:
    """Do nothing: processes end by themselves."""


@dataclasses.dataclass(frozen=True)
class Share:
  """The part of a cluster that a command gets."""

  resources: Mapping[str, float]  # On each of its machines: {'CPU': 4.0}.
  hosts: int = 1  # Machines; each runs one process of the command.
  # A TPU slice, e.g. 'v5p' and '2x2x2'; the command gets all its machines.
  chip: str = ''
  topology: str = ''


def share(wanted: Sequence[str], hosts: str = '') -> Share:
  """Return the part of a Ray cluster that each command requests.

  Args:
    wanted: --arm_resources, see `resources`.
    hosts: --arm_hosts: a number of machines, or a TPU slice as CHIP:TOPOLOGY;
      empty: one machine.

  Raises:
    ValueError: If an argument is malformed, or if a slice is combined with
      resources.
  """
  found = resources(wanted)
  if not hosts or re.fullmatch(r'[1-9]\d*', hosts):
    return Share(found, int(hosts or 1))
  slice_ = re.fullmatch(r'(v\w+):(\d+x\d+(?:x\d+)?)', hosts)
  if slice_ is None:
    raise ValueError(
        f'--arm_hosts={hosts} is neither a number of machines nor a TPU slice'
        ' such as v5p:2x2x2'
    )
  if found:
    raise ValueError(
        f'--arm_resources={",".join(wanted)} with --arm_hosts={hosts}: an arm'
        ' gets all chips of its slice; leave --arm_resources out'
    )
  return Share({}, 0, slice_[1], slice_[2])


def check_share(wanted: Sequence[str], hosts: str = '') -> Share:
  """Return the result of `share`, and refuse an empty one.

  Raises:
    ValueError: As `share` does, or if neither resources nor a TPU slice is
      given.
  """
  given = share(wanted, hosts)
  # Without a requested GPU, a run would silently train on CPUs.
  if not wanted and not given.topology:
    raise ValueError(
        '--executor=ray needs --arm_resources: what each gets of a machine,'
        ' CPU=1 or GPU=1'
    )
  return given


def resources(wanted: Sequence[str]) -> dict[str, float]:
  """Parse resources such as ('CPU=4', 'TPU=8') into a dict.

  Raises:
    ValueError: If an item is not NAME=NUMBER with a number above 0.
  """
  found = {}
  for text in wanted:
    match = re.fullmatch(r'([\w:.-]+)=(\d+(?:\.\d+)?)', text)
    if match is None or not float(match[2]):
      raise ValueError(
          f'--arm_resources={",".join(wanted)}: {text!r} is not NAME=NUMBER'
          ' with a number above 0, such as CPU=4 or TPU=8'
      )
    found[match[1]] = float(match[2])
  return found


def open_engine(
    kind: str,
    wanted: Sequence[str] = (),
    hosts: str = '',
    shares: Sequence[accelerators.Share] = (),
) -> Engine:
  """Return the engine that starts commands.

  Args:
    kind: 'local' or 'ray'.
    wanted: Resources that Ray gives a command per machine, see `resources`.
    hosts: Number of machines or TPU slice of a command, see `share`.
    shares: For 'local': see `ThisMachine`.

  Raises:
    ValueError: If there is no Ray cluster, the package ray is missing, or
      neither resources nor a TPU slice is given.
  """
  if kind == 'local':
    return ThisMachine(shares)
  given = check_share(wanted, hosts)
  try:
    engine = importlib.import_module('evojax.runtime.ray_engine')
  except ModuleNotFoundError as error:
    if error.name != 'ray':
      raise
    raise ValueError(
        '--executor=ray needs the package ray, which is an extra: pip install'
        ' -r requirements/ray.txt'
    ) from error
  return engine.Ray(given)


def python_path() -> str:
  """Return a PYTHONPATH by which a command finds the same user code."""
  return os.pathsep.join(path for path in sys.path if path)


class Meter:
  """A counter of device-seconds of commands that have their own devices."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Start at 0.

    Args:
      clock: Returns seconds.
    """
    self._clock, self._ended = clock, 0.0
    self._began: dict[str, tuple[float, int]] = {}

  def begin(self, name: str, devices: int) -> None:
    """Start counting a command with `devices` devices, if it has not begun."""
    self._began.setdefault(name, (self._clock(), devices))

  def end(self, name: str) -> None:
    """Stop counting a command; no-op if it never got its devices."""
    if name in self._began:
      began, devices = self._began.pop(name)
      self._ended += (self._clock() - began) * devices

  def total(self) -> float:
    """Return the device-seconds of all commands so far."""
    now = self._clock()
    running = ((now - began) * n for began, n in self._began.values())
    return self._ended + math.fsum(running)


@dataclasses.dataclass
class _Deaths:
  """Counts how often a command was killed by a signal or lost its machine."""

  kills: int = 0
  losses: int = 0


class Pool:
  """Runs up to `workers` commands at a time, in order of submission.

  The cost of a call does not grow with the number of waiting or ended commands.
  """

  def __init__(self, engine: Engine, workers: int, meter: Meter | None = None):
    """Create an empty pool.

    Args:
      engine: Starts the commands.
      workers: Largest number of commands that run at a time.
      meter: Counts the device-seconds of commands that have their own devices.
    """
    self._engine, self._workers = engine, workers
    self._meter = meter or Meter()
    self._queue: collections.OrderedDict[str, Command]
    self._queue = collections.OrderedDict()
    self._running: dict[str, tuple[Command, Process]] = {}
    # Seconds at which a command ended whose result is not visible yet.
    self._ended: dict[str, float] = {}
    self._failed: dict[str, str] = {}
    self._deaths: dict[str, _Deaths] = {}

  @property
  def elsewhere(self) -> bool:
    """True if commands may run on machines with other disks."""
    return self._engine.elsewhere

  @property
  def running(self) -> tuple[str, ...]:
    """Names of the commands that are running."""
    return tuple(self._running)

  @property
  def pending(self) -> frozenset[str]:
    """Names of the commands that run or wait."""
    return frozenset((*self._running, *self._queue))

  @property
  def deaths(self) -> tuple[int, int]:
    """Number of ends by a signal, and of ends by the loss of a machine."""
    found = self._deaths.values()
    return sum(d.kills for d in found), sum(d.losses for d in found)

  def submit(self, command: Command) -> None:
    """Queue a command whose result is missing; start it if a worker is free."""
    self._failed.pop(command.name, None)
    self._queue[command.name] = command
    self._fill()

  def advance(self) -> None:
    """Handle commands that have ended, and start others in their place."""
    for command, process in list(self._running.values()):
      status = process.poll()
      if process.has_devices and command.name not in self._ended:
        self._meter.begin(command.name, self._engine.devices)
      if status is not None:
        self._end(command, status)
    self._fill()

  def check(self, name: str) -> None:
    """Raise an error if a command has failed for good.

    Raises:
      CommandError: With the reason. It is raised once; afterwards the command
        may be submitted again.
    """
    if name in self._failed:
      raise CommandError(self._failed.pop(name))

  def finish(self, name: str) -> None:
    """Wait for the end of a command whose result is on disk; free its worker.

    The command may still be saving files that nothing needs.
    """
    if name in self._running:
      _, process = self._running[name]
      process.wait()
      self._leave(name)

  def cancel(self, name: str) -> None:
    """End a command that is no longer wanted."""
    if name in self._running:
      _, process = self._running[name]
      process.kill()
      process.wait()
      self._leave(name)
    self._queue.pop(name, None)
    self._failed.pop(name, None)

  def close(self) -> None:
    """End all commands; they save first, so that a new start continues them."""
    self._queue.clear()
    for _, process in self._running.values():
      process.terminate()
    for name, (_, process) in list(self._running.items()):
      process.wait()
      self._leave(name)
    kills, losses = self.deaths
    if kills or losses:
      output.say(
          f'machines that were lost or stopped: {losses}; workers that were'
          f' ended by a signal: {kills}'
      )
    self._engine.close()

  def _fill(self) -> None:
    while self._queue and len(self._running) < self._workers:
      _, command = self._queue.popitem(last=False)
      process = self._engine.start(command)
      self._running[command.name] = command, process
      output.say(f'{command.name}: {process.place}, log {command.log}')

  def _leave(self, name: str) -> None:
    del self._running[name]
    self._ended.pop(name, None)
    self._meter.end(name)

  def _end(self, command: Command, status: int) -> None:
    """Finish, repeat or fail a command that has ended."""
    name = command.name
    if command.is_done():
      self._leave(name)
      return
    if status == 0:
      self._meter.end(name)
      ended = self._ended.setdefault(name, time.monotonic())
      if time.monotonic() < ended + _LATE_SECONDS:
        return
    self._leave(name)
    deaths = self._deaths.setdefault(name, _Deaths())
    if status in (LOST, *preemption.STATUSES.values()):
      deaths.losses += 1
      times = numerals.counted(deaths.losses, 'time')
      what = f'it lost its machine, or was asked to stop, {times}'
      again = deaths.losses < LOSSES
    elif status < 0:
      deaths.kills += 1
      times = numerals.counted(deaths.kills, 'time')
      what = f'it was ended by a signal {times}'
      again = deaths.kills < KILLS
    else:  # The command would fail again, so the user has to act.
      self._failed[name] = (
          f'{name} ended with exit status {status}: {_why(command.log)};'
          f' see {command.log}. The same command tries it again'
      )
      return
    if again:
      output.say(f'{name}: {what}; it goes on from what it has saved')
      self._queue[name] = command
      self._queue.move_to_end(name, last=False)
      return
    self._failed[name] = (
        f'{name}: {what} (status {status}); see {command.log}. If memory is'
        ' short, use fewer --workers; the same command continues it'
    )


def _why(path: pathlib.Path) -> str:
  """Return the last error in a log, unwrapped, or else its last line."""
  text = path.read_text(errors='replace') if path.exists() else ''
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  if not lines:
    return 'no output'
  begins = [n for n, line in enumerate(lines) if line.startswith('error: ')]
  return ' '.join(lines[begins[-1] if begins else -1 :])[:_MOST_CHARS]
