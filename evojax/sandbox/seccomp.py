"""Seccomp filters: the system calls that code in the box may make.

Each profile has an allow-list, which is assembled to classic BPF. A binary
search finds the range of a call's number. The kernel runs a filter once per
number when it is loaded, which happens at every run, so that a long chain of
comparisons would be slow.
"""

from collections.abc import Callable, Sequence
import ctypes
import errno
import itertools
import struct

from evojax.sandbox import landlock
from evojax.sandbox import linux

# -------------------------------------------------------------- allowed calls

# Open descriptors, memory, clocks, the process itself.
_PURE = """
  read readv pread64 write writev pwrite64 lseek close fstat dup
  mmap munmap mprotect mremap madvise brk membarrier
  rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack
  alarm setitimer getitimer nanosleep clock_nanosleep clock_gettime clock_getres
  gettimeofday time restart_syscall
  getpid getppid gettid getuid geteuid getgid getegid
  getrlimit getrusage times sysinfo uname getrandom
  sched_yield sched_getaffinity futex set_robust_list rseq
  poll ppoll select pselect6 exit exit_group
""".split()
# Files below the paths that Landlock opens, pipes within a process, threads.
_FILES = """
  open openat creat stat lstat newfstatat statx access faccessat faccessat2
  readlink readlinkat getdents64 getcwd chdir fchdir umask
  mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
  truncate ftruncate fsync fdatasync statfs fstatfs
  dup2 dup3 pipe pipe2 fadvise64 copy_file_range sendfile
""".split()
# Waiting for descriptors, with a socket pair for wake-ups, as asyncio needs.
_EVENTS = """
  epoll_create1 epoll_ctl epoll_wait epoll_pwait recvfrom
""".split()
# Other processes of the same box. No mount, no namespace, no tracing.
_PROCESSES = """
  fork vfork execve execveat wait4 waitid kill tkill tgkill
  rt_sigsuspend rt_sigpending rt_sigtimedwait pause setpgid getpgid getpgrp
  setsid getsid getgroups getresuid getresgid
  chmod fchmod fchmodat link linkat symlink symlinkat utimensat utime utimes
  flock fallocate arch_prctl set_tid_address capget
  socketpair sendto recvfrom sendmsg recvmsg shutdown getsockopt setsockopt
  getsockname getpeername
  epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
  eventfd2 timerfd_create timerfd_settime timerfd_gettime close_range
  sched_getparam sched_getscheduler getpriority getcpu
""".split()
# Landlock allows an owner to apply these to any file of the host. They must not
# fail, because git would not work.
_OF_OWNERS = 'chmod fchmod fchmodat utimensat utime utimes'.split()
# Programs try these first, and manage without them after the right error.
_ABSENT = dict.fromkeys(('clone3', 'openat2', 'fchmodat2'), errno.ENOSYS)
_ABSENT |= dict.fromkeys(
    """
    getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    setxattr lsetxattr fsetxattr
    fallocate
    """.split(),
    errno.EOPNOTSUPP,
)

# Disallowed without namespaces: sendmsg passes descriptors of files that could
# not be measured meanwhile, fallocate fills a disk at once, and capget asks
# about any process.
_OF_NAMESPACES = ('sendmsg', 'capget', 'fallocate')
# Without namespaces, these ask about any process of the host; 0 is the caller.
_OF_PROCESSES = 'getpgid getsid sched_getparam sched_getscheduler'.split()

_THREAD = 0x00010000  # CLONE_THREAD
# CLONE_NEWTIME is missing, since its bit is part of the exit signal here.
_NAMESPACES = linux.NAMESPACES | linux.CLONE_NEWUSER
# F_DUPFD .. F_SETFL, locks, F_DUPFD_CLOEXEC; no F_SETOWN, no F_SETSIG.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)
# TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: questions about descriptors.
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
_IOCTL_TERMINAL = (0x5413, 0x540F, 0x5410)  # Window size, process group.
_PRCTL = (15, 16, 38, 39)  # Names, and reading or setting no_new_privs.
_INT = 0xFFFFFFFF  # The bits of an int that the kernel reads.
_AF_UNIX = 1
# O_TRUNC | O_ACCMODE, and the values that Landlock checks: before version 3 it
# lets a file be emptied that is opened for reading, or with access mode 3.
_OPENING = 0o1003, (0, 1, 2, 0o1001, 0o1002)
_ITSELF = ((0, _INT, (0,)),)  # No other process.

# Name -> ((argument, mask, values), ...): a call is allowed if argument & mask
# is one of the values, for each entry.
_PURE_RULES = {
    'ioctl': ((1, _INT, _IOCTL),),
    # A program may read its own limits. If it could set them, it could make the
    # kernel send it SIGKILL, which counts as a failure of the machine.
    'prlimit64': (*_ITSELF, (2, None, (0,))),
    'sched_getaffinity': _ITSELF,
    # A negative clock is the CPU time of any process or thread.
    **dict.fromkeys(
        ('clock_gettime', 'clock_getres', 'clock_nanosleep'),
        ((0, 1 << 31, (0,)),),
    ),
}
_FD_RULES = _PURE_RULES | {
    'open': ((1, *_OPENING),),
    'openat': ((2, *_OPENING),),
    'fcntl': ((1, _INT, _FCNTL),),
    # No datagram sockets: each datagram could name another receiver.
    'socketpair': ((0, _INT, (_AF_UNIX,)), (1, 0xF, (1, 5))),
}
_PROGRAM_RULES = {
    'clone': ((0, _THREAD | _NAMESPACES, (_THREAD,)),),
    # Only to the other end of the pair: an address could name any socket.
    'sendto': ((4, None, (0,)),),
}
_PROCESS_RULES = {
    'clone': ((0, _NAMESPACES, (0,)),),
    'ioctl': ((1, _INT, (*_IOCTL, *_IOCTL_TERMINAL)),),
    'prctl': ((0, _INT, _PRCTL),),
}

# ------------------------------------------------------------------ the filter

_LOAD, _JUMP_EQUAL, _JUMP_GE, _JUMP, _AND, _RETURN = 32, 21, 53, 5, 84, 6
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SET_MODE_FILTER = 1
# glibc queries the cores of a thread by its number, and manages without them.
_REFUSED = {'sched_getaffinity': _ERRNO | errno.ENOSYS}
_X32 = 0x40000000  # Numbers of the x32 interface start there.


def rules(
    profile: str,
    *,
    own_user: bool = True,
    namespaces: bool = True,
    version: int = landlock.SIGNALS,
) -> dict[str, tuple | None]:
  """Return the allowed system calls of a profile.

  Args:
    profile: One of `box.PROFILES`.
    own_user: Whether the box's user owns no file of the host. Otherwise calls
      that an owner may make report success without effect: rule ().
    namespaces: Whether no process and no disk of the host is reachable.
    version: Landlock version, see `landlock.version`.

  Returns:
    System call -> None, or the conditions on its arguments.
  """
  if profile == 'pure':
    return dict.fromkeys(_PURE) | _PURE_RULES
  allowed = dict.fromkeys((*_PURE, *_FILES))
  if profile == 'program':
    allowed |= dict.fromkeys(_EVENTS) | _FD_RULES | _PROGRAM_RULES
  else:
    allowed |= dict.fromkeys(_PROCESSES) | _FD_RULES | _PROCESS_RULES
    if not own_user:
      allowed |= dict.fromkeys(_OF_OWNERS, ())
  if namespaces:
    return allowed
  without = {*_OF_NAMESPACES}
  if version < landlock.TRUNCATES:
    without.add('truncate')
  if version < landlock.SIGNALS:
    without |= {'kill', 'tkill', 'tgkill'}
  narrow = dict.fromkeys(_OF_PROCESSES, _ITSELF)
  narrow['getpriority'] = (*_ITSELF, (1, _INT, (0,)))
  return {
      name: narrow.get(name, rule)
      for name, rule in allowed.items()
      if name not in without
  }


def assemble(allowed: dict[str, tuple | None]) -> bytes:
  """Return the filter as an array of `struct sock_filter`."""
  denied = _ERRNO | errno.EPERM
  blocks = {name: _return(_ERRNO | e) for name, e in _ABSENT.items()}
  for name, rule in allowed.items():
    plain = _return(_ALLOW if rule is None else _ERRNO)
    blocks[name] = _check(rule, _REFUSED.get(name, denied)) if rule else plain
  numbers = {linux.number(name): block for name, block in blocks.items()}
  numbers.pop(None, None)  # Number of calls that this machine lacks.
  starts = {0: _return(denied)}
  for number in sorted(numbers):
    # If two ranges start at the same value, the later one counts.
    starts |= {number: numbers[number], number + 1: _return(denied)}
  same = itertools.groupby(starts.items(), key=lambda item: item[1])
  ranges = [next(group) for _, group in same]  # Equal neighbours are merged.
  program = [
      (_LOAD, 0, 0, 4),  # seccomp_data.arch
      (_JUMP_EQUAL, 1, 0, linux.audit_architecture()),
      *_return(_KILL_PROCESS),
      (_LOAD, 0, 0, 0),  # seccomp_data.nr
      (_JUMP_GE, 0, 1, _X32),
      *_return(_KILL_PROCESS),
      *_search(ranges),
  ]
  return b''.join(struct.pack('=HBBI', *step) for step in program)


def _search(ranges: Sequence[tuple[int, list]]) -> list:
  """Return a binary search over ranges of numbers, each with its code."""
  if len(ranges) == 1:
    return ranges[0][1]
  middle = len(ranges) // 2
  left, right = _search(ranges[:middle]), _search(ranges[middle:])
  # Conditional jumps reach 255 steps; unconditional ones have no limit.
  return [
      (_JUMP_GE, 0, 1, ranges[middle][0]),
      (_JUMP, 0, 0, len(left)),
      *left,
      *right,
  ]


def _check(tests: Sequence[tuple], denied: int) -> list:
  """Return steps that allow a call if its arguments pass all tests.

  Args:
    tests: (index of an argument, mask of its low 32 bits, allowed values);
      mask None: all 64 bits are compared.
    denied: Return value of the filter for other calls.
  """
  steps = []
  for argument, mask, values in tests:
    low = 16 + 8 * argument  # Little-endian: the low half comes first.
    if mask is None:
      high = (_LOAD, 0, 0, low + 4), (_JUMP_EQUAL, 1, 0, 0)
      steps += [*high, *_return(denied)]
    steps.append((_LOAD, 0, 0, low))
    if mask not in (None, _INT):
      steps.append((_AND, 0, 0, mask))
    # A matching value jumps past the refusal.
    for index, value in enumerate(values):
      steps.append((_JUMP_EQUAL, len(values) - index, 0, value))
    steps += _return(denied)
  return steps + _return(_ALLOW)


def _return(action: int) -> list:
  return [(_RETURN, 0, 0, action)]


class _Program(ctypes.Structure):
  _fields_ = (('length', ctypes.c_ushort), ('filter', ctypes.c_char_p))


def prepare(program: bytes) -> Callable[[], int]:
  """Return a call that applies a filter to this thread and its children.

  The call raises OSError if the kernel refuses, e.g. without no_new_privs.
  """
  pointer = _Program(len(program) // 8, program)
  return linux.prepare('seccomp', _SET_MODE_FILTER, 0, ctypes.byref(pointer))
