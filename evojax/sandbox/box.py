"""The box: runs untrusted code, and returns its output and how it ended.

    with box.Box('program', tier='T0') as b:
      result = b.run('print(input()[::-1])', b'abc')

Nothing that matters for a grade is decided inside the box: it only returns
bytes, of limited number, and the exit code. Answer keys stay on this side. A
run that fails for a reason outside the program is repeated; if that does not
help, its status is 'infra_error', which says nothing about the program.
"""

from collections.abc import Collection, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from evojax.runtime import waits
from evojax.sandbox import image
from evojax.sandbox import landlock
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import tree
from evojax.sandbox import wire

Entry = wire.Entry  # The code that a 'pure' box calls.
PROFILES = ('program', 'repository', 'pure')
Data = bytes | bytearray | memoryview

_SUPERVISOR = pathlib.Path(__file__).with_name('supervisor.py')
_ROOT = _SUPERVISOR.parent.parent.parent
_START_SECONDS = 60.0  # Enough for a busy machine to import NumPy.
_STOP_SECONDS = 10.0
# A zygote inherits no other variable: no token, no proxy, no PYTHONPATH.
_INHERITED = ('LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH')
_ENVIRONMENT = {
    'GIT_CONFIG_NOSYSTEM': '1',  # The box has no /etc.
    'LANG': 'C.UTF-8',
    'LC_ALL': 'C.UTF-8',
    'PATH': '/usr/local/bin:/usr/bin:/bin',
    'PYTHONDONTWRITEBYTECODE': '1',
    'PYTHONHASHSEED': '0',  # Sets of strings have the same order in each run.
    # A process of several threads cannot enter a user namespace.
    'OMP_NUM_THREADS': '1',
    'OPENBLAS_NUM_THREADS': '1',
    'MKL_NUM_THREADS': '1',
}
_USERS = itertools.count()
# Finds programs that mention NumPy: they start with NumPy in memory. Others can
# import it too, which takes longer.
_NUMPY = re.compile(r'\bnumpy\b')


class InfraError(Exception):
  """The box failed, not the code that ran in it."""


class Box:
  """Slots that run untrusted code, one run at a time each; thread-safe.

  Attributes:
    tier: 'T0', 'T1' or 'T2'.
    slots: Number of concurrent runs.
    limits: Limits of a run for which none are given.
    own_user: Whether each slot has its own user. That needs root and, in the
      host's tree, a standard library that every user may read.
  """

  def __init__(
      self,
      profile: str = 'program',
      *,
      tier: str,
      slots: int = 1,
      limits: limits_lib.Limits | None = None,
      entry: Entry | None = None,
      readable: Sequence[str] = (),
      environment: Mapping[str, str] | None = None,
      grace_seconds: float = 20.0,
      attempts: int = 3,
      without: Collection[str] = (),
  ):
    """Check the arguments; no process is started yet.

    Args:
      profile: 'program' (one process, files in a directory of its own),
        'repository' (processes in a tree that stays) or 'pure' (no file at
        all).
      tier: The tier that this machine supports, see `probe.choose`.
      slots: Number of concurrent runs.
      limits: Limits of every run for which none are given.
      entry: The entry that a 'pure' box calls, and a 'repository' box may call;
        None for a 'program'.
      readable: Paths that code in the box may read besides the interpreter's.
      environment: Additional environment variables for it.
      grace_seconds: How late a zygote may answer before it is ended.
      attempts: Number of attempts before a run is an 'infra_error'.
      without: Layers to leave out; for tests, which show what each one stops.

    Raises:
      ValueError: If an argument is invalid, or two are inconsistent.
    """
    if profile not in PROFILES:
      raise ValueError(f'{profile=} is not one of {PROFILES}')
    if tier not in limits_lib.TIERS:
      raise ValueError(f'{tier=} is not one of {tuple(limits_lib.TIERS)}')
    if profile == ('pure' if entry is None else 'program'):
      raise ValueError(
          f'{entry=}: the profile pure needs an entry, repository may have one,'
          ' and program has none'
      )
    if profile == 'repository' and slots != 1:
      raise ValueError(f'{slots=}: there is one tree in a box for repositories')
    if slots < 1 or attempts < 1:
      raise ValueError(f'{slots=} and {attempts=} must be at least 1')
    if set(without) - set(limits_lib.LAYERS):
      raise ValueError(f'{without=}: the layers are {limits_lib.LAYERS}')
    self.tier, self.slots = tier, slots
    self.limits = limits or limits_lib.Limits()
    self._grace_seconds, self._attempts = grace_seconds, attempts
    self._config = wire.Config(
        profile,
        sorted(limits_lib.TIERS[tier] - frozenset(without)),
        *self.limits.of_the_box,
        entry=entry,
        readable=readable,
        environment=dict(environment or {}),
        landlock=landlock.version(),
    )
    if profile != 'pure':
      self._config = self._config._replace(image=image.paths())
    if profile == 'repository':  # Links to the packages lie beside the tree.
      files = self._config.files + len(self._config.image) + 1
      self._config = self._config._replace(files=files)
    self.own_user = self._has_own_user()
    # The most recently used slot comes first, since its pages are warm.
    self._free: queue.LifoQueue[tuple[_Slot, _Slot]] = queue.LifoQueue()
    self._all = []  # Each slot, with its twin that has imported NumPy.
    for _ in range(slots):
      self._all += [self._slot(), self._slot(image.NUMPY)]
      self._free.put(tuple(self._all[-2:]))

  def __enter__(self) -> 'Box':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """End every zygote; nothing of the box remains."""
    for slot in self._all:
      slot.stop()

  def start(self) -> None:
    """Start the zygotes now instead of at their first runs.

    Those that import NumPy still start when a program needs them.

    Raises:
      InfraError: If one does not start.
    """
    for slot in self._all[::2]:
      slot.start()

  def run(
      self,
      program: str,
      stdin: Data = b'',
      *,
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    """Run a Python source; for 'pure', call the entry with it.

    Args:
      program: Python source.
      stdin: The program's input; for 'pure', the entry's data.
      limits: Limits of this run; None takes the box's. `disk_bytes`, `files`
        and `processes` must equal the box's.

    Returns:
      How it ended and its output. Nothing that a program does raises here.

    Raises:
      ValueError: If a limit that holds for the whole box differs.
    """
    return self.request({'program': program}, stdin, limits)

  def request(
      self,
      fields: Mapping[str, Any],
      stdin: Data = b'',
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    """Run a task of any kind; `run` and `repository` list the kinds."""
    limits = limits or self.limits
    if limits.of_the_box != self.limits.of_the_box:
      raise ValueError(
          f'disk_bytes, files and processes are {limits.of_the_box}, but'
          f' {self.limits.of_the_box} in this box; they hold for all its runs'
      )
    pair = self._free.get()
    is_program = self._config.profile == 'program'
    slot = pair[is_program and bool(_NUMPY.search(fields['program']))]
    try:
      for attempt in range(1, self._attempts + 1):
        try:
          result = self._once(slot, fields, stdin, limits)
          return dataclasses.replace(result, attempts=attempt)
        except InfraError as error:
          message = str(error)
          slot.stop()
    except BaseException:  # After Ctrl-C, the answer may still arrive.
      slot.stop()
      raise
    finally:
      self._free.put(pair)
      waits.advance()
    return limits_lib.Result(
        'infra_error', self.tier, message=message, attempts=self._attempts
    )

  def _slot(self, preload: Sequence[str] = ()) -> '_Slot':
    user = _free_user() if self.own_user else None
    return _Slot(self._config._replace(user=user, preload=preload))

  def _has_own_user(self) -> bool:
    config, library = self._config, pathlib.Path(os.__file__).parent
    return (
        'uid' in config.layers
        and os.geteuid() == 0
        and (
            config.profile == 'pure'
            or config.own_root
            or all(_is_public(path) for path in (library, *library.parents))
        )
    )

  def _once(
      self,
      slot: '_Slot',
      fields: Mapping[str, Any],
      stdin: Data,
      limits: limits_lib.Limits,
  ) -> limits_lib.Result:
    """Run a task once.

    Raises:
      InfraError: If the attempt says nothing about the program.
    """
    if self._config.profile == 'repository' and slot.has_ended:
      raise InfraError('the zygote has ended, and its tree with it')
    slot.start()
    # The task is passed in a file, without the zygote reading it: the next run
    # is a copy of the zygote and could find the task in its memory.
    task = json.dumps(dict(fields)).encode()
    try:
      with contextlib.ExitStack() as stack:
        files = []
        for data in (stdin, None, None, task):
          files.append(_memory_file(data))
          stack.callback(os.close, files[-1])
        clear = fields.get('operation') == 'clear'
        answer = slot.exchange(limits, files, self._grace_seconds, clear)
        return self._result(answer, files[1:3], limits)
    except OSError as error:  # Out of memory or descriptors.
      raise InfraError(f'{error}') from error

  def _result(
      self, answer: wire.Answer, files: Sequence[int], limits: limits_lib.Limits
  ) -> limits_lib.Result:
    """Return the result of a run, from its end and its output.

    Raises:
      InfraError: If these say nothing about the program.
    """
    killed, code, wall, cpu, waited = answer[1:]
    program = self._config.profile == 'program'
    outputs = [os.pread(file, limits.output_bytes, 0) for file in files]
    # A program's stderr is cut; a long one is not an error.
    too_long = any(
        os.fstat(file).st_size > limits.output_bytes
        for file in (files[:1] if program else files)
    )
    status, message, contended = 'ok', '', False
    if killed == 'timeout':
      # Scheduling on an idle machine takes less than a tenth of the time. A
      # process that waits for a core is running or ready; a sleeping process is
      # neither.
      idle = max(0.0, wall - cpu - waited)
      contended = waited > 0.1 * limits.wall_seconds and idle < waited
      status = 'timeout'
      message = f'{wall:.2f} s of wall time, {cpu:.2f} s of CPU time'
      if contended:
        message += f'; waited {waited:.2f} s for a core, the machine was busy'
    elif (
        killed == 'cpu_limit'
        or code == -signal.SIGXCPU
        or (cpu > limits.cpu_seconds and code < 0)
    ):
      status, message = 'cpu_limit', f'{cpu:.2f} s of CPU time'
    elif killed == 'disk_limit':
      size, files, _ = limits.of_the_box
      status = 'disk_limit'
      message = f'more than {size} bytes or {files} files, or a closed folder'
    elif killed == 'crowded':
      status = 'error'
      message = f'more than {limits.processes} threads at a time'
    elif too_long or code == -signal.SIGXFSZ:
      status = 'output_limit'
      size = limits.output_bytes
      message = f'more than {size} bytes of output, or a file too large'
    # A program cannot send itself this signal; the kernel sends it when memory
    # runs out.
    elif (
        code == -signal.SIGKILL
        and 'seccomp' in self._config.layers
        and self._config.profile != 'repository'
    ):
      raise InfraError('killed from outside of the box: out of memory?')
    elif code:
      last = outputs[1].rstrip().rpartition(b'\n')[2][:200]
      message = last.decode(errors='replace') or f'exit code {code}'
      # The whole name is compared, as a program may define MemoryErrorOfMine.
      kind = message.partition(':')[0].rpartition('.')[2]
      no_memory = kind in ('MemoryError', '_ArrayMemoryError')
      status = 'memory_limit' if no_memory else 'error'
      if code < 0:
        message = f'ended by signal {-code}'
    return limits_lib.Result(
        status, self.tier, *outputs, code, wall, cpu, contended, message
    )


class _Slot:
  """One supervisor and its zygote, started on demand."""

  def __init__(self, config: wire.Config):
    self._config, self._lock = config, threading.RLock()
    self._process: subprocess.Popen[bytes] | None = None
    self._made = contextlib.ExitStack()  # Undoes what `start` did.

  def start(self) -> None:
    """Start the zygote if there is none.

    Raises:
      InfraError: If it does not start.
    """
    with self._lock:
      if self._process is not None and self._process.poll() is None:
        return
      self.stop()
      self._errors = self._made.enter_context(tempfile.TemporaryFile())
      try:
        self._start()
      except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        message = f'no zygote: {error}{self._complaint()}'
        self.stop()
        raise InfraError(message) from error

  @property
  def has_ended(self) -> bool:
    """Return whether a zygote has ended without being stopped."""
    with self._lock:
      return self._process is not None and self._process.poll() is not None

  def stop(self) -> None:
    """Hang up; the supervisor ends everything it started and cleans up."""
    with self._lock:
      self._made.close()
      self._process = None

  def _start(self) -> None:
    config = self._config
    environment = {k: os.environ[k] for k in _INHERITED if k in os.environ}
    if 'environment' not in config.layers:
      environment = dict(os.environ)
    # A box with its own tree has its directory there.
    if config.profile != 'pure' and not config.own_root:
      scratch = tempfile.mkdtemp(prefix='evojax-box-')
      self._made.callback(_remove, scratch)
      if config.user is not None:
        os.chown(scratch, config.user, config.user)
      config = config._replace(scratch=scratch)
    self._control, theirs = socket.socketpair()
    self._made.callback(self._control.close)
    self._control.settimeout(_START_SECONDS)
    with theirs:
      self._process = subprocess.Popen(
          # -S: neither .pth files nor packages of a user are read.
          [sys.executable, '-P', '-s', '-S', '-B', '-X', 'utf8',
           str(_SUPERVISOR), str(_ROOT)],
          stdin=theirs,
          stdout=subprocess.DEVNULL,
          stderr=self._errors,
          env={**environment, **_ENVIRONMENT},
          cwd=os.sep,
          close_fds='descriptors' in config.layers,
          # Ctrl-C in the terminal must not reach the box, whose owner ends it.
          start_new_session=True,
      )  # fmt: skip
    self._made.callback(_end, self._process, self._control)
    wire.send(self._control, config._asdict())
    message, _ = wire.receive(self._control)
    if not message['ready']:
      raise EOFError('it is not ready')

  def exchange(
      self,
      limits: limits_lib.Limits,
      files: Sequence[int],
      grace_seconds: float,
      clear: bool = False,
  ) -> wire.Answer:
    """Send a request and return its answer.

    Args:
      limits: Limits of the run.
      files: Descriptors for the child: stdin, stdout, stderr and the task.
      grace_seconds: How long after its limit a run may still be answered.
      clear: Whether the zygote clears the slot's directory after the run.

    Returns:
      The answer of the zygote.

    Raises:
      InfraError: If no answer to this request comes in time.
    """
    # A random name, since the next run could find a counter and continue it.
    name = os.urandom(8).hex()
    request = wire.Request(name, *limits.of_a_run, clear=clear)
    seconds = limits.wall_seconds + grace_seconds
    deadline = time.monotonic() + seconds
    self._control.settimeout(seconds)
    try:
      wire.send(self._control, request._asdict(), files)
      answer = wire.answer(wire.receive(self._control)[0])
      if time.monotonic() > deadline:
        raise TimeoutError
      if answer.run != request.run:
        raise ValueError('an answer to another run')
      return answer
    except TimeoutError:
      raise InfraError(
          f'the zygote did not answer within {seconds:g} s: it is stopped, or'
          ' the machine is too busy'
      ) from None
    except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
      message = f'the zygote is gone: {error}{self._complaint()}'
      raise InfraError(message) from error

  def _complaint(self) -> str:
    """Return the last part of the zygote's stderr."""
    self._errors.seek(0)
    text = self._errors.read()[-500:].decode(errors='replace').strip()
    return f'; it said: {text}' if text else ''


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
  """Hang up on a supervisor; kill it if it does not clean up and end."""
  control.close()
  try:
    process.send_signal(signal.SIGCONT)
    process.wait(_STOP_SECONDS)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()


def _remove(folder: str) -> None:
  """Remove the directory of a supervisor that was killed before doing so."""
  if os.path.exists(folder):
    tree.clear(folder)
    os.rmdir(folder)


def _memory_file(data: Data | None) -> int:
  """Return a descriptor of a nameless file in memory.

  Args:
    data: Content of a file to read; None gives an empty file to write.
  """
  if hasattr(os, 'memfd_create'):
    file = os.memfd_create('box', os.MFD_CLOEXEC)
  else:
    with tempfile.TemporaryFile(buffering=0) as unnamed:
      file = os.dup(unnamed.fileno())
  try:
    rest = memoryview(data or b'').cast('B')
    while rest:
      rest = rest[os.write(file, rest) :]
    os.lseek(file, 0, os.SEEK_SET)
    if data is not None and hasattr(os, 'memfd_create'):
      # Read-only, so that code in the box cannot change its input.
      flags = os.O_RDONLY | os.O_CLOEXEC
      file, writable = os.open(f'/proc/self/fd/{file}', flags), file
      os.close(writable)
  except BaseException:
    os.close(file)
    raise
  return file


def _free_user() -> int:
  """Return a user id that nothing else uses, for one slot of this process.

  The kernel counts processes per user, so two slots must not share one.
  """
  top, count = 65534, 60000
  try:
    with open('/proc/self/uid_map') as file:
      ranges = [tuple(map(int, line.split())) for line in file]
    inside, _, count = max(ranges, key=lambda r: r[2])
    top = min(inside + count, (1 << 31) - 2)
  except (OSError, ValueError):
    pass
  step = os.getpid() << 8 | next(_USERS) & 0xFF
  return top - 2 - step % max(1, min(count, 1 << 30) // 2)


def _is_public(folder: pathlib.Path) -> bool:
  """Return whether every user may read a directory and reach it."""
  return folder.stat().st_mode & 0o005 == 0o005
