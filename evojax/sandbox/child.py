"""A forked child: gives up its rights, receives one request and runs it.

A `Child` is prepared once per slot, in the zygote, because a freshly forked
process pays for every page that it touches.
"""

from collections.abc import Callable, Mapping
import json
import math
import mmap
import os
import resource
import signal
import socket
import sys
from typing import Any

from evojax.sandbox import jail
from evojax.sandbox import landlock
from evojax.sandbox import linux
from evojax.sandbox import programs
from evojax.sandbox import seccomp
from evojax.sandbox import tree
from evojax.sandbox import wire

_STACK_BYTES = 64 << 20
_OPEN_FILES = {'program': 64, 'pure': 16, 'repository': 512}
_FAILED = 125  # Exit code of a child that could not run its task.


class Child:
  """The code of a fork of the zygote."""

  def __init__(
      self,
      config: wire.Config,
      entry: Mapping[str, Any] | None,
      base_bytes: int,
      proc: int | None,
  ):
    """Prepare everything that forks have in common; limit this process too.

    Args:
      config: Setup of the slot.
      entry: Names that the entry of a 'pure' slot defines.
      base_bytes: Address space of the interpreter, which does not count.
      proc: A descriptor of /proc of the host; None on other systems.
    """
    self._config, self._entry = config, entry
    self._base_bytes, self._proc = base_bytes, proc
    self._steps: list[Callable[[], int]] = []
    if sys.platform == 'linux':
      die_with_parent = linux.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
      self._steps.append(linux.prepare('prctl', *die_with_parent))
    if 'landlock' in config.layers:
      rules = landlock.rule_set(jail.landlock_rules(config), config.landlock)
      self._steps.append(landlock.prepare(rules))
    self._seccomp = None
    if 'seccomp' in config.layers:
      # Landlock protects no files of the same user; without it none are.
      own_user = config.counted or 'landlock' not in config.layers
      calls = seccomp.rules(
          config.profile,
          own_user=own_user,
          namespaces='namespaces' in config.layers,
          version=config.landlock,
      )
      self._seccomp = seccomp.prepare(seccomp.assemble(calls))
    if 'rlimits' in config.layers:
      # A limit of 1 byte also prevents dumps. At 0, Linux would still start a
      # host program that takes dumps, see core(5).
      _set_limit('RLIMIT_CORE', 1 if sys.platform == 'linux' else 0)
      _set_limit('RLIMIT_STACK', _STACK_BYTES)
      _set_limit('RLIMIT_NOFILE', _OPEN_FILES[config.profile])
      _set_limit('RLIMIT_MEMLOCK', 0)
      _set_limit('RLIMIT_MSGQUEUE', 0)
    # Modules that a program must not find, or it may take them for installed.
    self._ours = [n for n in sys.modules if n.split('.')[0] == 'evojax']

  def main(self, end: socket.socket) -> None:
    """Give up all rights, then run the request. Never returns."""
    code = _FAILED
    try:
      self._go_first()
      for step in self._steps:
        step()
      try:
        request, descriptors = wire.receive(end)
      except (EOFError, ConnectionResetError):
        os._exit(0)
      *streams, task = descriptors
      for number, stream in enumerate(streams):
        os.dup2(stream, number)
      if 'rlimits' in self._config.layers:
        self._limit(wire.Request(**request))
      with open(task, 'rb') as file:
        run = self._runner(json.loads(file.read()))
      if 'descriptors' in self._config.layers:
        _close_from(3)
      # Last, because the previous steps need calls that the filter refuses.
      if self._seccomp is not None:
        self._seccomp()
      code = run()
    except BaseException:
      code = programs.print_error(None)
    finally:
      os._exit(code)

  def _go_first(self) -> None:
    """Make the kernel end a run first if the machine runs out of memory."""
    try:
      score = os.open('self/oom_score_adj', os.O_WRONLY, dir_fd=self._proc)
      os.write(score, b'1000')
      os.close(score)
    except OSError:
      pass  # Not every user may write it, or there is no /proc.

  def _limit(self, request: wire.Request) -> None:
    """Set the limits that may differ between runs."""
    config = self._config
    # A backstop: the zygote's own clock is finer than whole seconds.
    _set_limit('RLIMIT_CPU', math.ceil(request.cpu_seconds) + 1)
    _set_limit('RLIMIT_FSIZE', max(request.output_bytes + 1, config.disk_bytes))
    _set_limit('RLIMIT_AS', self._base_bytes + request.memory_bytes)
    if config.counted or config.profile == 'repository':
      # The zygote and this process add two.
      _set_limit('RLIMIT_NPROC', config.processes + request.tasks + 2)

  def _runner(self, task: dict[str, Any]) -> Callable[[], int]:
    """Return the function to run after the last right is given up."""
    if 'command' in task:
      command = task['command']
      folder = os.path.join(self._config.scratch, 'tree', task['folder'])
      environment = dict(os.environ, **task['environment'])
      return lambda: programs.execute(command, folder, environment)
    if 'operation' in task:
      operation = tree.OPERATIONS[task['operation']]
      return lambda: operation(self._config.scratch, task)
    source = task['program']
    if self._config.profile != 'pure':
      for name in self._ours:
        sys.modules.pop(name, None)
    if self._entry is None:
      return lambda: programs.run(source)
    call, size = self._entry['call'], os.fstat(0).st_size
    data = mmap.mmap(0, size, prot=mmap.PROT_READ) if size else b''
    if self._config.profile == 'repository':
      folder = os.path.join(self._config.scratch, 'tree', task['folder'])
      return lambda: programs.call(call, source, memoryview(data), folder)
    return lambda: programs.call(call, source, memoryview(data))


def _set_limit(name: str, value: int) -> None:
  """Set the soft and the hard limit, at most to the current hard limit."""
  kind = getattr(resource, name, None)
  if kind is None:
    return
  hard = resource.getrlimit(kind)[1]
  if hard != resource.RLIM_INFINITY:
    value = min(value, hard)
  try:
    resource.setrlimit(kind, (value, value))
  except (ValueError, OSError):  # macOS does not limit address space.
    if sys.platform == 'linux':
      raise


def _close_from(first: int) -> None:
  if sys.platform == 'linux':
    linux.call('close_range', first, 0xFFFFFFFF, 0)
  else:
    os.closerange(first, 1 << 12)
