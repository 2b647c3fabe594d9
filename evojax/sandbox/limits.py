"""Limits of a run, layers of the box, and the result of a run."""

import dataclasses
import math

# Layers of the box, outermost first. Every tier is a set of them.
LAYERS = (
    'namespaces',  # No network, no host processes, no System V objects.
    'root',  # A file system tree of its own.
    'uid',  # A user of its own, without capabilities.
    'quota',  # A limit on the bytes and files that it writes.
    'environment',  # No environment variable of the parent.
    'descriptors',  # No open file of the parent or the zygote.
    'landlock',  # The kernel allows some paths, no TCP, no signals outside.
    'seccomp',  # The kernel allows some system calls.
    'rlimits',  # Limits on memory, file size, CPU seconds, descriptors.
    'clock',  # Wall and CPU time are watched from outside.
    'sweep',  # All processes and files that a run leaves behind are removed.
)
# T1 does not hide what separate trees and namespaces hide. Landlock does not
# restrict stat, access and readlink: a program can find out whether a host path
# exists (a file, a package, a process as /proc/PID), its size, owner and times,
# and where a link leads. Commands can list the names of the packages beside the
# interpreter, and find out by an error whether a process id is in use. In both
# tiers sysinfo and uname reveal the load and the name of the machine.
TIERS = {
    'T0': frozenset(LAYERS),
    'T1': frozenset(LAYERS) - {'namespaces', 'root'},
    'T2': frozenset('environment descriptors rlimits clock sweep'.split()),
}


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of one run; all must be positive."""

  wall_seconds: float = 10.0
  cpu_seconds: float = 5.0  # User and system time of all threads.
  memory_bytes: int = 512 << 20  # Address space on top of the interpreter's.
  # For stdout and stderr each. A program's stderr is cut, without an error.
  output_bytes: int = 1 << 20
  # The following limits hold for all runs of a box.
  disk_bytes: int = 16 << 20  # Bytes of its files, including nameless ones.
  files: int = 256  # Files, directories and links.
  processes: int = 16  # Threads count as processes.

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not 0 < value < math.inf:  # This also refuses NaN.
        raise ValueError(f'{name}={value!r} is not a positive number')

  @property
  def of_a_run(self) -> tuple[float, float, int, int]:
    """Return the limits that may differ between runs."""
    seconds = self.wall_seconds, self.cpu_seconds
    return *seconds, self.memory_bytes, self.output_bytes

  @property
  def of_the_box(self) -> tuple[int, int, int]:
    """Return the limits that must be equal in all runs."""
    return self.disk_bytes, self.files, self.processes


@dataclasses.dataclass(frozen=True)
class Result:
  """The outcome of a run; its bytes come from untrusted code."""

  # 'ok', 'error', 'timeout', 'cpu_limit', 'memory_limit', 'output_limit',
  # 'disk_limit' or 'infra_error'. In an 'error' the program raised, exited with
  # a code, or crashed. Errors and exceeded limits are the program's fault; only
  # 'infra_error' says nothing about the program.
  status: str
  tier: str  # The tier that it ran in.
  stdout: bytes = b''  # At most output_bytes.
  stderr: bytes = b''  # At most output_bytes.
  exit_code: int | None = None  # Negative: the signal that ended it.
  wall_seconds: float = 0.0
  cpu_seconds: float = 0.0
  contended: bool = False  # Late because others used the cores; see message.
  message: str = ''  # One line if the status is not 'ok'.
  attempts: int = 1  # More than one after attempts that say nothing.
