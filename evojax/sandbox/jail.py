"""The tree, the user and the namespaces that code in the box sees.

Root enters the namespaces directly, and the box gets a user id of its own; an
unprivileged user enters them through a user namespace. In both cases no
capability is left at the end.
"""

from collections.abc import Collection, Iterator, Sequence
import os
import stat
import sys

from evojax.sandbox import landlock
from evojax.sandbox import linux
from evojax.sandbox import wire

_DEVICES = ('/dev/null', '/dev/zero', '/dev/random', '/dev/urandom')
_LIBRARY = os.path.dirname(os.__file__)
_LIBRARIES = ('/lib', '/lib64', '/usr/lib', '/usr/lib64')
_SYSTEM = (
    '/bin', '/sbin', '/usr/bin', '/usr/sbin', '/usr/libexec', '/usr/share',
    '/usr/local', '/etc/alternatives', '/etc/ld.so.cache', *_LIBRARIES,
)  # fmt: skip
# Programs look for their input here; `programs` opens it for them.
_STDIN = '/dev/stdin'
# Path of the slot's directory in its own tree.
_SCRATCH = '/box'
_BASE = '/tmp'  # Covered while the tree is built, but only in this namespace.
_PACKAGES = ('site-packages', 'dist-packages')


def enter_namespaces() -> bool:
  """Leave the host's namespaces; the next child is process 1 in new ones.

  Returns:
    Whether a user namespace was needed, in which only this user exists.

  Raises:
    OSError: If the kernel or a surrounding container forbids it.
  """
  try:
    linux.call('unshare', linux.NAMESPACES)
    return False
  except PermissionError:
    pass
  user, group = os.geteuid(), os.getegid()
  linux.call('unshare', linux.NAMESPACES | linux.CLONE_NEWUSER)
  for name, text in (
      ('setgroups', 'deny'),
      ('uid_map', f'{user} {user} 1'),
      ('gid_map', f'{group} {group} 1'),
  ):
    with open(f'/proc/self/{name}', 'w') as file:
      file.write(text)
  return True


def _readable(config: wire.Config) -> list[str]:
  """Return the paths that a slot may read (in a repository, also run)."""
  shared = {
      'pure': (),
      'program': (_LIBRARY, *_LIBRARIES),
      'repository': (_LIBRARY, sys.base_prefix, *_SYSTEM),
  }
  return [*shared[config.profile], *config.readable]


def _hidden(more: Sequence[str]) -> list[str]:
  """Return directories below readable paths that must not be read.

  These are directories of installed packages, among them ours, which holds
  reference solutions.

  Args:
    more: Explicitly opened paths, which stay readable.
  """
  version = f'python{sys.version_info[0]}.{sys.version_info[1]}'
  system = ('lib/python3', f'lib/{version}', f'local/lib/{version}')
  roots = (_LIBRARY, *(f'/usr/{folder}' for folder in system))
  ours = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
  found = {os.path.join(root, name) for root in roots for name in _PACKAGES}
  return [
      path
      for path in sorted({*found, *map(os.path.realpath, found), ours})
      if os.path.isdir(path)
      and not any(_is_below(path, opened) for opened in more)
  ]


def build_root(config: wire.Config, quota: str) -> str | None:
  """Make a read-only tree the root of this namespace.

  It holds the host paths that the slot may read, at the same places; missing
  ones are skipped, and hidden directories below them hold only the packages of
  the image. Devices and a directory are added, except for the profile 'pure'.

  Args:
    config: Setup of the slot.
    quota: Mount options of the directory's file system.

  Returns:
    The directory's path, or None.
  """
  linux.make_mounts_private()
  # Found before _BASE is covered, because an interpreter may be below it.
  hidden = _hidden(config.readable)
  paths, pure = _readable(config), config.profile == 'pure'
  links, copies = {}, []
  for path in paths:
    if os.path.islink(path) and os.path.dirname(path) in ('/', '/usr'):
      links[path] = os.readlink(path)
    elif os.path.exists(path) and not any(
        _is_below(path, other) for other in paths if other != path
    ):
      copies.append((path, linux.copy_mount(path)))
  for path in () if pure else filter(os.path.exists, _DEVICES):
    copy = linux.copy_mount(path, read_only=False, devices=True)
    copies.append((path, copy))
  packages = [(path, linux.copy_mount(path)) for path in config.image]
  linux.mount_tmpfs(_BASE, 'size=1m,nr_inodes=4096,mode=0755')
  for path, descriptor in copies:
    _attach(descriptor, path)
  for path, target in links.items():
    os.makedirs(_BASE + os.path.dirname(path), exist_ok=True)
    os.symlink(target, _BASE + path)
  covered = [path for path in hidden if os.path.isdir(_BASE + path)]
  for path in covered:
    linux.mount_tmpfs(_BASE + path, 'size=64k,nr_inodes=256,mode=0755')
  for path, descriptor in packages:
    if os.path.exists(_BASE + path):  # Below a path that the slot may read.
      os.close(descriptor)
    else:
      _attach(descriptor, path)
  for path in covered:
    linux.make_read_only(_BASE + path)
  if config.profile == 'program':
    # A program may ask whether it exists. Without /proc, no link can lead to
    # its input.
    os.symlink(os.devnull, _BASE + _STDIN)
  if not pure:
    os.mkdir(_BASE + _SCRATCH)
    linux.mount_tmpfs(_BASE + _SCRATCH, quota)
    if not os.path.lexists(f'{_BASE}/tmp'):
      os.symlink(_SCRATCH, f'{_BASE}/tmp')
  linux.pivot_root(_BASE)
  linux.make_read_only('/')
  return None if pure else _SCRATCH


def _attach(descriptor: int, path: str) -> None:
  """Mount a copy at its path in the new tree."""
  target = _BASE + path
  # The copy is inspected, because its path may be covered already.
  if stat.S_ISDIR(os.fstat(descriptor).st_mode):
    os.makedirs(target, exist_ok=True)
  else:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
  linux.attach(descriptor, target)


def become(user: int | None) -> None:
  """Change from root to a user, if one is given; drop all capabilities."""
  if user is not None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Otherwise root owns the files of this process in /proc.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
  linux.drop_capabilities()


def landlock_rules(config: wire.Config) -> Iterator[tuple[str, int]]:
  """Yield (path, rights) pairs for `landlock.rule_set`."""
  runs = landlock.EXECUTE if config.profile == 'repository' else 0
  if config.profile != 'pure':
    if config.own_root:  # The whole tree may be listed.
      yield '/', landlock.LIST
    yield from ((d, landlock.READ | landlock.WRITE) for d in _DEVICES)
  # A rule holds for everything below a path: listing the directory of a library
  # would also show the names of hidden packages. The importer of a program has
  # listed it already.
  above = 0 if config.profile == 'program' else landlock.LIST
  # Links such as /lib are resolved, or hidden paths would be open below them.
  readable = dict.fromkeys(map(os.path.realpath, _readable(config)))
  hidden = _hidden([os.path.realpath(path) for path in config.readable])
  for path in filter(os.path.exists, readable):
    yield from _all_but(path, hidden, landlock.LOOK | runs, above)
  yield from ((path, landlock.LOOK | runs) for path in config.image)
  if config.scratch is not None:
    yield config.scratch, landlock.CHANGE | runs


def _all_but(
    path: str, excluded: Collection[str], rights: int, above: int
) -> Iterator[tuple[str, int]]:
  """Yield rules that open a tree without the excluded directories below it.

  Args:
    path: The top of the tree.
    excluded: Directories that are left out.
    rights: Rights to all others.
    above: Rights to the directories that hold an excluded one.
  """
  below = [other for other in excluded if _is_below(other, path)]
  if not below:
    yield path, rights
  elif path not in below:
    if above:
      yield path, above
    for name in os.listdir(path):
      child = os.path.join(path, name)
      if not os.path.islink(child):
        yield from _all_but(child, below, rights, above)


def _is_below(path: str, other: str) -> bool:
  return path == other or path.startswith(other.rstrip('/') + '/')
