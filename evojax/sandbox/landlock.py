"""Landlock rule sets: the paths that code in the box may touch.

Everything that no rule opens is closed, including TCP; signals and abstract
sockets stay within the box. `seccomp` closes what an older kernel does not
control: truncation before version 3, sockets before 4 and 6, signals before 6.
Before version 2, Linux refuses to move a file between directories.
"""

from collections.abc import Callable, Iterable
import os
import stat
import struct

from evojax.sandbox import linux

EXECUTE, WRITE, READ, LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE = 1 << 4 | 1 << 5
_MAKE = 1 << 7 | 1 << 8 | 1 << 12  # Directories, files, links.
_REFER, _TRUNCATE = 1 << 13, 1 << 14
LOOK = READ | LIST
CHANGE = LOOK | WRITE | _REMOVE | _MAKE | _REFER | _TRUNCATE
_OF_FILES = EXECUTE | WRITE | READ | _TRUNCATE
# Version of the kernel's interface -> rights that it supports.
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_TCP = 3  # Bind and connect; known from version 4 on.
_SCOPES = 3  # Abstract sockets and signals; known from version 6 on.
_VERSION, _PATH_BENEATH = 1, 1
# Versions from which the kernel prevents a file from being emptied, and signals
# to processes outside the box.
TRUNCATES, SIGNALS = 3, 6


def version() -> int:
  """Return the version of the kernel's interface; 0 if it has none."""
  try:
    return linux.call('landlock_create_ruleset', None, 0, _VERSION)
  except OSError:
    return 0


def rule_set(rules: Iterable[tuple[str, int]], found: int) -> int:
  """Return a descriptor for `prepare`.

  Args:
    rules: (path, rights below it); paths that are missing or out of this user's
      reach are skipped.
    found: The version of the kernel's interface, see `version`.

  Raises:
    OSError: If the kernel has no Landlock.
  """
  known = _FILE_RIGHTS.get(found, 0xFFFF if found else 0)
  attributes = struct.pack(
      '=QQQ', known, _TCP if found >= 4 else 0, _SCOPES if found >= 6 else 0
  )
  size = 24 if found >= 6 else 16 if found >= 4 else 8
  descriptor = linux.call('landlock_create_ruleset', attributes, size, 0)
  for path, rights in rules:
    try:
      parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
      continue
    if not stat.S_ISDIR(os.fstat(parent).st_mode):
      rights &= _OF_FILES
    rule = struct.pack('=Qi', rights & known, parent)
    linux.call('landlock_add_rule', descriptor, _PATH_BENEATH, rule, 0)
    os.close(parent)
  return descriptor


def prepare(descriptor: int) -> Callable[[], int]:
  """Return a call that applies the rules to this thread and its children."""
  return linux.prepare('landlock_restrict_self', descriptor, 0)
