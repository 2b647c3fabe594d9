"""Attacks on the box, each with the layers that stop it.

An attack proves something if it fails in the whole box, succeeds in the box
without its layers, and, if it has several layers, fails with each of them
alone. In each of these configurations benign controls pass.
"""

from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

from evojax.sandbox import box
from evojax.sandbox import image
from evojax.sandbox import landlock
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe
from evojax.sandbox import repository

MARK = b'GOT'
# Generous limits, since speed on a busy machine is not tested here.
LIMITS = limits_lib.Limits(
    wall_seconds=20.0,
    cpu_seconds=10.0,
    disk_bytes=4 << 20,
    files=64,
    processes=16,
)
SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *a):
  number = x86 if os.uname().machine == 'x86_64' else arm
  if libc.syscall(number, *a) < 0:
    raise OSError(ctypes.get_errno(), 'refused')
"""
_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Attack:
  """One attack; it prints GOT if it succeeds."""

  name: str
  layers: tuple[str, ...]  # Each of them stops it alone.
  source: str  # Python, or shell for a repository.
  tier: str = 'T0'
  before: str = ''  # Runs first, in the same box.
  limits: limits_lib.Limits | None = None
  # Determines from the result whether it succeeded.
  succeeded: Callable[[limits_lib.Result], bool] | None = None
  landlock: int = 1  # Version of Landlock needed for its rule.
  needs: tuple[str, ...] = ()  # Kernel features without which it must fail.


def got(result: limits_lib.Result) -> bool:
  return MARK in result.stdout or MARK in result.stderr


def attempt(source, before=''):
  """Return code that prints GOT if the source raises nothing."""
  return f'{before}\n{source}\nprint("GOT")'


class World:
  """The targets of attacks: files, sockets, a process, a variable."""

  TOKEN = 'c0ffee-token-that-nobody-knows'

  def __init__(self):
    self._folder = tempfile.TemporaryDirectory(prefix='world-')
    self.folder = pathlib.Path(self._folder.name)
    self.folder.chmod(0o777)
    (self.folder / 'key').write_text(self.TOKEN)
    (self.folder / 'key.py').write_text(f'KEY = {self.TOKEN!r}')
    for name in ('table', 'for reading', 'for nothing'):
      (self.folder / name).write_text('7.0 7.0\n')
    for path in self.folder.iterdir():
      path.chmod(0o666)
    self.tcp = socket.create_server(('127.0.0.1', 0))
    self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    self.udp.bind(('127.0.0.1', 0))
    self.unix = socket.socket(socket.AF_UNIX)
    self.unix.bind(str(self.folder / 'unix'))
    (self.folder / 'unix').chmod(0o777)
    self.unix.listen(16)
    self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    self.datagrams.bind(str(self.folder / 'datagrams'))
    (self.folder / 'datagrams').chmod(0o777)
    self.abstract = socket.socket(socket.AF_UNIX)
    self.name = f'evojax-world-{os.getpid()}'
    self.abstract.bind(f'\0{self.name}')
    self.abstract.listen(16)
    self.decoy = subprocess.Popen(
        [sys.executable, '-S', '-c', 'import sys; sys.stdin.read()'],
        stdin=subprocess.PIPE,
    )
    # Left open for any process that inherits it.
    self.secret = os.open(self.folder / 'key', os.O_RDONLY)
    os.set_inheritable(self.secret, True)
    os.environ['EVOJAX_TOKEN'] = self.TOKEN

  def close(self):
    del os.environ['EVOJAX_TOKEN']
    os.close(self.secret)
    self.decoy.communicate()
    for one in (
        self.tcp, self.udp, self.unix, self.datagrams, self.abstract
    ):  # fmt: skip
      one.close()
    self._folder.cleanup()

  def fill_in(self, source: str) -> str:
    """Return a source with the placeholders replaced by paths."""
    for name, value in (
        ('@DIR@', self.folder),
        ('@TCP@', self.tcp.getsockname()[1]),
        ('@UDP@', self.udp.getsockname()[1]),
        ('@ABSTRACT@', self.name),
        ('@PID@', self.decoy.pid),
        ('@REPO@', _ROOT),
        # Reversed, since it must not be found in the attack itself.
        ('@NEKOT@', self.TOKEN[::-1]),
        ('@PYTHON@', repository.PYTHON),
    ):
      source = source.replace(name, str(value))
    return source


class Range:
  """Boxes with and without layers, in one world."""

  def __init__(
      self,
      profile: str,
      control: Callable[['Range', 'box.Box | repository.Workspace'], None],
      **arguments,
  ):
    """Set up; `control` raises if a benign use of a box does not work."""
    self.world = World()
    self._profile, self._control = profile, control
    self._arguments = arguments
    self._boxes = {}

  def close(self):
    for one in self._boxes.values():
      one.close()
    self.world.close()

  def check(self, attack: Attack) -> None:
    """Raise AssertionError if the attack proves nothing, or succeeds."""
    layers = {
        layer
        for layer in attack.layers
        # Only root can become another user.
        if layer != 'uid' or os.geteuid() == 0
    }
    got_through, result = self.run(attack, layers)
    assert got_through, f'{attack.name} fails without its layers: {result}'
    for alone in sorted(layers) if len(layers) > 1 else ():
      if alone == 'landlock' and landlock.version() < attack.landlock:
        continue
      if alone == 'uid' and not self._has_own_user(attack, layers - {alone}):
        continue
      got_through, result = self.run(attack, layers - {alone})
      assert not got_through, f'{attack.name} gets past {alone}: {result}'
    got_through, result = self.run(attack, set())
    assert not got_through, f'{attack.name} gets through: {result}'

  def _has_own_user(self, attack, without):
    return box.Box(tier=attack.tier, without=without).own_user

  def run(
      self, attack: Attack, without: set[str]
  ) -> tuple[bool, limits_lib.Result]:
    """Run without some layers; return whether it succeeds, and its result."""
    key = attack.tier, frozenset(without)
    if key not in self._boxes:
      self._boxes[key] = self._open(*key)
      self._control(self, self._boxes[key])
    one = self._boxes[key]
    for source in filter(None, (attack.before, attack.source)):
      result = self.call(one, self.world.fill_in(source), attack.limits)
    if result.status == 'disk_limit':  # No command can empty the tree again.
      self._boxes.pop(key).close()
    return (attack.succeeded or got)(result), result

  def _open(self, tier, without):
    arguments = (
        dict(tier=tier, without=without, limits=LIMITS, grace_seconds=2.0)
        | self._arguments
    )
    if self._profile == 'repository':
      return repository.Workspace(allow_weak=True, **arguments)
    return box.Box(self._profile, attempts=1, **arguments)

  def call(self, one, source, limits=None):
    if self._profile == 'repository':
      return one.run(['/bin/sh', '-c', source], limits=limits)
    return one.run(source, bytes(64), limits=limits)


def run_elsewhere(test: unittest.TestCase, source: str, user: int) -> str:
  """Return a source's output, run as a user by a public interpreter.

  The test is skipped if this machine has no such interpreter.
  """
  python = _public_python()
  folders = [_ROOT, *_ROOT.parents]
  if not python or not all(os.stat(f).st_mode & 1 for f in folders):
    test.skipTest('no interpreter, or no checkout, that all may read')
  packages = pathlib.Path(tempfile.mkdtemp())
  test.addCleanup(shutil.rmtree, packages)
  packages.chmod(0o755)
  for path in map(pathlib.Path, image.paths()):
    copy = shutil.copytree if path.is_dir() else shutil.copy
    copy(path, packages / path.name)
  run = subprocess.run(
      [python, '-B', '-c', f'import sys\nsys.path[:0] = [{str(_ROOT)!r}]\n'
       + source],
      user=user,
      group=user,
      extra_groups=[],
      cwd='/',
      env={'PYTHONPATH': str(packages)},
      capture_output=True,
      text=True,
      check=False,
  )  # fmt: skip
  return run.stdout + run.stderr


def _public_python() -> str:
  """Return an interpreter of this version that all users may run, or ''."""
  version = f'python3.{sys.version_info.minor}'
  for path in (sys.executable, f'/usr/bin/{version}'):
    real = os.path.realpath(path)
    folders = [str(p) for p in pathlib.Path(real).parents]
    if os.path.exists(real) and all(os.stat(f).st_mode & 1 for f in folders):
      return real
  return ''


def missing(tier: str) -> str:
  """Return why attacks on a tier cannot be tested here; '' if they can."""
  return '; '.join(probe.faults(tier))


def named(attacks: Sequence[Attack]):
  """Return arguments for parameterized.named_parameters."""
  names = [a.name for a in attacks]
  assert len(set(names)) == len(names), 'a name twice'
  return [(a.name.replace(' ', '_'), a) for a in attacks]
