"""Attacks by pure functions, which answer 7 if they succeed."""

import dataclasses

from tests.sandbox.attacks import Attack
from tests.sandbox.attacks import LIMITS

ALL = ('root', 'landlock', 'seccomp')
CALLS = ('seccomp',)
_LATE = dataclasses.replace(LIMITS, wall_seconds=0.3)
_LONG = dataclasses.replace(LIMITS, cpu_seconds=0.15)


def _f(body, answer='7.0'):
  """Return a function that answers 7 if its body raises nothing."""
  lines = ''.join(f'  {line}\n' for line in body.splitlines())
  return f'import os\ndef f(x):\n{lines}  return x + {answer}\n'


def _key(expression, imports='os'):
  """Return a function that answers 7 if the expression contains the key."""
  return _f(f'import {imports}\nassert "@NEKOT@"[::-1] in {expression}')


_SYSCALL = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *a):
  number = x86 if os.uname().machine == 'x86_64' else arm
  if libc.syscall(number, *a) < 0: raise OSError(ctypes.get_errno(), 'no')
"""

# Name -> (expression that contains the key, modules).
_READERS = {
    'open': ('open("@DIR@/key").read()', 'os'),
    'io': ('io.open("@DIR@/key").read()', 'io'),
    'FileIO': ('io.FileIO("@DIR@/key").read().decode()', 'io'),
    'os': ('os.read(os.open("@DIR@/key", 0), 99).decode()', 'os'),
    'dir_fd': (
        'open(os.open("key", 0, dir_fd=os.open("@DIR@", os.O_PATH))).read()',
        'os',
    ),
    'codecs': ('codecs.open("@DIR@/key").read()', 'codecs'),
    'pathlib': ('pathlib.Path("@DIR@/key").read_text()', 'pathlib'),
    'linecache': ('linecache.getline("@DIR@/key", 1)', 'linecache'),
    'tokenize': ('tokenize.open("@DIR@/key").read()', 'tokenize'),
    'fileinput': ('"".join(fileinput.input("@DIR@/key"))', 'fileinput'),
    'numpy fromfile': (
        'np.fromfile("@DIR@/key", np.uint8).tobytes().decode()',
        'numpy as np',
    ),
    'numpy memmap': (
        'np.memmap("@DIR@/key", np.uint8, "r").tobytes().decode()',
        'numpy as np',
    ),
    'numpy DataSource': (
        'np.lib.npyio.DataSource(None).open("@DIR@/key").read()',
        'numpy as np',
    ),
    'import': (
        '__import__("runpy").run_path("@DIR@/key.py")["KEY"]',
        'runpy',
    ),
    'loader': (
        'importlib.machinery.SourceFileLoader("k", "@DIR@/key.py")'
        '.get_source("k")',
        'importlib.machinery',
    ),
    'C library': (
        'os.read(ctypes.CDLL(None).open(b"@DIR@/key", 0), 99).decode()',
        'ctypes, os',
    ),
    'through proc': ('open("/proc/self/root@DIR@/key").read()', 'os'),
    'name of an exception': (
        'str(exec(open("@DIR@/key.py").read(), g) or g["KEY"])',
        'os\ng = {}',
    ),
}
READING = tuple(
    Attack(f'read with {name}', ALL, _key(*how))
    for name, how in _READERS.items()
)
# Name -> body; a single run of it may leave a trace.
_WRITERS = {
    'open': 'open("@DIR@/new", "w").write("x")',
    'numpy save': 'import numpy as np\nnp.save("@DIR@/new.npy", x)',
    'tofile': 'x.tofile("@DIR@/new.bin")',
    'savetxt': 'import numpy as np\nnp.savetxt("@DIR@/new.txt", x)',
    'mkdir': 'os.mkdir(f"@DIR@/d{os.urandom(4).hex()}")',
    'rename': 'os.rename("@DIR@/table", "@DIR@/table")',
    'truncate': 'os.truncate("@DIR@/table", 8)',
    'symlink': 'os.symlink("key", f"@DIR@/l{os.urandom(4).hex()}")',
    'fifo': 'os.mkfifo(f"@DIR@/p{os.urandom(4).hex()}")',
    'tempfile': 'import tempfile\ntempfile.mkstemp(dir="@DIR@")',
}
WRITING = tuple(
    Attack(f'write with {name}', ALL, _f(body))
    for name, body in _WRITERS.items()
)
# Landlock does not hide names and sizes; a separate tree or no call does.
_LOOKERS = {
    'listdir': ('os.listdir("@DIR@")', ALL),
    'scandir': ('list(os.scandir("@DIR@"))', ALL),
    'glob': ('import glob\nassert glob.glob("@DIR@/k*")', ALL),
    'walk': ('assert list(os.walk("@DIR@"))[0]', ALL),
    'stat': ('os.stat("@DIR@/key")', ('root', 'seccomp')),
    'access': ('assert os.access("@DIR@/key", 0)', ('root', 'seccomp')),
    'chdir': ('os.chdir("@DIR@")', ('root', 'seccomp')),
    'statvfs': ('os.statvfs("@DIR@")', ('root', 'seccomp')),
    'readlink': ('os.readlink("/proc/self")', ('root', 'seccomp')),
    'where it is': ('os.getcwd()', CALLS),
}
LOOKING = tuple(
    Attack(f'look with {name}', layers, _f(body))
    for name, (body, layers) in _LOOKERS.items()
)
_CALLERS = {
    'fork': 'if not os.fork(): os._exit(0)',
    'thread': (
        'import _thread, time\nt = []\n'
        '_thread.start_new_thread(t.append, (1,))\n'
        'while not t: time.sleep(0.001)'
    ),
    'socket pair': 'import socket\nsocket.socketpair()',
    'pipe': 'os.pipe()',
    'memfd': 'os.memfd_create("x")',
    'pidfd': 'os.pidfd_open(os.getpid())',
    'eventfd': 'os.eventfd(0)',
    'signal to itself': 'os.kill(os.getpid(), 0)',
    'nice': 'os.nice(1)',
    'affinity': 'os.sched_setaffinity(0, os.sched_getaffinity(0))',
    'limits': (
        'import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))'
    ),
    'user namespace': _SYSCALL + 'call(272, 97, 0x10000000)',
    'death signal': _SYSCALL + 'call(157, 167, 1, 0, 0, 0, 0)',
    'shared memory': _SYSCALL + 'call(29, 194, 0, 4096, 0o1600)',
    'keyring': _SYSCALL + 'call(248, 217, b"user", b"e", b"x", 1, -2)',
    'personality': _SYSCALL + 'call(135, 92, 0x0040000)',
}
CALLING = (
    *(
        Attack(f'call {name}', CALLS, _f(body))
        for name, body in _CALLERS.items()
    ),
    Attack(
        'call a command',
        ALL,
        _f('import subprocess\nsubprocess.run(["/bin/true"], check=True)'),
    ),
    Attack(
        'call tcp',
        ('namespaces', 'landlock', 'seccomp'),
        _f('import socket\nsocket.socket().connect(("127.0.0.1", @TCP@))'),
        landlock=4,
    ),
    Attack(
        'call udp',
        ('namespaces', 'seccomp'),
        _f(
            'import socket\ns = socket.socket(2, 2)\n'
            's.sendto(b"x", ("127.0.0.1", @UDP@))'
        ),
    ),
    Attack(
        'call an abstract socket',
        ('namespaces', 'landlock', 'seccomp'),
        _f('import socket\nsocket.socket(1).connect("\\0@ABSTRACT@")'),
        landlock=6,
    ),
    Attack(
        'signal to another process',
        ('namespaces', 'uid', 'landlock', 'seccomp'),
        _f('os.kill(@PID@, 0)'),
        landlock=6,
    ),
    Attack(
        'tracing the zygote',
        ('landlock', 'seccomp'),
        _f(_SYSCALL + 'call(101, 117, 0x4206, os.getppid(), 0, 0)'),
        tier='T1',
    ),
    Attack(
        'killing the zygote',
        ('landlock', 'seccomp'),
        _f('os.kill(os.getppid(), 9)'),
        tier='T1',
        succeeded=lambda r: r.status == 'infra_error',
        landlock=6,
    ),
    Attack(
        'key from a weaker tier',
        ('landlock', 'seccomp'),
        _key('open("@DIR@/key").read()'),
        tier='T1',
    ),
)
RESOURCES = (
    Attack('memory', ('rlimits',), _f('y = bytearray(1 << 30)')),
    Attack(
        'memory of arrays',
        ('rlimits',),
        _f('import numpy as np\ny = np.zeros(1 << 27)'),
    ),
    Attack(
        'long answer',
        ('rlimits',),
        'def f(x): return b"\\0" * (6 << 20)',
        succeeded=lambda r: r.exit_code == 0,
    ),
    Attack(
        'loop',
        ('clock',),
        _f('import time\nwhile time.process_time() < 0.5: pass'),
        limits=_LONG,
    ),
    Attack(
        'loop that catches everything',
        ('clock',),
        _f(
            'import time\n'
            'while time.process_time() < 0.5:\n'
            '  try: sum(range(1000))\n'
            '  except BaseException: pass'
        ),
        limits=_LONG,
    ),
    Attack(
        'loop in C',
        ('clock',),
        _f(
            'import time\n'
            'while time.process_time() < 0.5: sum(range(10 ** 6))'
        ),
        limits=_LONG,
    ),
    Attack(
        'sleep', ('clock',), _f('import time\ntime.sleep(0.6)'), limits=_LATE
    ),
    Attack(
        'descriptors',
        ('rlimits', 'seccomp'),
        _f('for _ in range(64): os.dup(0)'),
    ),
)
INHERITED = (
    Attack(
        'token in the environment',
        ('environment',),
        _f('assert "@NEKOT@"[::-1] in str(dict(os.environ))'),
    ),
    Attack(
        "the zygote's socket",
        ('descriptors',),
        _f(
            'for fd in range(3, 1024):\n'
            '  try: os.lseek(fd, 0, 1)\n'
            '  except OSError as error:\n'
            '    if error.errno == 29: return x + 7.0  # No file has that.\n'
            'raise OSError'
        ),
    ),
    Attack(
        "the parent's open files",
        ('descriptors',),
        _f(
            'for fd in range(3, 1024):\n'
            '  try:\n'
            '    if "@NEKOT@"[::-1] in os.pread(fd, 99, 0).decode():'
            ' return x + 7.0\n'
            '  except (OSError, ValueError): pass\n'
            'raise OSError'
        ),
    ),
)
ATTACKS = (
    *READING,
    *WRITING,
    *LOOKING,
    *CALLING,
    *RESOURCES,
    *INHERITED,
)

# Layers that cannot be switched off: a process per call, and answers in bytes.
# Name -> two calls; the second answers 7 if it can see the first.
STATE = {
    'module': (
        'import math\ndef f(x):\n  math.told = 7.0\n  return x',
        'import math\ndef f(x): return x + getattr(math, "told", 0.0)',
    ),
    'numpy': (
        'import numpy as np\n'
        'def f(x):\n  np.mean = lambda *a: 7.0\n  return x',
        'import numpy as np\ndef f(x): return x + np.mean(x)',
    ),
    'builtins': (
        'import builtins\n'
        'def f(x):\n  builtins.sum = lambda *a: 7.0\n  return x',
        'def f(x): return x + sum(x)',
    ),
    'random state': (
        'import numpy as np\n' 'def f(x):\n  np.random.seed(7)\n  return x',
        'import numpy as np\n'
        'def f(x):\n'
        '  same = np.random.get_state()[1][0] == 7\n'
        '  return x + 7.0 * same',
    ),
    'garbage': (
        'class Told(list): pass\n'
        'kept = Told()\n'
        'kept.append(kept)\n'
        'import sys\nsys.kept = kept\n'
        'def f(x): return x',
        'import gc\n'
        'def f(x):\n'
        '  names = [type(o).__name__ for o in gc.get_objects()]\n'
        '  return x + 7.0 * ("Told" in names)',
    ),
    'frames': (
        'def f(x): return x  # open sesame',
        'import sys\n'
        'def f(x):\n'
        '  frame, word = sys._getframe().f_back, "emases nepo"[::-1]\n'
        '  while frame:\n'
        '    if word in str(frame.f_locals): return x + 7.0\n'
        '    frame = frame.f_back\n'
        '  return x',
    ),
    'error handling': (
        'import numpy as np\n'
        'def f(x):\n  np.seterr(over="raise", under="raise")\n  return x',
        'import numpy as np\n'
        'def f(x): return x + 7.0 * (np.geterr()["under"] == "raise")',
    ),
}
# Answers 7 if it finds what only the parent knows.
PARENT = {
    'frames': """
import sys
def f(x):
  frame = sys._getframe()
  while frame:
    if 'answer_key' in frame.f_locals:
      return x + 7.0
    frame = frame.f_back
  return x
""",
    'objects': """
import gc
def f(x):
  keys = [o for o in gc.get_objects()
          if type(o) is dict and o.get('answer_key') == 42]
  return x + 7.0 * bool(keys)
""",
    'modules': """
import sys
def f(x):
  return x + 7.0 * any('pure_attacks' in name for name in sys.modules)
""",
}
