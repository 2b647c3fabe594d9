"""Find the tier that this machine supports by attacking the box.

    tier = probe.tier(allow_weak=True)  # At the start of a process.
    tier = probe.tier()                 # Wherever a box is made.

A tier holds if every attack fails and every benign program works in the same
configuration: if imports were broken, for example, every attack would seem to
be stopped. `python -m evojax.sandbox.probe` prints the result.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import os
import pathlib
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading

from evojax.sandbox import box
from evojax.sandbox import limits as limits_lib

_TOKEN = 'EVOJAX_PROBE_TOKEN'
# The stdin of an attack, and a function that checks for an effect outside.
_Prepared = tuple[str, Callable[[], bool]]
_LIMITS = limits_lib.Limits(
    wall_seconds=10.0, cpu_seconds=5.0, disk_bytes=4 << 20, files=64
)
# Each attack reads its parameters from stdin, and prints GOT if it succeeds.
_READ_KEY = """
path, key = input().split()
if open(path).read() == key[::-1]:
  print('GOT')
"""
_CONNECT = """
import socket
port = int(input())
with socket.create_connection(('127.0.0.1', port), timeout=2):
  print('GOT')
"""
_KILL = """
import os, signal
for pid in (int(input()), os.getppid()):
  try:
    os.kill(pid, 0)
    print('GOT')
  except OSError:
    pass
"""
_SHELL = '#!/bin/sh\n'  # These run as commands of a repository.
_KILL_BY_SHELL = f'{_SHELL}kill -0 "$(cat)" && echo GOT'
_DAEMONISE = """
import os
pid = os.fork()
if pid == 0:
  os.setsid()
print('GOT')
"""
_FILL = """
import os, time
hidden, nameless = eval(input())
if hidden:
  os.mkdir('hidden', 0o300)
  os.chdir('hidden')
files = []
for i in range(40):
  files.append(open(f'{i}.bin', 'wb', buffering=0))
  if nameless:
    os.unlink(f'{i}.bin')
  files[-1].write(bytes(1 << 20))
time.sleep(0.3)
print('GOT')
"""
# Landlock controls truncation from version 3 on, and moves from version 2 on.
_CHANGE = """
import os
path = input()
for way in (
    lambda: os.truncate(path, 0),
    lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
    lambda: os.open(path, os.O_ACCMODE | os.O_TRUNC),
    lambda: os.rename(path, f'{path}.moved'),
    lambda: os.rename(path, 'moved'),
):
  try:
    way()
  except OSError:
    pass
"""
_CONNECT_UNIX = """
import socket
name = '\\0' + input()
for way in (
    lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0],
):
  try:
    way().sendto(b'GOT', name)
  except OSError:
    pass
"""
_DEVICE = """
import errno, fcntl
try:
  fcntl.ioctl(open('/dev/null', 'r+b', buffering=0), 0x5412, b'x')  # TIOCSTI
except OSError as error:
  if error.errno == errno.ENOTTY:
    print('GOT')
"""
_ASK = """
import os, resource, time
for ask in (
    lambda process: time.clock_gettime(~process << 3 | 2),
    lambda process: resource.prlimit(process, resource.RLIMIT_NOFILE),
    os.sched_getaffinity,
):
  try:
    ask(os.getppid())
    print('GOT')
  except OSError:
    pass
"""
_ENVIRONMENT = """
import os
if input()[::-1] in os.environ.values():
  print('GOT')
"""
# (name, program, stdin, stdout)
_CONTROLS = (
    ('arithmetic', 'print(sum(map(int, input().split())))', b'1 2 3', b'6\n'),
    ('imports', 'import array, collections, heapq, json, uuid, zlib\nprint(1)',
     b'', b'1\n'),
    ('files of its own', 'import tempfile\n'
     "with tempfile.TemporaryFile('w+') as f:\n"
     "  f.write('x'); f.seek(0); print(f.read())", b'', b'x\n'),
    ('long input', 'print(len(input()))', b'x' * (1 << 20), b'1048576\n'),
    ('deep recursion', 'import sys\nsys.setrecursionlimit(20000)\n'
     'f = lambda n: n and 1 + f(n - 1)\nprint(f(10000))', b'', b'10000\n'),
    ('commands', f'{_SHELL}tr a b | cat', b'a\n', b'b\n'),
)  # fmt: skip


class WeakSandboxError(RuntimeError):
  """This machine cannot contain untrusted code."""


@dataclasses.dataclass(frozen=True)
class Report:
  """The tier that was found, and why the stronger ones were not."""

  tier: str
  faults: Mapping[str, tuple[str, ...]]  # Tier -> reasons why it does not hold.

  def __str__(self) -> str:
    lines = [f'sandbox: {self.tier}']
    for tier, faults in self.faults.items():
      lines.append(f'  {tier} does not hold: {"; ".join(faults)}')
    if self.tier == 'T2':
      lines.append(
          '  T2 LIMITS RESOURCES ONLY: the code that runs can read your files,'
          ' use the network and leave processes behind'
      )
    return '\n'.join(lines)


def choose(*, allow_weak: bool = False) -> Report:
  """Return the strongest tier that holds; it is probed once per process.

  Args:
    allow_weak: Whether T2, which only limits resources, is enough.

  Raises:
    WeakSandboxError: If no tier holds, or only T2 and it is not enough.
  """
  report = _find()
  if report.tier == 'T2' and not allow_weak:
    raise WeakSandboxError(
        f'{report}\nuntrusted code is not run here; --allow_weak_sandbox runs'
        ' it anyway'
    )
  return report


def tier(*, allow_weak: bool | None = None) -> str:
  """Return the tier for this process's boxes, and print it the first time.

  Args:
    allow_weak: Whether T2 is enough from now on; None keeps the last value,
      which is False at first.

  Raises:
    WeakSandboxError: See `choose`.
  """
  with _LOCK:  # Concurrent probes would disturb each other.
    if allow_weak is not None:
      _said['allow_weak'] = allow_weak
    report = choose(allow_weak=_said['allow_weak'])
    if not _said['printed']:
      # The box needs only the standard library, except for this line.
      from evojax.runtime import output  # pylint: disable=g-import-not-at-top

      output.say(str(report))
      _said['printed'] = True
  return report.tier


def allows_weak() -> bool:
  """Return the last value of `allow_weak` that `tier` was given."""
  return _said['allow_weak']


# State of the process: the user's permission, and whether the tier was printed.
_said = {'allow_weak': False, 'printed': False}
_LOCK = threading.Lock()


@functools.cache
def _find() -> Report:
  found = {}
  for tier in ('T0', 'T1'):
    if not (reasons := tuple(faults(tier))):
      return Report(tier, found)
    found[tier] = reasons
  if broken := _failed_controls('T2'):
    raise WeakSandboxError(f'not even T2 runs here: {"; ".join(broken)}')
  return Report('T2', found)


def faults(tier: str) -> list[str]:
  """Return successful attacks and failing benign programs, one line each."""
  return _failed_controls(tier) or _successful_attacks(tier)


def _failed_controls(tier: str) -> list[str]:
  failed = []
  with _boxes(tier) as run:
    for name, source, stdin, stdout in _CONTROLS:
      if tier == 'T2' and source.startswith(_SHELL):
        continue  # macOS cannot count the processes of a single run.
      result = run(source, stdin)
      if result.status == 'infra_error':
        return [f'no box: {" ".join(result.message.split())[-300:]}']
      if (result.status, result.stdout) != ('ok', stdout):
        failed.append(f'{name}: {result.status} {result.message}')
  return failed


def _successful_attacks(tier: str) -> list[str]:
  token = secrets.token_hex(16)
  through = []
  os.environ[_TOKEN] = token
  try:
    with _boxes(tier) as run:
      for name, (source, prepare) in _ATTACKS.items():
        with contextlib.ExitStack() as stack:
          stdin, happened = prepare(stack, token)
          result = run(source, stdin.encode())
          if b'GOT' in result.stdout or happened():
            through.append(f'an attack got through: {name}')
  finally:
    del os.environ[_TOKEN]
  return through


@contextlib.contextmanager
def _boxes(tier: str) -> Iterator[Callable[[str, bytes], limits_lib.Result]]:
  """Yield a function that runs a program, or a command of a repository."""
  options = dict(tier=tier, limits=_LIMITS, attempts=1)
  with box.Box(**options) as one, box.Box('repository', **options) as tree:

    def run(source: str, stdin: bytes) -> limits_lib.Result:
      if not source.startswith(_SHELL):
        return one.run(source, stdin)
      command = dict(command=['/bin/sh', '-c', source], folder='.')
      return tree.request({**command, 'environment': {}}, stdin)

    yield run


def _key_file(stack: contextlib.ExitStack, token: str) -> _Prepared:
  folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
  folder.chmod(0o755)
  (folder / 'key').write_text(token)
  return f'{folder}/key {token[::-1]}', _never


def _table(stack: contextlib.ExitStack, _: str) -> _Prepared:
  folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
  folder.chmod(0o777)
  path = folder / 'table'
  path.write_text('7.0')
  path.chmod(0o666)
  changed = lambda: not path.exists() or path.read_text() != '7.0'
  return str(path), changed


def _datagrams(stack: contextlib.ExitStack, token: str) -> _Prepared:
  server = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
  server.bind(f'\0evojax-{token}')
  return f'evojax-{token}', lambda: bool(select.select([server], [], [], 0)[0])


def _fill(*, hidden: bool = False, nameless: bool = False):
  return _FILL, lambda *_: (str((hidden, nameless)), _never)


def _server(stack: contextlib.ExitStack, _: str) -> _Prepared:
  server = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
  # The server is readable while a connection waits to be accepted.
  connected = lambda: bool(select.select([server], [], [], 0)[0])
  return str(server.getsockname()[1]), connected


def _decoy(stack: contextlib.ExitStack, _: str) -> _Prepared:
  """Start a process as the target; it stands for this one, its parent."""
  command = [sys.executable, '-S', '-c', 'import sys; sys.stdin.read()']
  decoy = subprocess.Popen(command, stdin=subprocess.PIPE)
  stack.callback(decoy.communicate)  # The process ends when its stdin closes.
  return str(decoy.pid), lambda: decoy.poll() is not None


def _never() -> bool:
  return False


# Name -> (program, function that prepares its stdin and its check outside).
_ATTACKS = {
    'reads_a_key': (_READ_KEY, _key_file),
    'reads_the_environment': (_ENVIRONMENT, lambda _, t: (t[::-1], _never)),
    'opens_tcp': (_CONNECT, _server),
    'kills_the_parent': (_KILL, _decoy),
    'daemonises': (_DAEMONISE, lambda _, t: ('', _never)),
    'signals_from_a_command': (_KILL_BY_SHELL, _decoy),
    'fills_the_disk': _fill(),
    'fills_a_hidden_folder': _fill(hidden=True),
    'fills_files_without_names': _fill(nameless=True),
    'changes_a_file': (_CHANGE, _table),
    'opens_an_abstract_socket': (_CONNECT_UNIX, _datagrams),
    'asks_a_device': (_DEVICE, lambda _, t: ('', _never)),
    'asks_about_the_parent': (_ASK, lambda _, t: ('', _never)),
}


if __name__ == '__main__':
  print(choose(allow_weak=True))
