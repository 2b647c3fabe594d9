"""A zygote's watch over one run: its time, its threads, its directory."""

from collections.abc import Iterator
import errno
import functools
import math
import os
import select
import time
from typing import NamedTuple

from evojax.sandbox import processes
from evojax.sandbox import wire

_WATCH_SECONDS = 0.01  # Between two looks at what the kernel does not limit.
_HANG_SECONDS = 5.0  # A run ends so long after its limit without a clock too.


class Usage(NamedTuple):
  """Clocks right before a run, which its own use counts from."""

  start: float  # time.monotonic().
  process: float  # CPU seconds of the forked child.
  children: float  # CPU seconds of all children that were reaped before.


class Watch:
  """Waits for the runs of a slot and finds those that break a limit."""

  def __init__(self, config: wire.Config, proc: int | None):
    """Set up the watch of a slot.

    Args:
      config: The slot's.
      proc: A descriptor of /proc of the host; None on other systems.
    """
    self._config, self._proc, layers = config, proc, config.layers
    self._clock = 'clock' in layers
    # A directory on a disk of the host has no quota but this.
    on_disk = 'quota' in layers and 'namespaces' not in layers
    self._scratch = config.scratch if on_disk else None
    # The kernel counts the threads of a user who is also somebody else.
    self._threads = (
        config.profile == 'program'
        and not config.counted
        and {'seccomp', 'rlimits'} <= set(layers)
    )

  def wait(
      self, process: int, request: wire.Request, before: Usage
  ) -> tuple[str, float]:
    """Wait until a run has ended or breaks a limit.

    Returns:
      Why it is to be killed ('' if it has ended by itself), and the seconds
      that it had to wait for a core because strangers had it.
    """
    wall, cpu = request.wall_seconds, request.cpu_seconds
    if not self._clock:  # Nothing hangs for ever all the same.
      wall, cpu = wall + _HANG_SECONDS, math.inf
    poll = select.poll()
    exited = None
    if hasattr(os, 'pidfd_open'):
      exited = os.pidfd_open(process)
      poll.register(exited, select.POLLIN)
    try:
      while True:
        used = processes.cpu_seconds(process) - before.process
        left = min(wall - (time.monotonic() - before.start), cpu - used)
        if left <= 0:
          break
        if self._scratch or self._threads or exited is None:
          left = min(left, _WATCH_SECONDS)
        # One millisecond more, because the kernel's clocks tick.
        if poll.poll(left * 1000 + 1) or processes.has_exited(process):
          return '', 0.0
        if self._scratch and self._is_over_quota():
          return 'disk_limit', 0.0
        if self._threads and self._is_crowded(process):
          return 'crowded', 0.0
    finally:
      if exited is not None:
        os.close(exited)
    # It may have ended while this process had to wait for a core itself.
    if processes.has_exited(process):
      return '', 0.0
    waited = self._waited_seconds(processes.cpu_seconds(process), before)
    return 'cpu_limit' if used >= cpu else 'timeout', waited

  def _is_over_quota(self) -> bool:
    """Tell if the directory is too full, or too deep to be looked through."""
    size = count = 0
    folders = [self._scratch]
    while folders:
      folder = folders.pop()
      try:
        with os.scandir(folder) as entries:
          for entry in entries:
            size += entry.stat(follow_symlinks=False).st_blocks * 512
            count += 1
            if entry.is_dir(follow_symlinks=False):
              folders.append(entry.path)
      except OSError as error:
        # Other errors mean that it was removed meanwhile, or closed to us.
        if error.errno == errno.ENAMETOOLONG:
          return True
      if size > self._config.disk_bytes or count > self._config.files:
        return True
    return False

  def _is_crowded(self, process: int) -> bool:
    """Tell if a process has more threads than it may have."""
    try:
      folder = os.stat(f'{process}/task', dir_fd=self._proc)
    except OSError:  # It has ended.
      return False
    return folder.st_nlink - 2 > self._config.processes

  def _waited_seconds(self, used: float, before: Usage) -> float:
    """Return the longest time that a thread was ready and strangers ran.

    Waiting for each other does not count, neither of threads nor of processes:
    a program that has enough of them would never be late. While one waits, its
    core runs another one of the same run, for no longer than the rest of
    `used`, or a stranger.

    Args:
      used: CPU seconds of the process, those of ended threads included.
      before: The clocks right before the run.
    """
    most = 0.0
    try:
      tasks = list(self._tasks_below())
      if self._config.profile == 'repository':
        used = processes.children_seconds() - before.children
        used += sum(map(self._spent, {process for process, _ in tasks}))
      for process, task in tasks:
        text = self._read(f'{process}/task/{task}/schedstat')
        ran, waited = (int(n) / 1e9 for n in text.split()[:2])
        most = max(most, waited - max(0.0, used - ran))
    except (OSError, IndexError, TypeError, ValueError):
      pass  # This kernel keeps no such statistics.
    return most

  def _tasks_below(self) -> Iterator[tuple[str, str]]:
    """Yield (process, thread) of all descendants, as /proc names them."""
    parents = [os.readlink('self', dir_fd=self._proc)]
    while parents:
      parent = parents.pop()
      for task in self._tasks(parent):
        children = self._read(f'{parent}/task/{task}/children').split()
        parents += children
        for child in children:
          yield from ((child, thread) for thread in self._tasks(child))

  def _tasks(self, process: str) -> list[str]:
    folder = os.open(f'{process}/task', os.O_DIRECTORY, dir_fd=self._proc)
    try:
      return os.listdir(folder)
    finally:
      os.close(folder)

  def _spent(self, process: str) -> float:
    """Return the CPU seconds of a process and of the children it has reaped."""
    # The fields come after the name in parentheses, which may hold anything.
    fields = self._read(f'{process}/stat').rpartition(')')[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf('SC_CLK_TCK')

  def _read(self, path: str) -> str:
    opener = functools.partial(os.open, dir_fd=self._proc)
    with open(path, opener=opener) as file:
      return file.read()
