"""What a run may use, and what is known of it afterwards."""

import dataclasses
import math

# 'error' is a program's own: it raised, exited with a code, or crashed. The
# limits are its own too. Only 'infra_error' says nothing about the program.
STATUSES = (
    'ok',
    'error',
    'timeout',
    'cpu_limit',
    'memory_limit',
    'output_limit',
    'disk_limit',
    'infra_error',
)
# Layers of the box, outermost first. Every tier is a set of them.
LAYERS = (
    'namespaces',  # No network, no host processes, no System V objects.
    'root',  # A tree of its own: nothing else of the file system is there.
    'uid',  # A user of its own, without capabilities.
    'quota',  # Bytes and files of its directory.
    'environment',  # No variable of the parent's.
    'descriptors',  # No open file of the parent's or the zygote's.
    'landlock',  # Paths, TCP and signals that the kernel lets through.
    'seccomp',  # System calls that the kernel lets through.
    'rlimits',  # Memory, file size, CPU seconds, descriptors.
    'clock',  # Wall and CPU time, watched from outside.
    'sweep',  # Every process and file that a run leaves behind is removed.
)
TIERS = {
    'T0': frozenset(LAYERS),
    'T1': frozenset(LAYERS) - {'namespaces', 'root'},
    'T2': frozenset(
        ('environment', 'descriptors', 'rlimits', 'clock', 'sweep')
    ),
}


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of one run; all must be positive."""

  wall_seconds: float = 10.0
  cpu_seconds: float = 5.0  # User and system, all threads.
  memory_bytes: int = 512 << 20  # Address space on top of the interpreter's.
  output_bytes: int = 1 << 20  # Of stdout, and of stderr: a program's is cut.
  # The rest holds for all runs of a box.
  disk_bytes: int = 16 << 20  # Of its own directory.
  files: int = 256  # Files and directories in it.
  processes: int = 16  # Threads count as processes.

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not (math.isfinite(value) and value > 0):
        raise ValueError(f'{field.name}={value!r} is not a positive number')

  @property
  def of_the_box(self) -> tuple[int, int, int]:
    """Those that cannot differ from run to run."""
    return self.disk_bytes, self.files, self.processes


@dataclasses.dataclass(frozen=True)
class Result:
  """What a run did. The bytes come from untrusted code; judge them strictly."""

  status: str  # One of STATUSES.
  tier: str  # That it ran in.
  stdout: bytes = b''  # At most output_bytes.
  stderr: bytes = b''  # At most output_bytes.
  exit_code: int | None = None  # Negative: minus the signal.
  wall_seconds: float = 0.0
  cpu_seconds: float = 0.0
  contended: bool = False  # Late, having waited for a core: see message.
  message: str = ''  # One line where the status is not 'ok'.
  attempts: int = 1  # More than one after an infra_error.
