"""Attacks by programs; all of them are harmless if they succeed."""

import dataclasses
import signal

from tests.sandbox import resource_attacks
from tests.sandbox.attacks import Attack
from tests.sandbox.attacks import attempt as _try
from tests.sandbox.attacks import LIMITS
from tests.sandbox.attacks import SYSCALL

_SWARM = (
    'import threading, time\n'
    'threading.stack_size(65536)\n'
    'n = 0\n'
    'try:\n'
    '  for n in range(200):\n'
    '    threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n'
    'except RuntimeError: pass\n'
)
FILES = ('root', 'landlock')


def _read(expression, before=''):
  """Return code that prints GOT if the expression contains the key."""
  return f'{before}\nassert "@NEKOT@"[::-1] in {expression}\nprint("GOT")'


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
        'truncate from a weaker tier',
        ('landlock',),
        _try('import os; os.truncate("@DIR@/table", 8)'),
        tier='T1',
        landlock=3,
    ),
    *(
        Attack(
            f'emptied, opened {how}',
            ('landlock', 'seccomp'),
            _try(
                'import os\n'
                f'os.close(os.open("@DIR@/{how}", {flags} | os.O_TRUNC))'
            ),
            tier='T1',
            landlock=version,
        )
        for how, flags, version in (
            ('for reading', 0, 1),
            ('for nothing', 3, 3),
        )
    ),
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
        SYSCALL + 'call(101, 117, 0x4206, os.getppid(), 0, 0)\nprint("GOT")',
        tier='T1',
    ),
    Attack(
        "reading the zygote's memory",
        ('landlock', 'seccomp'),
        SYSCALL + 'class V(ctypes.Structure):\n'
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
        SYSCALL + 'call(157, 167, 1, 0, 0, 0, 0)\nprint("GOT")',
    ),
    *(
        Attack(
            f'{what} of the zygote',
            ('seccomp',),
            _try(f'{ask}(os.getppid())', 'import os, resource, time'),
            tier='T1',
        )
        for what, ask in (
            ('clock', '(lambda p: time.clock_gettime(~p << 3 | 2))'),
            ('resolution', '(lambda p: time.clock_getres(~p << 3 | 2))'),
            ('limits', '(lambda p: resource.prlimit(p, 7))'),
            ('cores', 'os.sched_getaffinity'),
        )
    ),
    Attack(
        'waiting for the time of another process',
        ('namespaces', 'seccomp'),
        SYSCALL + 'span = (ctypes.c_long * 2)(0, 1)\n'
        'call(230, 115, ~@PID@ << 3 | 2, 1, span, None)\nprint("GOT")',
    ),
    Attack(
        'limits of another process',
        ('namespaces', 'uid', 'seccomp'),
        _try('import resource; resource.prlimit(@PID@, 7)'),
    ),
    Attack(
        'handle of the zygote',
        ('seccomp',),
        _try('import os; os.pidfd_open(os.getppid())'),
        tier='T1',
    ),
    Attack(
        'comparing files with the zygote',
        ('landlock', 'seccomp'),
        SYSCALL + 'call(312, 272, os.getpid(), os.getppid(), 0, 0, 0)\n'
        'print("GOT")',
        tier='T1',
    ),
    Attack(
        "watching a folder of the host's",
        ('seccomp',),
        SYSCALL + 'libc.inotify_init1.restype = ctypes.c_int\n'
        'queue = libc.inotify_init1(0)\n'
        'if libc.inotify_add_watch(queue, b"@DIR@", 0xFFF) > 0: print("GOT")',
        tier='T1',
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
        SYSCALL + 'call(29, 194, 0, 4096, 0o1600)\nprint("GOT")',
    ),
    Attack(
        'file in memory',
        ('seccomp',),
        _try('import os; os.memfd_create("x")'),
    ),
    Attack(
        'key in the keyring',
        ('seccomp',),
        SYSCALL
        + 'call(248, 217, b"user", b"evojax", b"x", 1, -2)\nprint("GOT")',
    ),
    Attack(
        'ring for input and output',
        ('seccomp', 'rlimits'),
        SYSCALL
        + 'call(425, 425, 1, ctypes.create_string_buffer(256))\nprint("GOT")',
    ),
    Attack(
        'user namespace',
        ('seccomp',),
        SYSCALL + 'call(272, 97, 0x10000000)\nprint("GOT")',
    ),
    Attack(
        'mount of its own',
        ('landlock', 'seccomp'),
        SYSCALL + 'call(272, 97, 0x10020000)\n'
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
        SYSCALL + 'event = (ctypes.c_int * 16)(0, 0, 9, 0)\n'
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
        SYSCALL + 'call(135, 92, 0x0040000)\nprint("GOT")',
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
    *resource_attacks.ATTACKS,
    *INHERITED,
)

# No layer stops these attacks. They fail because the zygote, of which every run
# is a copy, never holds what is run. Each prints GOT if it finds the word of
# the previous run.
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
    # The kernel rejects invalid addresses. Short strings are stored elsewhere.
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

_CONTROL = """
import collections, json, os, re, tempfile
print(json.dumps(collections.Counter(re.findall('a', 'banana'))))
with tempfile.TemporaryFile() as f:
  f.write(b'x')
print(sum(range(10 ** 5)), len(input()))
"""


def control(range_, one):
  """Check benign use: imports, a file of its own, input and output."""
  result = range_.call(one, _CONTROL)
  expected = b'{"a": 3}\n4999950000 64\n'
  assert (result.status, result.stdout) == ('ok', expected), result
