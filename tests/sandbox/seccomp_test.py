"""The filter, run by an independent interpreter, matches the rules."""

import errno
import platform
import struct
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.sandbox import box
from evojax.sandbox import linux
from evojax.sandbox import seccomp

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM = 0x50000 | errno.EPERM
_LONG = (1 << 64) - 1


def run(program, number, arguments=(), architecture=None):
  """Return the result of a classic BPF filter for a system call."""
  if architecture is None:
    architecture = linux.audit_architecture()
  data = struct.pack(
      '<iIQ6Q', number, architecture, 0, *arguments, *[0] * (6 - len(arguments))
  )
  steps = list(struct.iter_unpack('=HBBI', program))
  accumulator = position = 0
  while True:
    code, true, false, value = steps[position]
    position += 1
    if code == 32:
      (accumulator,) = struct.unpack_from('<I', data, value)
    elif code == 84:
      accumulator &= value
    elif code == 5:
      position += value
    elif code == 21:
      position += true if accumulator == value else false
    elif code == 53:
      position += true if accumulator >= value else false
    elif code == 6:
      return value
    else:
      raise ValueError(f'{code=}')


class FilterTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    linux._numbers.cache_clear()
    self.addCleanup(linux._numbers.cache_clear)

  @parameterized.product(
      profile=box.PROFILES,
      machine=('x86_64', 'aarch64'),
  )
  def test_every_number(self, profile, machine):
    with mock.patch.object(platform, 'machine', return_value=machine):
      linux._numbers.cache_clear()
      rules = seccomp.rules(profile)
      program = seccomp.assemble(rules)
      names = {number: name for name, number in linux._numbers().items()}
      found, expected = {}, {}
      for number in range(600):
        name = names.get(number, number)
        found[name], expected[name] = run(program, number), _EPERM
        if name in rules:
          if all(0 in values for _, _, values in rules[name] or ()):
            expected[name] = _ALLOW
        elif name in seccomp._ABSENT:
          expected[name] = 0x50000 | seccomp._ABSENT[name]
      self.assertEqual(found, expected)
      self.assertEqual(run(program, 0, architecture=0x40000003), _KILL)
      self.assertEqual(run(program, 0x40000000), _KILL)
      self.assertEqual(run(program, 0x3FFFFFFF), _EPERM)
      self.assertLess(len(program) // 8, 4096)  # The kernel's limit.

  @parameterized.parameters(
      # Threads: CLONE_VM and the flags of glibc; a fork is SIGCHLD alone.
      ('program', 'clone', (0x3D0F00,), True),
      ('program', 'clone', (17,), False),
      ('program', 'clone', (0x3D0F00 | 0x10000000,), False),
      ('repository', 'clone', (17,), True),
      ('repository', 'clone', (17 | 0x20000000,), False),
      ('repository', 'clone', (0x02000000,), False),
      # The high half of a pointer counts as well.
      ('program', 'prlimit64', (0, 7, 0, 1), True),
      ('program', 'prlimit64', (0, 7, 1 << 32, 0), False),
      ('program', 'prlimit64', (0, 7, 4096, 0), False),
      ('program', 'prlimit64', (0, 7, 0, 0), True),
      ('pure', 'prlimit64', (1, 7, 0, 1), False),  # Another process.
      ('program', 'fcntl', (3, 10, 9), False),  # F_SETSIG
      ('program', 'fcntl', (3, 8, 1), False),  # F_SETOWN
      ('program', 'fcntl', (3, 1030, 0), True),
      # The kernel reads only 32 bits of it.
      ('program', 'fcntl', (3, 1 << 32 | 10), False),
      ('program', 'fcntl', (3, 1 << 32 | 3), True),
      ('program', 'ioctl', (0, 0x5401), True),
      ('program', 'ioctl', (0, 0x5412), False),  # TIOCSTI
      ('repository', 'ioctl', (0, 0x5412), False),
      ('repository', 'prctl', (1, 0), False),  # PR_SET_PDEATHSIG
      ('repository', 'prctl', (38, 1), True),
      ('repository', 'socketpair', (1, 1), True),
      ('repository', 'socketpair', (2, 1), False),
      ('repository', 'socketpair', (1, 0x80801), True),  # SOCK_CLOEXEC, too.
      ('program', 'socketpair', (1, 5), True),
      ('program', 'socketpair', (1, 2), False),  # SOCK_DGRAM
      # A file opened for nothing, or for reading, must not be truncated.
      ('program', 'openat', (-100 & _LONG, 0, 0o2), True),
      ('program', 'openat', (-100 & _LONG, 0, 0o1102), True),
      ('program', 'openat', (-100 & _LONG, 0, 0o1000), False),
      ('repository', 'openat', (-100 & _LONG, 0, 0o1003), False),
      ('repository', 'openat', (-100 & _LONG, 0, 0o3), False),
      # Clocks of processes have negative ids.
      ('pure', 'clock_gettime', (2,), True),
      ('pure', 'clock_gettime', (~1234 << 3 & _LONG | 2,), False),
      ('program', 'clock_nanosleep', (0xFFFFFFFA,), False),
      ('repository', 'clock_getres', (0xFFFFFFFA,), False),
  )
  def test_arguments(self, profile, name, arguments, allowed):
    program = seccomp.assemble(seccomp.rules(profile))
    found = run(program, linux.number(name), arguments)
    self.assertEqual(found, _ALLOW if allowed else _EPERM)

  def test_what_an_owner_may_do(self):
    for own_user, expected in ((True, _ALLOW), (False, 0x50000)):
      rules = seccomp.rules('repository', own_user=own_user)
      program = seccomp.assemble(rules)
      for name in ('chmod', 'fchmod', 'fchmodat', 'utimensat'):
        number = linux.number(name)
        if number is not None:
          self.assertEqual(run(program, number), expected, name)

  @parameterized.parameters('getpgid', 'getsid', 'sched_getscheduler')
  def test_processes_of_the_host(self, name):
    for namespaces, expected in ((True, _ALLOW), (False, _EPERM)):
      rules = seccomp.rules('repository', namespaces=namespaces)
      program = seccomp.assemble(rules)
      number = linux.number(name)
      self.assertEqual(run(program, number, (1,)), expected)
      self.assertEqual(run(program, number, (0,)), _ALLOW)

  def test_cores_of_another_are_not_known(self):
    """glibc asks for the cores of a thread, and continues without them."""
    program = seccomp.assemble(seccomp.rules('program'))
    found = run(program, linux.number('sched_getaffinity'), (1,))
    self.assertEqual(found, 0x50000 | errno.ENOSYS)

  @parameterized.parameters(
      ('truncate', 'program', 3),
      ('truncate', 'repository', 3),
      ('kill', 'repository', 6),
      ('tkill', 'repository', 6),
      ('tgkill', 'repository', 6),
  )
  def test_what_landlock_holds_from_a_version_on(self, name, profile, version):
    for found in range(1, 8):
      rules = seccomp.rules(profile, namespaces=False, version=found)
      self.assertEqual(name in rules, found >= version, found)
    self.assertIn(name, seccomp.rules(profile, version=1))

  def test_pure_opens_nothing(self):
    rules = seccomp.rules('pure')
    for name in ('open', 'openat', 'clone', 'fork', 'execve', 'pipe2', 'kill',
                 'socketpair', 'newfstatat', 'fcntl'):  # fmt: skip
      self.assertNotIn(name, rules)

  @parameterized.parameters(*box.PROFILES)
  def test_never(self, profile):
    rules = seccomp.rules(profile)
    for name in ('ptrace', 'process_vm_readv', 'mount', 'umount2', 'unshare',
                 'setns', 'socket', 'connect', 'bind', 'memfd_create', 'bpf',
                 'io_uring_setup', 'keyctl', 'add_key', 'shmget', 'semget',
                 'msgget', 'perf_event_open', 'userfaultfd', 'chroot',
                 'pivot_root', 'setuid', 'setrlimit', 'timer_create', 'seccomp',
                 'init_module', 'kexec_load', 'mknod', 'mknodat', 'chown',
                 'capset', 'open_by_handle_at', 'pidfd_open',
                 'pidfd_send_signal', 'rt_sigqueueinfo'):  # fmt: skip
      self.assertNotIn(name, rules)


if __name__ == '__main__':
  absltest.main()
