"""Finds the tier that this machine can hold, by attacking it.

    tier = probe.tier(allow_weak)  # At the start of a process.
    tier = probe.tier()            # Wherever a box is made.

A tier holds if every attack fails and every benign program works in the same
configuration; where imports are broken, for example, every attack would seem to
be stopped. `python -m evojax.sandbox.probe` prints the result.
"""

from collections.abc import Callable, Mapping
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

from evojax.sandbox import box
from evojax.sandbox import limits as limits_lib

_TOKEN = 'EVOJAX_PROBE_TOKEN'
# The stdin of an attack, and a function that tells if it succeeded outside.
_Prepared = tuple[str, Callable[[], bool]]
_LIMITS = limits_lib.Limits(
    wall_seconds=10.0, cpu_seconds=5.0, disk_bytes=4 << 20, files=64
)
# Each attack reads what it needs from stdin and prints GOT if it gets through.
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
_DAEMONISE = """
import os
pid = os.fork()
if pid == 0:
  os.setsid()
print('GOT')
"""
_FILL = """
import time
for i in range(64):
  with open(f'{i}.bin', 'wb') as file:
    file.write(bytes(1 << 20))
time.sleep(0.3)
print('GOT')
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
)  # fmt: skip


class WeakSandboxError(RuntimeError):
  """This machine cannot hold untrusted code."""


@dataclasses.dataclass(frozen=True)
class Report:
  """The tier that was found, and why the stronger ones were not."""

  tier: str
  faults: Mapping[str, tuple[str, ...]]  # Tier -> why it does not hold.

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
  """Return the strongest tier that holds; it is looked for once per process.

  Args:
    allow_weak: Whether T2, which limits resources only, is enough.

  Raises:
    WeakSandboxError: If no tier holds, or only T2 and that is not enough.
  """
  report = _find()
  if report.tier == 'T2' and not allow_weak:
    raise WeakSandboxError(
        f'{report}\nuntrusted code is not run here; --allow_weak_sandbox runs'
        ' it all the same'
    )
  return report


def tier(allow_weak: bool | None = None) -> str:
  """Return the tier of this process's boxes; it is printed once.

  Args:
    allow_weak: Whether T2 is enough, from now on; None keeps the last answer,
      which is no at first.

  Raises:
    WeakSandboxError: See `choose`.
  """
  if allow_weak is not None:
    _said['allow_weak'] = allow_weak
  report = choose(allow_weak=_said['allow_weak'])
  if not _said['printed']:
    # The box needs the standard library alone; only this line needs more.
    from evojax.runtime import output  # pylint: disable=g-import-not-at-top

    output.say(str(report))
    _said['printed'] = True
  return report.tier


def allows_weak() -> bool:
  """Return the last answer that `tier` was given."""
  return _said['allow_weak']


# State of the process: what its user allows, and whether the tier was printed.
_said = {'allow_weak': False, 'printed': False}


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
  """Return attacks that get through and benign programs that fail, as lines."""
  return _failed_controls(tier) or _successful_attacks(tier)


def _failed_controls(tier: str) -> list[str]:
  failed = []
  with box.Box(tier=tier, limits=_LIMITS, attempts=1) as one:
    for name, program, stdin, stdout in _CONTROLS:
      result = one.run(program, stdin)
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
    with box.Box(tier=tier, limits=_LIMITS, attempts=1) as one:
      one.start()
      for name, (program, prepare) in _ATTACKS.items():
        with contextlib.ExitStack() as stack:
          stdin, happened = prepare(stack, token)
          result = one.run(program, stdin.encode())
          if b'GOT' in result.stdout or happened():
            through.append(f'an attack got through: {name}')
  finally:
    del os.environ[_TOKEN]
  return through


def _key_file(stack: contextlib.ExitStack, token: str) -> _Prepared:
  folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
  folder.chmod(0o755)
  (folder / 'key').write_text(token)
  return f'{folder}/key {token[::-1]}', _never


def _server(stack: contextlib.ExitStack, _: str) -> _Prepared:
  server = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
  # It can be read from while somebody waits to be accepted.
  connected = lambda: bool(select.select([server], [], [], 0)[0])
  return str(server.getsockname()[1]), connected


def _decoy(stack: contextlib.ExitStack, _: str) -> _Prepared:
  """Start a process to be killed; it stands for this one, its parent."""
  command = [sys.executable, '-S', '-c', 'import sys; sys.stdin.read()']
  decoy = subprocess.Popen(command, stdin=subprocess.PIPE)
  stack.callback(decoy.communicate)  # It ends with its input.
  return str(decoy.pid), lambda: decoy.poll() is not None


def _never() -> bool:
  return False


# Name -> (program, what it needs: its stdin, and whether it shows outside).
_ATTACKS = {
    'reads_a_key': (_READ_KEY, _key_file),
    'reads_the_environment': (_ENVIRONMENT, lambda _, t: (t[::-1], _never)),
    'opens_tcp': (_CONNECT, _server),
    'kills_the_parent': (_KILL, _decoy),
    'daemonises': (_DAEMONISE, lambda _, t: ('', _never)),
    'fills_the_disk': (_FILL, lambda _, t: ('', _never)),
}


if __name__ == '__main__':
  print(choose(allow_weak=True))
