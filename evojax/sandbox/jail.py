"""The tree, the user and the namespaces that code in the box sees.

As root the namespaces are entered directly and the box gets a user id of its
own; an unprivileged user enters them through a user namespace. Either way no
capability is left in the end.
"""

from collections.abc import Collection, Iterator, Sequence
import os
import stat
import sys

from evojax.sandbox import landlock
from evojax.sandbox import linux

_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWCGROUP
)
_DEVICES = ('/dev/null', '/dev/zero', '/dev/random', '/dev/urandom')
_LIBRARIES = ('/lib', '/lib64', '/usr/lib', '/usr/lib64')
_SYSTEM = (
    '/bin', '/sbin', '/usr/bin', '/usr/sbin', '/usr/libexec', '/usr/share',
    '/usr/local', '/etc/alternatives', '/etc/ld.so.cache', *_LIBRARIES,
)  # fmt: skip
# The place of the slot's directory in a tree of its own.
SCRATCH = '/box'
_BASE = '/tmp'  # Covered while the tree is built, but only in this namespace.
_PACKAGES = ('site-packages', 'dist-packages')


def enter_namespaces() -> bool:
  """Leave the host's namespaces; the next child is process 1 of new ones.

  Returns:
    Whether that took a user namespace, in which only this user exists.

  Raises:
    OSError: If the kernel, or a container around us, forbids it.
  """
  try:
    linux.call('unshare', _NAMESPACES)
    return False
  except PermissionError:
    pass
  user, group = os.geteuid(), os.getegid()
  linux.call('unshare', _NAMESPACES | linux.CLONE_NEWUSER)
  for name, text in (
      ('setgroups', 'deny'),
      ('uid_map', f'{user} {user} 1'),
      ('gid_map', f'{group} {group} 1'),
  ):
    with open(f'/proc/self/{name}', 'w') as file:
      file.write(text)
  return True


def readable(profile: str, more: Sequence[str] = ()) -> list[str]:
  """Return the paths that a profile may read; a repository may run them too."""
  library = os.path.dirname(os.__file__)
  if profile == 'pure':
    return []
  if profile == 'program':
    return [library, *_LIBRARIES, *more]
  return [library, sys.base_prefix, *_SYSTEM, *more]


def hidden(more: Sequence[str] = ()) -> list[str]:
  """Return directories below readable paths that must not be read.

  These are the installed packages. Our own is one of them: it holds reference
  solutions.

  Args:
    more: Paths that were opened by name, which stay readable.
  """
  library = os.path.dirname(os.__file__)
  version = f'python{sys.version_info[0]}.{sys.version_info[1]}'
  roots = (
      library,
      '/usr/lib/python3',
      f'/usr/lib/{version}',
      f'/usr/local/lib/{version}',
  )
  ours = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
  found = {os.path.join(root, name) for root in roots for name in _PACKAGES}
  return [
      path
      for path in sorted(found | {ours})
      if os.path.isdir(path)
      and not any(_is_below(path, opened) for opened in more)
  ]


def build_root(
    paths: Sequence[str],
    covered: Sequence[str],
    scratch: str | None,
    devices: bool,
) -> None:
  """Make a read-only tree of some paths the root of this namespace.

  Args:
    paths: Paths of the host, which keep their places; missing ones are skipped.
    covered: Directories below them that are empty in the new tree.
    scratch: Mount options of a file system at SCRATCH; None for none.
    devices: Whether the tree has /dev/null and the like.
  """
  linux.make_mounts_private()
  links, copies = {}, []
  for path in paths:
    if os.path.islink(path) and os.path.dirname(path) in ('/', '/usr'):
      links[path] = os.readlink(path)
    elif os.path.exists(path) and not any(
        _is_below(path, other) for other in paths if other != path
    ):
      copies.append((path, linux.copy_mount(path)))
  if devices:
    for path in filter(os.path.exists, _DEVICES):
      copy = linux.copy_mount(path, read_only=False, devices=True)
      copies.append((path, copy))
  linux.mount_tmpfs(_BASE, 'size=1m,nr_inodes=4096,mode=0755')
  for path, descriptor in copies:
    target = _BASE + path
    # The copy is asked, because its path may be covered by now.
    if _is_directory(descriptor):
      os.makedirs(target, exist_ok=True)
    else:
      os.makedirs(os.path.dirname(target), exist_ok=True)
      os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.attach(descriptor, target)
  for path, target in links.items():
    os.makedirs(_BASE + os.path.dirname(path), exist_ok=True)
    os.symlink(target, _BASE + path)
  for path in covered:
    if os.path.isdir(_BASE + path):
      linux.mount_tmpfs(_BASE + path, 'size=4k,nr_inodes=1,mode=0755')
  if scratch is not None:
    os.mkdir(_BASE + SCRATCH)
    linux.mount_tmpfs(_BASE + SCRATCH, scratch)
    if not os.path.lexists(f'{_BASE}/tmp'):
      os.symlink(SCRATCH, f'{_BASE}/tmp')
  linux.pivot_root(_BASE)
  linux.make_read_only('/')


def become(user: int | None) -> None:
  """Change from root to a user, if one is given; drop all capabilities."""
  if user is not None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Else the files of this process in /proc belong to root.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
  linux.drop_capabilities()


def landlock_rules(
    profile: str,
    scratch: str | None,
    more: Sequence[str] = (),
    own_root: bool = False,
) -> list[tuple[str, int]]:
  """Return (path, rights) pairs for `landlock.rule_set`.

  Args:
    profile: One of `box.PROFILES`.
    scratch: The directory that may be changed, if any.
    more: Paths that may be read besides the profile's.
    own_root: Whether the tree is the box's own, all of which may be listed.
  """
  runs = profile == 'repository'
  rights = landlock.RUN if runs else landlock.LOOK
  rules = [('/', landlock.LIST)] if own_root and profile != 'pure' else []
  for path in readable(profile, more):
    if os.path.exists(path):
      rules += _all_but(path, hidden(more), rights)
  if profile != 'pure':
    rules += [(d, landlock.READ | landlock.WRITE) for d in _DEVICES]
  if scratch is not None:
    extra = landlock.EXECUTE if runs else 0
    rules.append((scratch, landlock.CHANGE | extra))
  return rules


def _all_but(
    path: str, excluded: Collection[str], rights: int
) -> Iterator[tuple[str, int]]:
  """Yield rules that open a tree without the excluded directories below it."""
  below = [other for other in excluded if _is_below(other, path)]
  if not below:
    yield path, rights
  elif path not in below:
    yield path, landlock.LIST
    for name in os.listdir(path):
      child = os.path.join(path, name)
      if not os.path.islink(child):
        yield from _all_but(child, below, rights)


def _is_below(path: str, other: str) -> bool:
  return path == other or path.startswith(other.rstrip('/') + '/')


def _is_directory(descriptor: int) -> bool:
  return stat.S_ISDIR(os.fstat(descriptor).st_mode)
