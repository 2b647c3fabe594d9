"""System calls that Python has no function for, on x86-64 and arm64 Linux."""

from collections.abc import Callable
import ctypes
import errno
import functools
import os
import platform
import struct

# Name, number on x86-64, number on arm64; '-' if it does not exist there.
_TABLE = """
  read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80,
  lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215,
  brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
  ioctl 16 29, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66,
  access 21 -, pipe 22 -, select 23 -, sched_yield 24 124, mremap 25 216,
  madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
  getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172,
  sendfile 40 71, sendto 44 206, recvfrom 45 207, sendmsg 46 211,
  recvmsg 47 212, shutdown 48 210, getsockname 51 204, getpeername 52 205,
  socketpair 53 199, setsockopt 54 208, getsockopt 55 209, clone 56 220,
  fork 57 -, vfork 58 -, execve 59 221, exit 60 93, wait4 61 260, kill 62 129,
  uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83,
  truncate 76 45, ftruncate 77 46, getcwd 79 17, chdir 80 49, fchdir 81 50,
  rename 82 -, mkdir 83 -, rmdir 84 -, creat 85 -, link 86 -, unlink 87 -,
  symlink 88 -, readlink 89 -, chmod 90 -, fchmod 91 52, umask 95 166,
  gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
  times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175,
  getegid 108 177, setpgid 109 154, getppid 110 173, getpgrp 111 -,
  setsid 112 157, getgroups 115 158, getresuid 118 148, getresgid 120 150,
  getpgid 121 155, getsid 124 156, capget 125 90, capset 126 91,
  rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
  sigaltstack 131 132, utime 132 -, statfs 137 43, fstatfs 138 44,
  getpriority 140 141, sched_getparam 143 121, sched_getscheduler 145 120,
  pivot_root 155 41, prctl 157 167, arch_prctl 158 -, mount 165 40,
  umount2 166 39, gettid 186 178, setxattr 188 5, lsetxattr 189 6,
  fsetxattr 190 7, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
  listxattr 194 11, llistxattr 195 12, flistxattr 196 13, tkill 200 130,
  time 201 -, futex 202 98, sched_getaffinity 204 123, epoll_create 213 -,
  getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128,
  fadvise64 221 223, clock_gettime 228 113, clock_getres 229 114,
  clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -,
  epoll_ctl 233 21, tgkill 234 131, utimes 235 -, waitid 247 95,
  openat 257 56, mkdirat 258 34, newfstatat 262 79, unlinkat 263 35,
  renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78,
  fchmodat 268 53, faccessat 269 48, pselect6 270 72, ppoll 271 73,
  unshare 272 97, set_robust_list 273 99, utimensat 280 88,
  epoll_pwait 281 22, timerfd_create 283 85, fallocate 285 47,
  timerfd_settime 286 86, timerfd_gettime 287 87, eventfd2 290 19,
  epoll_create1 291 20, dup3 292 24, pipe2 293 59, prlimit64 302 261,
  getcpu 309 168, renameat2 316 276, seccomp 317 277, getrandom 318 278,
  execveat 322 281, membarrier 324 283, copy_file_range 326 285,
  statx 332 291, rseq 334 293, open_tree 428 428, move_mount 429 429,
  clone3 435 435, close_range 436 436, openat2 437 437, faccessat2 439 439,
  epoll_pwait2 441 441, mount_setattr 442 442,
  landlock_create_ruleset 444 444, landlock_add_rule 445 445,
  landlock_restrict_self 446 446, fchmodat2 452 452
"""
_COLUMN = {'x86_64': 1, 'aarch64': 2}
_AUDIT = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}

# CLONE_NEW*: mounts, control groups, host name, IPC, processes, network.
NAMESPACES = 1 << 17 | 1 << 25 | 1 << 26 | 1 << 27 | 1 << 29 | 1 << 30
CLONE_NEWUSER = 1 << 28
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_MS_BIND_REC_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
_MS_NOSUID_NODEV = 0x2 | 0x4
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_RDONLY, _NOSUID, _NODEV = 0x1, 0x2, 0x4  # MOUNT_ATTR_*
_CAPABILITY_VERSION_3 = 0x20080522


@functools.cache
def _numbers() -> dict[str, int]:
  """Return name -> number on this machine."""
  column = _COLUMN.get(platform.machine())
  if column is None:
    return {}
  rows = (entry.split() for entry in _TABLE.split(','))
  return {row[0]: int(row[column]) for row in rows if row[column] != '-'}


def number(name: str) -> int | None:
  """Return the number of a system call; None if this machine lacks it."""
  return _numbers().get(name)


def audit_architecture() -> int:
  """Return seccomp's number of this machine's native interface."""
  return _AUDIT[platform.machine()]


@functools.cache
def _syscall():
  function = ctypes.CDLL(None, use_errno=True).syscall
  function.restype = ctypes.c_long
  return function


def prepare(name: str, *arguments) -> Callable[[], int]:
  """Return a function that makes a system call.

    The function does little but call, because a freshly forked child pays for
    every page that it touches. It raises OSError if the kernel refuses.

  Args:
    name: Name of the system call.
    *arguments: Integers, bytes and ctypes pointers.

  Raises:
    OSError: If this machine has no such call.
  """
  found = number(name)
  if found is None:
    raise OSError(errno.ENOSYS, f'{name}: unknown on {platform.machine()}')
  function = _syscall()
  values = [ctypes.c_long(found)]
  values += [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]

  def run() -> int:
    result = function(*values)
    if result < 0:
      error = ctypes.get_errno()
      raise OSError(error, f'{name}: {os.strerror(error)}')
    return result

  return run


def call(name: str, *arguments) -> int:
  """Make a system call; see `prepare`."""
  return prepare(name, *arguments)()


def prctl(option: int, value: int) -> None:
  """Call prctl(2) with one argument."""
  call('prctl', option, value, 0, 0, 0)


def drop_capabilities() -> None:
  """Give up every capability in the current user namespace."""
  header = struct.pack('=Ii', _CAPABILITY_VERSION_3, 0)
  call('capset', header, bytes(24))


def make_mounts_private() -> None:
  """Keep mounts from spreading between this namespace and others."""
  call('mount', b'none', b'/', None, _MS_BIND_REC_PRIVATE, None)


def mount_tmpfs(path: str, options: str) -> None:
  """Mount an empty file system in memory, e.g. 'size=1m,nr_inodes=100'."""
  where, flags = os.fsencode(path), _MS_NOSUID_NODEV
  call('mount', b'tmpfs', where, b'tmpfs', flags, options.encode())


def copy_mount(path: str, *, read_only: bool = True, devices: bool = False):
  """Return a descriptor, for `attach`, of a detached copy of a tree.

  Args:
    path: A file or directory.
    read_only: Whether the copy is read-only; device files cannot be.
    devices: Whether device files in the copy work.
  """
  flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
  descriptor = call('open_tree', _AT_FDCWD, os.fsencode(path), flags)
  flags = _NOSUID | (_RDONLY if read_only else 0) | (0 if devices else _NODEV)
  _set_attributes(descriptor, b'', _AT_EMPTY_PATH | _AT_RECURSIVE, flags)
  return descriptor


def attach(descriptor: int, path: str) -> None:
  """Mount a copy made by `copy_mount`, and close its descriptor."""
  there = _AT_FDCWD, os.fsencode(path)
  call('move_mount', descriptor, b'', *there, _MOVE_MOUNT_F_EMPTY_PATH)
  os.close(descriptor)


def make_read_only(path: str) -> None:
  """Make the mount at a path read-only, but not those below it."""
  _set_attributes(_AT_FDCWD, os.fsencode(path), 0, _RDONLY)


def _set_attributes(descriptor: int, path: bytes, scope: int, flags: int):
  attributes = struct.pack('=QQQQ', flags, 0, 0, 0)
  size = len(attributes)
  call('mount_setattr', descriptor, path, scope, attributes, size)


def pivot_root(path: str) -> None:
  """Make a mount the root; the old tree becomes inaccessible."""
  os.chdir(path)
  call('pivot_root', b'.', b'.')
  call('umount2', b'.', _MNT_DETACH)
  os.chdir('/')
