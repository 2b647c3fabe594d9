"""A zygote's watch over one run: its time, its threads, its directory."""

import math
import os
import select
import time
from typing import NamedTuple

from evojax.sandbox import disk
from evojax.sandbox import processes
from evojax.sandbox import wire

_WATCH_SECONDS = 0.01  # Time between checks of what the kernel does not limit.
# More bytes than a run writes in a second. The next check comes before the room
# that is left can be filled, to within a millisecond.
_BYTES_PER_SECOND = 4 << 30
_HANG_SECONDS = 5.0  # Even without a clock, a run ends so long after its limit.


class Usage(NamedTuple):
  """Clocks right before a run, from which its own use is counted."""

  start: float  # time.monotonic().
  process: float  # CPU seconds of the forked child.
  children: float  # CPU seconds of all children reaped before.


class Watch:
  """Waits for the runs of a slot and finds those that break a limit."""

  def __init__(self, config: wire.Config, proc: int | None):
    """Set up the watch of a slot.

    Args:
      config: Setup of the slot.
      proc: A descriptor of /proc of the host; None on other systems.
    """
    self._config, self._proc, layers = config, proc, config.layers
    self._clock = 'clock' in layers
    # Nothing else limits a directory on a host disk.
    self._disk = None
    if config.scratch and 'quota' in layers and 'namespaces' not in layers:
      quota = config.disk_bytes, config.files
      self._disk = disk.Disk(config.scratch, *quota, proc)
    # Needed if the kernel's count includes other threads of the same user.
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
      Why it should be killed ('' if it ended by itself), and the seconds that
      it waited for a core used by other processes.
    """
    wall, cpu = request.wall_seconds, request.cpu_seconds
    if not self._clock:  # Even then, nothing may hang for ever.
      wall, cpu = wall + _HANG_SECONDS, math.inf
    poll = select.poll()
    exited, room = None, self._config.disk_bytes
    if hasattr(os, 'pidfd_open'):
      exited = os.pidfd_open(process)
      poll.register(exited, select.POLLIN)
    try:
      while True:
        used = processes.cpu_seconds(process) - before.process
        left = min(wall - (time.monotonic() - before.start), cpu - used)
        if left <= 0:
          break
        if self._disk or self._threads or exited is None:
          left = min(left, _WATCH_SECONDS)
        if self._disk:
          left = min(left, room / _BYTES_PER_SECOND)
        # One extra millisecond, because the kernel's clocks tick.
        ended = poll.poll(left * 1000 + 1) or processes.has_exited(process)
        if self._disk:
          room = self._disk.room(running=not ended)
          if room < 0:
            return 'disk_limit', 0.0
        if ended:
          return '', 0.0
        if self._threads and self._is_crowded(process):
          return 'crowded', 0.0
    finally:
      if exited is not None:
        os.close(exited)
    # It may have ended while this process itself waited for a core.
    if processes.has_exited(process):
      return '', 0.0
    waited = self._waited_seconds(processes.cpu_seconds(process), before)
    return 'cpu_limit' if used >= cpu else 'timeout', waited

  def _is_crowded(self, process: int) -> bool:
    """Return whether a process has more threads than allowed."""
    try:
      folder = os.stat(f'{process}/task', dir_fd=self._proc)
    except OSError:  # It has ended.
      return False
    return folder.st_nlink - 2 > self._config.processes

  def _waited_seconds(self, used: float, before: Usage) -> float:
    """Return the longest time that a thread was ready while strangers ran.

    Waiting for each other does not count, neither for threads nor for
    processes: otherwise a program with enough of them would never be late.
    While a thread waits, its core runs either another thread of the same run,
    for at most the rest of `used`, or a stranger.

    Args:
      used: CPU seconds of the process, including ended threads.
      before: The clocks right before the run.
    """
    most = 0.0
    try:
      tasks = list(processes.tasks_below(self._proc))
      if self._config.profile == 'repository':
        used = processes.children_seconds() - before.children
        used += sum(map(self._spent, {process for process, _ in tasks}))
      for process, task in tasks:
        text = processes.read(self._proc, f'{process}/task/{task}/schedstat')
        ran, waited = (int(n) / 1e9 for n in text.split()[:2])
        most = max(most, waited - max(0.0, used - ran))
    except (OSError, IndexError, TypeError, ValueError):
      pass  # This kernel keeps no such statistics.
    return most

  def _spent(self, process: str) -> float:
    """Return the CPU seconds of a process and of the children it has reaped."""
    # The fields come after the name in parentheses, which may hold anything.
    text = processes.read(self._proc, f'{process}/stat')
    fields = text.rpartition(')')[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf('SC_CLK_TCK')
