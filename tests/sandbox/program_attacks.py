"""Attacks by programs. Every one of them is harmless where it gets through."""

import dataclasses
import signal

from tests.sandbox.attacks import Attack
from tests.sandbox.attacks import LIMITS

_SWARM = (
    'import threading, time\n'
    'threading.stack_size(65536)\n'
    'n = 0\n'
    'try:\n'
    '  for n in range(200):\n'
    '    threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n'
    'except RuntimeError: pass\n'
)
_SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *a):
  number = x86 if os.uname().machine == 'x86_64' else arm
  if libc.syscall(number, *a) < 0:
    raise OSError(ctypes.get_errno(), 'refused')
"""
FILES = ('root', 'landlock')


def _try(source, before=''):
  """Says GOT if the source raises nothing."""
  return f'{before}\n{source}\nprint("GOT")'


def _read(expression, before=''):
  """Says GOT if the expression has the key in it."""
  return f'{before}\nassert "@NEKOT@"[::-1] in {expression}\nprint("GOT")'


_LATE = dataclasses.replace(LIMITS, wall_seconds=0.3)
_LONG = dataclasses.replace(LIMITS, cpu_seconds=0.15)
_STOPPED = dataclasses.replace(LIMITS, wall_seconds=0.3)


def _is_infra(result):
  return result.status == 'infra_error'


READING = (
    Attack('open', FILES, _read('open("@DIR@/key").read()')),
    Attack(
        'step by step',
        FILES,
        _read(
            'os.read(key, 99).decode()',
            'import os\n'
            'folder = os.open("@DIR@", os.O_RDONLY | os.O_DIRECTORY)\n'
            'key = os.open("key", os.O_RDONLY, dir_fd=folder)',
        ),
    ),
    Attack(
        'from a handle that reads nothing',
        FILES,
        _read(
            'open(os.open("key", 0, dir_fd=folder)).read()',
            'import os\nfolder = os.open("@DIR@", os.O_PATH)',
        ),
    ),
    Attack('upwards', FILES, _read('open("../" * 20 + "@DIR@/key").read()')),
    Attack(
        'through proc',
        FILES,
        _read('open("/proc/self/root@DIR@/key").read()'),
    ),
    Attack(
        'link in its directory',
        (*FILES, 'seccomp'),
        _read('open("l").read()', 'import os\nos.symlink("@DIR@/key", "l")'),
    ),
    Attack(
        'another process', FILES, _try('open("/proc/@PID@/cmdline").read()')
    ),
    Attack(
        'names in a directory',
        FILES,
        _try('assert "key" in os.listdir("@DIR@")', 'import os'),
    ),
    Attack(
        'size of a file', ('root',), _try('import os; os.stat("@DIR@/key")')
    ),
    Attack(
        'import of a key',
        FILES,
        _read('key.KEY', 'import sys\nsys.path.append("@DIR@")\nimport key'),
    ),
    Attack(
        'import of reference solutions',
        FILES,
        _try(
            'import evojax\nassert evojax.__version__',
            'import sys\nsys.path.append("@REPO@")',
        ),
    ),
    Attack(
        'the C library',
        FILES,
        _try(
            'import ctypes\n'
            'assert ctypes.CDLL(None).open(b"@DIR@/key", 0) >= 0'
        ),
    ),
    Attack(
        'a line cache',
        FILES,
        _read('linecache.getline("@DIR@/key", 1)', 'import linecache'),
    ),
    Attack(
        'a map of the file',
        FILES,
        _read(
            'mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:].decode()',
            'import mmap\nf = open("@DIR@/key")',
        ),
    ),
    Attack('password file', FILES, _try('open("/etc/passwd").read()')),
    Attack(
        'host key from a weaker tier',
        ('landlock',),
        _read('open("@DIR@/key").read()'),
        tier='T1',
    ),
)
WRITING = (
    Attack('write', FILES, _try('open("@DIR@/new", "w").write("x")')),
    Attack('overwrite', FILES, _try('open("@DIR@/table", "r+").write("7")')),
    Attack(
        'delete',
        FILES,
        _try('import os; os.unlink("@DIR@/gone")'),
        before='try: open("@DIR@/gone", "w")\nexcept OSError: pass',
    ),
    Attack(
        'rename',
        FILES,
        _try('import os; os.rename("@DIR@/table", "@DIR@/table")'),
    ),
    Attack(
        'make a directory',
        FILES,
        _try('import os\nos.mkdir(f"@DIR@/d{os.urandom(4).hex()}")'),
    ),
    Attack('truncate', FILES, _try('import os; os.truncate("@DIR@/table", 8)')),
    Attack(
        'a database',
        FILES,
        _try(
            'import sqlite3\nc = sqlite3.connect("@DIR@/db")\n'
            'c.execute("create table if not exists t (x)")'
        ),
    ),
    Attack(
        'a pipe for others',
        (*FILES, 'seccomp'),
        _try('import os\nos.mkfifo(f"@DIR@/pipe{os.urandom(4).hex()}")'),
    ),
    Attack(
        'host file from a weaker tier',
        ('landlock',),
        _try('open("@DIR@/new", "w").write("x")'),
        tier='T1',
    ),
)
NETWORK = (
    Attack(
        'tcp',
        ('namespaces', 'landlock', 'seccomp'),
        _try('socket.create_connection(("127.0.0.1", @TCP@))', 'import socket'),
        landlock=4,
    ),
    Attack(
        'tcp from a weaker tier',
        ('landlock', 'seccomp'),
        _try('socket.create_connection(("127.0.0.1", @TCP@))', 'import socket'),
        tier='T1',
        landlock=4,
    ),
    Attack(
        'udp',
        ('namespaces', 'seccomp'),
        _try(
            'socket.socket(socket.AF_INET, socket.SOCK_DGRAM)'
            '.sendto(b"x", ("127.0.0.1", @UDP@))',
            'import socket',
        ),
    ),
    Attack(
        'listening',
        ('landlock', 'seccomp'),
        _try('socket.socket().bind(("0.0.0.0", 0))', 'import socket'),
        landlock=4,
    ),
    Attack(
        'unix socket',
        ('root', 'seccomp'),
        _try(
            'socket.socket(socket.AF_UNIX).connect("@DIR@/unix")',
            'import socket',
        ),
    ),
    Attack(
        'abstract socket',
        ('namespaces', 'landlock', 'seccomp'),
        _try(
            'socket.socket(socket.AF_UNIX).connect("\\0@ABSTRACT@")',
            'import socket',
        ),
        landlock=6,
    ),
    Attack(
        'netlink',
        ('seccomp',),
        _try(
            'socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)', 'import socket'
        ),
    ),
    Attack(
        'unix socket from one that is connected',
        ('root', 'seccomp'),
        _try(
            'socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]'
            '.sendto(b"x", "@DIR@/datagrams")',
            'import socket',
        ),
    ),
)
PROCESSES = (
    Attack(
        'fork',
        ('seccomp',),
        _try('import os\nif not os.fork(): os._exit(0)'),
    ),
    Attack(
        'a command',
        (*FILES, 'seccomp'),
        _try('subprocess.run(["/bin/true"], check=True)', 'import subprocess'),
    ),
    Attack(
        'another program in its place',
        (*FILES, 'seccomp'),
        'import os\nos.execv("/bin/echo", ["echo", "GOT"])',
    ),
    Attack(
        'a daemon',
        ('seccomp', 'sweep'),
        'import os, time\ntime.sleep(0.3)\n'
        'if os.path.exists("late"): print("GOT")',
        before='import os, time\n'
        'if not os.fork():\n'
        '  os.setsid()\n'
        '  time.sleep(0.1)\n'
        '  open("late", "w")\n'
        '  os._exit(0)\n',
    ),
    Attack(
        'signal to another process',
        ('namespaces', 'uid', 'landlock', 'seccomp'),
        _try('import os; os.kill(@PID@, 0)'),
        landlock=6,
    ),
    Attack(
        'signal from a weaker tier',
        ('landlock', 'seccomp'),
        _try('import os; os.kill(os.getppid(), 0)'),
        tier='T1',
        landlock=6,
    ),
    Attack(
        'killing the zygote',
        ('landlock', 'seccomp'),
        'import os; os.kill(os.getppid(), 9)',
        tier='T1',
        succeeded=_is_infra,
        landlock=6,
    ),
    Attack(
        'stopping the zygote',
        ('landlock', 'seccomp'),
        'import os; os.kill(os.getppid(), 19)',
        tier='T1',
        limits=_STOPPED,
        succeeded=_is_infra,
        landlock=6,
    ),
    Attack(
        'tracing the zygote',
        ('landlock', 'seccomp'),
        _SYSCALL + 'call(101, 117, 0x4206, os.getppid(), 0, 0)\nprint("GOT")',
        tier='T1',
    ),
    Attack(
        "reading the zygote's memory",
        ('landlock', 'seccomp'),
        _SYSCALL + 'class V(ctypes.Structure):\n'
        '  _fields_ = [("a", ctypes.c_void_p), ("n", ctypes.c_size_t)]\n'
        'b = ctypes.create_string_buffer(8)\n'
        'here = V(ctypes.addressof(b), 8)\n'
        'there = V(id(None), 8)\n'
        'call(310, 270, os.getppid(), ctypes.byref(here), 1,'
        ' ctypes.byref(there), 1, 0)\nprint("GOT")',
        tier='T1',
    ),
    Attack(
        'a swarm of threads',
        ('rlimits',),
        _SWARM + 'print("GOT" if n > 100 else n)',
    ),
    Attack(
        'a swarm of threads of a weaker tier',
        ('rlimits',),
        _SWARM + 'time.sleep(0.3)\nprint("GOT" if n > 100 else n)',
        tier='T1',
    ),
    Attack(
        'outliving the zygote',
        ('seccomp',),
        _SYSCALL + 'call(157, 167, 1, 0, 0, 0, 0)\nprint("GOT")',
    ),
    Attack('nicer', ('seccomp',), _try('import os; os.nice(1)')),
    Attack(
        'another core',
        ('seccomp',),
        _try('os.sched_setaffinity(0, os.sched_getaffinity(0))', 'import os'),
    ),
)
KERNEL = (
    Attack(
        'shared memory segment',
        ('seccomp',),
        _SYSCALL + 'call(29, 194, 0, 4096, 0o1600)\nprint("GOT")',
    ),
    Attack(
        'file in memory',
        ('seccomp',),
        _try('import os; os.memfd_create("x")'),
    ),
    Attack(
        'key in the keyring',
        ('seccomp',),
        _SYSCALL
        + 'call(248, 217, b"user", b"evojax", b"x", 1, -2)\nprint("GOT")',
    ),
    Attack(
        'ring for input and output',
        ('seccomp', 'rlimits'),
        _SYSCALL
        + 'call(425, 425, 1, ctypes.create_string_buffer(256))\nprint("GOT")',
    ),
    Attack(
        'user namespace',
        ('seccomp',),
        _SYSCALL + 'call(272, 97, 0x10000000)\nprint("GOT")',
    ),
    Attack(
        'mount of its own',
        ('landlock', 'seccomp'),
        _SYSCALL + 'call(272, 97, 0x10020000)\n'
        'call(165, 40, b"none", b"/", None, 0x44000, None)\nprint("GOT")',
    ),
    Attack('new root', ('uid', 'seccomp'), _try('import os; os.chroot(".")')),
    Attack(
        'new name of the host',
        ('uid', 'seccomp'),
        _try('import socket; socket.sethostname("GOT")'),
    ),
    Attack(
        'limits that make the kernel kill it',
        ('seccomp',),
        _try(
            'import resource\n'
            'resource.setrlimit(resource.RLIMIT_CPU, (1, 1))'
        ),
    ),
    Attack(
        'timer that kills it',
        ('seccomp',),
        _SYSCALL + 'event = (ctypes.c_int * 16)(0, 0, 9, 0)\n'
        'timer = ctypes.c_int()\n'
        'call(222, 107, 1, event, ctypes.byref(timer))\nprint("GOT")',
    ),
    Attack(
        'signal of a pipe that kills it',
        ('seccomp',),
        _try('import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 10, 9)'),
    ),
    Attack(
        'signal to itself that looks like ours',
        ('seccomp',),
        'import os; os.kill(os.getpid(), 9)',
        succeeded=lambda r: r.exit_code == -signal.SIGKILL or _is_infra(r),
    ),
    Attack(
        'personality',
        ('seccomp',),
        _SYSCALL + 'call(135, 92, 0x0040000)\nprint("GOT")',
    ),
)
RESOURCES = (
    Attack('memory', ('rlimits',), _try('x = bytearray(1 << 30)')),
    Attack(
        'many maps',
        ('rlimits',),
        _try('import mmap; x = [mmap.mmap(-1, 1 << 26) for _ in range(40)]'),
    ),
    Attack(
        'a huge file',
        ('rlimits', 'quota'),
        _try(
            'open("x", "wb").write(bytes(8 << 20))\nimport os\n'
            'assert os.path.getsize("x") == 8 << 20'
        ),
    ),
    Attack(
        'a file with a hole',
        ('rlimits',),
        _try('f = open("x", "wb"); f.truncate(1 << 32)'),
    ),
    Attack(
        'files that fill the disk',
        ('quota',),
        _try('for i in range(20):\n  open(str(i), "wb").write(bytes(1 << 19))'),
    ),
    Attack(
        'files that fill the disk of a weaker tier',
        ('quota',),
        _try(
            'import time\n'
            'for i in range(20):\n'
            '  open(str(i), "wb").write(bytes(1 << 19))\n'
            'time.sleep(0.3)'
        ),
        tier='T1',
    ),
    Attack(
        'more files than inodes',
        ('quota',),
        _try('for i in range(200): open(str(i), "w")'),
    ),
    Attack(
        'more files than inodes of a weaker tier',
        ('quota',),
        _try(
            'import time\nfor i in range(200): open(str(i), "w")\n'
            'time.sleep(0.3)'
        ),
        tier='T1',
    ),
    Attack(
        'a flood of output',
        ('rlimits',),
        'import sys\nsys.stdout.write("x" * (8 << 20))\n'
        'sys.stdout.flush()\nsys.stderr.write("GOT")',
    ),
    Attack(
        'open descriptors',
        ('rlimits',),
        _try('import os\nfor _ in range(200): os.dup(0)'),
    ),
    Attack(
        'a loop',
        ('clock',),
        'import time\n' 'while time.process_time() < 0.5: pass\nprint("GOT")',
        limits=_LONG,
    ),
    Attack(
        'a loop that hears no signal',
        ('clock',),
        'import signal, time\n'
        'for s in range(1, 65):\n'
        '  try: signal.signal(s, signal.SIG_IGN)\n'
        '  except (OSError, ValueError): pass\n'
        'while time.process_time() < 0.5: pass\nprint("GOT")',
        limits=_LONG,
    ),
    Attack(
        'a long sleep',
        ('clock',),
        'import time\ntime.sleep(0.6)\nprint("GOT")',
        limits=_LATE,
    ),
    Attack(
        'threads that share the time',
        ('clock',),
        'import threading, time\n'
        'def f():\n'
        '  while time.process_time() < 0.5: pass\n'
        't = [threading.Thread(target=f) for _ in range(4)]\n'
        'for x in t: x.start()\n'
        'for x in t: x.join()\nprint("GOT")',
        limits=_LONG,
    ),
)
INHERITED = (
    Attack(
        'token in the environment',
        ('environment',),
        _try('import os\nassert "@NEKOT@"[::-1] in str(dict(os.environ))'),
    ),
    Attack(
        'a verdict of its own',
        ('descriptors',),
        'import os\n'
        'for fd in range(3, 64):\n'
        '  try:\n'
        '    if os.fstat(fd).st_mode & 0o170000 == 0o140000: print("GOT")\n'
        '  except OSError: pass\n',
    ),
    Attack(
        "the parent's open files",
        ('descriptors',),
        'import os\n'
        'for fd in range(3, 1024):\n'
        '  try:\n'
        '    if "@NEKOT@"[::-1] in os.pread(fd, 99, 0).decode(): print("GOT")\n'
        '  except (OSError, ValueError): pass\n',
    ),
    Attack(
        'a file of the run before',
        ('sweep',),
        'import os\nif os.path.exists("left"): print("GOT")',
        before='open("left", "w")',
    ),
)
ATTACKS = (
    *READING,
    *WRITING,
    *NETWORK,
    *PROCESSES,
    *KERNEL,
    *RESOURCES,
    *INHERITED,
)

# No layer is in their way: the zygote, which every run is a copy of, never has
# what is run. Each says GOT where it finds the word of the run before.
WORD = 'open-sesame-that-nobody-says'
_WORD = f'word = {WORD[::-1]!r}[::-1]\n'
STATE = {
    'frames': f"""{_WORD}
import sys
frame = sys._getframe().f_back
while frame:
  if word in str(frame.f_locals): print('GOT')
  frame = frame.f_back
""",
    # The kernel reads no address that is none. Short texts lie elsewhere.
    'memory': f"""{_WORD}
import ctypes, os
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
top, file = libc.sbrk(0), os.open('page', os.O_RDWR | os.O_CREAT)
for page in range(1, 8 << 10):
  libc.pwrite(file, ctypes.c_void_p(top - 4096 * page), 4096, 0)
  if word.encode() in os.pread(file, 4096, 0): print('GOT')
""",
}
