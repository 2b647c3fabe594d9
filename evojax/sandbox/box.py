"""The box: runs untrusted code and returns what it wrote, and how it ended.

    with box.Box('program', tier='T0') as b:
      result = b.run('print(input()[::-1])', b'abc')

Nothing that is judged is decided in there: what comes back is bytes, at most
as many as allowed, and the exit code. Answer keys stay on this side. A run that
failed for a reason outside of the program is tried again, and is an
'infra_error' in the end: no grade.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, IO

from evojax.sandbox import limits as limits_lib
from evojax.sandbox import tree
from evojax.sandbox import wire

PROFILES = ('program', 'repository', 'pure')
Data = bytes | bytearray | memoryview

_ZYGOTE = pathlib.Path(__file__).with_name('zygote.py')
_ROOT = _ZYGOTE.parent.parent.parent
_START_SECONDS = 60.0  # A busy machine that imports NumPy.
_STOP_SECONDS = 10.0
# All that a zygote gets of the environment: no token, no proxy, no PYTHONPATH.
_INHERITED = ('LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH')
_ENVIRONMENT = {
    'GIT_CONFIG_NOSYSTEM': '1',  # There is no /etc to look into.
    'LANG': 'C.UTF-8',
    'LC_ALL': 'C.UTF-8',
    'PATH': '/usr/local/bin:/usr/bin:/bin',
    'PYTHONDONTWRITEBYTECODE': '1',
    'PYTHONHASHSEED': '0',  # The order of a set of strings is the same again.
    # A thread more than one, and a user namespace cannot be entered.
    'OMP_NUM_THREADS': '1',
    'OPENBLAS_NUM_THREADS': '1',
    'MKL_NUM_THREADS': '1',
}
_USERS = itertools.count()


class InfraError(Exception):
  """The box failed, not what ran in it."""


@dataclasses.dataclass(frozen=True)
class Job:
  """One run: see `Box.run`."""

  program: str
  stdin: Data = b''
  limits: limits_lib.Limits | None = None  # None: the box's.


class Box:
  """Slots that untrusted code runs in, a run at a time each; thread-safe.

  Attributes:
    tier: 'T0', 'T1' or 'T2'.
    layers: Of `limits.LAYERS`, those that hold here.
    slots: Runs at the same time.
    limits: Of a run that names none.
    own_user: Whether each slot is a user of its own: only root can do that, and
      in the host's tree only where every user may read the library.
  """

  def __init__(
      self,
      profile: str = 'program',
      *,
      tier: str,
      slots: int = 1,
      limits: limits_lib.Limits | None = None,
      entry: str | os.PathLike[str] | None = None,
      path: Sequence[str] = (),
      readable: Sequence[str] = (),
      environment: Mapping[str, str] | None = None,
      grace_seconds: float = 20.0,
      attempts: int = 3,
      without: Collection[str] = (),
  ):
    """Starts nothing yet.

    Args:
      profile: 'program' (one process, files in a directory of its own),
        'repository' (processes in a tree that stays) or 'pure' (no file at
        all).
      tier: What this machine holds, see `probe.choose`.
      slots: Runs at the same time.
      limits: Of every run that names none.
      entry: A Python file for 'pure'. It is run before the doors are shut and
        defines call(source: str, data: memoryview) -> bytes, which is called
        once per run in a fresh process, and optionally warm().
      path: Directories that the entry may import from, e.g. NumPy's.
      readable: Paths that code in the box may read besides the interpreter's.
      environment: More variables for it.
      grace_seconds: How late a zygote may be before it is ended.
      attempts: Runs of a program before an infra_error is one.
      without: Layers to leave out; for tests, which show what each one stops.

    Raises:
      ValueError: For what is not one of these.
    """
    if profile not in PROFILES:
      raise ValueError(f'{profile=} is not one of {PROFILES}')
    if tier not in limits_lib.TIERS:
      raise ValueError(f'{tier=} is not one of {tuple(limits_lib.TIERS)}')
    if (profile == 'pure') != (entry is not None):
      raise ValueError(f'{entry=}: an entry is what the pure profile calls')
    if profile == 'repository' and slots != 1:
      raise ValueError(f'{slots=}: there is one tree in a box for repositories')
    if slots < 1 or attempts < 1:
      raise ValueError(f'{slots=} and {attempts=} must be at least 1')
    if set(without) - set(limits_lib.LAYERS):
      raise ValueError(f'{without=}: the layers are {limits_lib.LAYERS}')
    self.profile, self.tier, self.slots = profile, tier, slots
    self.limits = limits or limits_lib.Limits()
    self.layers = limits_lib.TIERS[tier] - frozenset(without)
    self.own_user = self._has_own_user()
    self._entry, self._path = entry, tuple(path)
    self._readable, self._environment = tuple(readable), environment or {}
    self._grace_seconds, self._attempts = grace_seconds, attempts
    self._free: queue.LifoQueue[_Slot] = queue.LifoQueue()
    self._all = [_Slot(self._config(), self.layers) for _ in range(slots)]
    for slot in self._all:
      self._free.put(slot)

  def __enter__(self) -> 'Box':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends every zygote; nothing of the box is left."""
    for slot in self._all:
      slot.stop()

  def start(self) -> None:
    """Starts every zygote now instead of at its first run.

    Raises:
      InfraError: If one does not come up.
    """
    for slot in self._all:
      slot.start()

  def run(
      self,
      program: str,
      stdin: Data = b'',
      *,
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    """Runs a Python source; for 'pure', calls the entry with it.

    Args:
      program: Python source.
      stdin: What it reads; for 'pure', the entry's data.
      limits: None: the box's. Disk, files and processes must be the box's.

    Returns:
      What became of it; never raises for anything that the program does.

    Raises:
      ValueError: If the limits differ in what is fixed.
    """
    return self.request({'program': program}, stdin, limits)

  def map(self, jobs: Iterable[Job]) -> list[limits_lib.Result]:
    """Runs jobs on all slots; results in their order."""
    run = lambda job: self.run(job.program, job.stdin, limits=job.limits)
    with concurrent.futures.ThreadPoolExecutor(self.slots) as pool:
      return list(pool.map(run, jobs))

  def request(
      self,
      fields: Mapping[str, Any],
      stdin: Data = b'',
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    """A run of what a message asks for: see `run`, and `repository`."""
    limits = limits or self.limits
    if limits.of_the_box != self.limits.of_the_box:
      raise ValueError(
          f'disk_bytes, files and processes are {limits.of_the_box}, but'
          f' {self.limits.of_the_box} in this box; they hold for all its runs'
      )
    slot = self._free.get()
    try:
      for attempt in range(1, self._attempts + 1):
        try:
          result = self._once(slot, fields, stdin, limits)
        except InfraError as error:
          message = str(error)
          slot.stop()
        else:
          return dataclasses.replace(result, attempts=attempt)
    except BaseException:  # A Ctrl-C: its answer may still come.
      slot.stop()
      raise
    finally:
      self._free.put(slot)
    return limits_lib.Result(
        'infra_error', self.tier, message=message, attempts=self._attempts
    )

  def _config(self) -> dict[str, Any]:
    disk, files, processes = self.limits.of_the_box
    return {
        'profile': self.profile,
        'layers': sorted(self.layers),
        'disk_bytes': disk,
        'files': files,
        'processes': processes,
        'entry': None if self._entry is None else os.fspath(self._entry),
        'path': list(self._path),
        'readable': list(self._readable),
        'environment': dict(self._environment),
        'user': _free_user() if self.own_user else None,
    }

  def _has_own_user(self) -> bool:
    if 'uid' not in self.layers or os.geteuid() != 0:
      return False
    own_root = {'namespaces', 'root'} <= self.layers
    return (
        self.profile == 'pure'
        or own_root
        or _is_public(os.path.dirname(os.__file__))
    )

  def _once(
      self,
      slot: '_Slot',
      fields: Mapping[str, Any],
      stdin: Data,
      limits: limits_lib.Limits,
  ) -> limits_lib.Result:
    """One attempt.

    Raises:
      InfraError: If it says nothing about the program.
    """
    slot.start()
    files: list[int] = []
    try:
      # What is run goes past the zygote: the next run is a copy of it.
      task = json.dumps(dict(fields)).encode()
      for data in (stdin, None, None, task):
        files.append(_memory_file(data))
      answer = slot.exchange(
          {
              'wall': limits.wall_seconds,
              'cpu': limits.cpu_seconds,
              'memory': limits.memory_bytes,
              'output': limits.output_bytes,
          },
          files,
          limits.wall_seconds + self._grace_seconds,
      )
      return _judge(answer, files[1], files[2], limits, self)
    except OSError as error:  # No memory, no descriptors.
      raise InfraError(f'{error}') from error
    finally:
      for file in files:
        os.close(file)


class _Slot:
  """One supervisor and zygote, started when they are needed."""

  def __init__(self, config: dict[str, Any], layers: frozenset[str]):
    self._config, self._layers = config, layers
    self._lock = threading.Lock()
    self._process: subprocess.Popen[bytes] | None = None
    self._control: socket.socket | None = None
    self._scratch: str | None = None
    self._errors: IO[bytes] | None = None

  def start(self) -> None:
    """Starts the zygote, if there is none.

    Raises:
      InfraError: If it does not come up.
    """
    with self._lock:
      if self._process is not None and self._process.poll() is None:
        return
      self._stop()
      self._start()

  def stop(self) -> None:
    """Ends the zygote and what it has started; removes its directory."""
    with self._lock:
      self._stop()

  def _start(self) -> None:
    environment = {k: os.environ[k] for k in _INHERITED if k in os.environ}
    if 'environment' not in self._layers:
      environment = dict(os.environ)
    # A tree of its own has room for a directory; else the host's disk has.
    own_root = {'namespaces', 'root'} <= self._layers
    if self._config['profile'] != 'pure' and not own_root:
      self._scratch = tempfile.mkdtemp(prefix='evojax-box-')
      if self._config['user'] is not None:
        os.chown(self._scratch, self._config['user'], self._config['user'])
    self._control, theirs = socket.socketpair()
    self._control.settimeout(_START_SECONDS)
    self._errors = tempfile.TemporaryFile()
    try:
      self._process = subprocess.Popen(
          # No site: neither .pth files nor a user's packages are read.
          [sys.executable, '-P', '-s', '-S', '-B', '-X', 'utf8',
           str(_ZYGOTE), str(_ROOT)],
          stdin=theirs,
          stdout=subprocess.DEVNULL,
          stderr=self._errors,
          env={**environment, **_ENVIRONMENT},
          cwd=os.sep,
          close_fds='descriptors' in self._layers,
          # A Ctrl-C in the terminal reaches the run alone.
          start_new_session=True,
      )  # fmt: skip
      theirs.close()
      wire.send(self._control, {**self._config, 'scratch': self._scratch})
      message, _ = wire.receive(self._control)
      if not message['ready']:
        raise EOFError('it is not ready')
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
      said = self._said()
      self._stop()
      raise InfraError(f'no zygote: {error}{said}') from error

  def _stop(self) -> None:
    """Hangs up: the supervisor does the rest, and is ended if it does not."""
    if self._control is not None:
      self._control.close()
    if self._process is not None:
      try:
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(_STOP_SECONDS)
      except subprocess.TimeoutExpired:
        self._process.kill()
        self._process.wait()
    if self._scratch is not None and os.path.exists(self._scratch):
      _remove(self._scratch)
    if self._errors is not None:
      self._errors.close()
    self._process = self._control = self._scratch = self._errors = None

  def exchange(
      self, request: dict[str, Any], files: Sequence[int], seconds: float
  ) -> dict[str, Any]:
    """One message and its answer.

    Raises:
      InfraError: If none comes in time, or one that is none.
    """
    run = os.urandom(8).hex()  # No count: the next run may find it.
    deadline = time.monotonic() + seconds
    self._control.settimeout(seconds)
    try:
      wire.send(self._control, {**request, 'run': run}, files)
      answer, _ = wire.receive(self._control)
      if time.monotonic() > deadline:
        raise TimeoutError
      if answer['run'] != run:
        raise ValueError('an answer to another run')
      return answer
    except TimeoutError:
      raise InfraError(
          f'the zygote did not answer within {seconds:g} s: it is stopped, or'
          ' the machine is too busy'
      ) from None
    except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
      raise InfraError(f'the zygote is gone: {error}{self._said()}') from error

  def _said(self) -> str:
    """The last that the zygote complained of."""
    self._errors.seek(0)
    text = self._errors.read()[-500:].decode(errors='replace').strip()
    return f'; it said: {text}' if text else ''


def _judge(
    answer: Mapping[str, Any],
    stdout: int,
    stderr: int,
    limits: limits_lib.Limits,
    box: Box,
) -> limits_lib.Result:
  """The result, from how a run ended and what it wrote."""
  try:
    killed, code = str(answer['status']), int(answer['code'])
    wall, cpu, waited = (float(answer[k]) for k in ('wall', 'cpu', 'waited'))
  except (KeyError, TypeError, ValueError) as error:
    raise InfraError(f'the zygote answered {answer}') from error
  outputs, too_long = [], False
  for file in (stdout, stderr):
    outputs.append(os.pread(file, limits.output_bytes, 0))
    # What a program says beside its output is cut, and no fault of it.
    counts = file == stdout or box.profile != 'program'
    too_long |= counts and os.fstat(file).st_size > limits.output_bytes
  out, err = outputs
  result = functools.partial(
      limits_lib.Result,
      tier=box.tier,
      stdout=out,
      stderr=err,
      exit_code=code,
      wall_seconds=wall,
      cpu_seconds=cpu,
  )
  if killed == 'timeout':
    # A tenth of its time is more than scheduling takes on an idle machine. Who
    # is kept from a core runs or waits for one; who naps does neither.
    idle = max(0.0, wall - cpu - waited)
    contended = waited > 0.1 * limits.wall_seconds and idle < waited
    message = f'{wall:.2f} s of wall time, {cpu:.2f} s of CPU time'
    if contended:
      message += f'; waited {waited:.2f} s for a core, the machine was busy'
    return result('timeout', contended=contended, message=message)
  if (
      killed == 'cpu_limit'
      or code == -signal.SIGXCPU
      or (cpu > limits.cpu_seconds and code < 0)
  ):
    return result('cpu_limit', message=f'{cpu:.2f} s of CPU time')
  if killed == 'disk_limit':
    return result('disk_limit', message='its directory is full')
  if killed == 'crowded':
    most = limits.processes
    return result('error', message=f'more than {most} threads at a time')
  if too_long or code == -signal.SIGXFSZ:
    return result(
        'output_limit',
        message=f'more than {limits.output_bytes} bytes of output, or a file'
        ' too large',
    )
  # A program cannot send itself this one; the kernel, out of memory, does.
  if (
      code == -signal.SIGKILL
      and 'seccomp' in box.layers
      and (box.profile != 'repository')
  ):
    raise InfraError('killed from outside of the box: out of memory?')
  if code == 0:
    return result('ok')
  last = err.rstrip().rpartition(b'\n')[2][:200].decode(errors='replace')
  # All of its name: a program may have a MemoryErrorOfMine.
  no_memory = last.partition(':')[0] == 'MemoryError'
  status = 'memory_limit' if no_memory else 'error'
  if code < 0:
    last = f'ended by signal {-code}'
  return result(status, message=last or f'exit code {code}')


def _memory_file(data: Data | None) -> int:
  """An open file without a name: of these bytes, or None: to be written to."""
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
      # What is given stays as it is, for the next call of the same run too.
      flags = os.O_RDONLY | os.O_CLOEXEC
      file, writable = os.open(f'/proc/self/fd/{file}', flags), file
      os.close(writable)
  except BaseException:
    os.close(file)
    raise
  return file


def _free_user() -> int:
  """A user id that nobody else has, for one slot of this process.

  The kernel counts processes by user: two slots must not share one.
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


def _is_public(path: str) -> bool:
  """Whether every user may read a directory."""
  while True:
    if os.stat(path).st_mode & 0o005 != 0o005:
      return False
    if path == os.sep:
      return True
    path = os.path.dirname(path)


def _remove(folder: str) -> None:
  """Removes what a supervisor that was killed could not."""
  tree.clear(folder)
  os.rmdir(folder)
