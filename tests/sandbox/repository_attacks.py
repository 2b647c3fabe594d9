"""Attacks by commands in a repository: sh, or Python if that is simpler."""

import dataclasses

from tests.sandbox.attacks import Attack
from tests.sandbox.attacks import LIMITS

FILES = ('root', 'landlock')
LIMITS = dataclasses.replace(LIMITS, files=256)
_LATE = dataclasses.replace(LIMITS, wall_seconds=0.4)
_GIT = (
    'set -e\nrm -rf repo\ngit init -q repo\ncd repo\n'
    'git config user.name a\ngit config user.email a@b\n'
)


def _python(source):
  return f"@PYTHON@ - <<'END'\nimport os\n{source}\nprint('GOT')\nEND\n"


_SYSCALL = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *a):
  number = x86 if os.uname().machine == 'x86_64' else arm
  if libc.syscall(number, *a) < 0: raise OSError(ctypes.get_errno(), 'no')
"""


def _left(name):
  """Print GOT if a file that only an attack creates exists in the world."""
  return f'\n[ ! -e @DIR@/{name} ] || {{ rm @DIR@/{name}; echo GOT; }}\n'


ATTACKS = (
    Attack(
        'read a key',
        FILES,
        'cat @DIR@/key | rev | grep -q @NEKOT@ && echo GOT',
    ),
    Attack(
        'read a key by a link',
        FILES,
        'ln -sf @DIR@/key l; cat l | rev | grep -q @NEKOT@ && echo GOT',
    ),
    Attack(
        'copy a tree by a link',
        FILES,
        'rm -rf c; ln -sfn @DIR@ d; cp -rL d c 2>/dev/null; '
        'rev c/key | grep -q @NEKOT@ && echo GOT',
    ),
    Attack(
        'reference solutions',
        FILES,
        _python(
            'import sys\nsys.path.append("@REPO@")\n'
            'import evojax\nassert evojax.__version__'
        ),
    ),
    Attack(
        'other processes',
        FILES,
        'cat /proc/@PID@/cmdline > /dev/null && echo GOT',
    ),
    Attack('password file', FILES, 'cat /etc/passwd > /dev/null && echo GOT'),
    Attack('write beside the tree', FILES, 'echo x > @DIR@/new && echo GOT'),
    Attack(
        "modes of the host's files",
        ('uid', 'seccomp'),
        'f=@DIR@/table; chmod 4777 $f && [ -u $f ] && chmod 666 $f && echo GOT',
        tier='T1',
    ),
    Attack(
        "times of the host's files",
        ('uid', 'seccomp'),
        'f=@DIR@/table; touch -d 2001-01-01 $f && [ $f -ot /bin/sh ] && '
        'touch $f && echo GOT',
        tier='T1',
    ),
    Attack(
        'git: file system monitor',
        FILES,
        _GIT + 'git config core.fsmonitor "touch @DIR@/monitor; false"\n'
        'touch f\ngit status > /dev/null 2>&1 || true' + _left('monitor'),
    ),
    Attack(
        'git: external diff',
        FILES,
        _GIT + 'echo a > f\ngit add f\ngit commit -qm f\necho b > f\n'
        'git config diff.external "touch @DIR@/diff; true"\n'
        'git diff > /dev/null 2>&1 || true' + _left('diff'),
    ),
    Attack(
        'git: hook',
        FILES,
        _GIT
        + 'printf "#!/bin/sh\\ntouch @DIR@/hook\\n" > .git/hooks/post-commit\n'
        'chmod +x .git/hooks/post-commit\necho a > f\ngit add f\n'
        'git commit -qm f 2> /dev/null' + _left('hook'),
    ),
    Attack(
        'git: clean filter',
        FILES,
        _GIT + 'git config filter.x.clean "touch @DIR@/filter; cat"\n'
        'echo "* filter=x" > .gitattributes\necho a > f\n'
        'git add f 2> /dev/null' + _left('filter'),
    ),
    Attack(
        'a module that tests import',
        FILES,
        "echo \"open('@DIR@/conftest', 'w')\" > conftest.py\n"
        '@PYTHON@ -c "import conftest" 2> /dev/null' + _left('conftest'),
    ),
    Attack(
        'tcp',
        ('namespaces', 'landlock', 'seccomp'),
        _python(
            'import socket\nsocket.create_connection(("127.0.0.1", @TCP@))'
        ),
        landlock=4,
    ),
    Attack(
        'udp',
        ('namespaces', 'seccomp'),
        _python(
            'import socket\n'
            'socket.socket(2, 2).sendto(b"x", ("127.0.0.1", @UDP@))'
        ),
    ),
    Attack(
        'unix socket',
        ('root', 'seccomp'),
        _python('import socket\nsocket.socket(1).connect("@DIR@/unix")'),
    ),
    Attack(
        'abstract socket',
        ('namespaces', 'landlock', 'seccomp'),
        _python('import socket\nsocket.socket(1).connect("\\0@ABSTRACT@")'),
        landlock=6,
    ),
    Attack(
        'signal to another process',
        ('namespaces', 'uid', 'landlock'),
        'kill -0 @PID@ && echo GOT',
        landlock=6,
    ),
    Attack(
        'killing the zygote',
        ('landlock',),
        'kill -9 $PPID',
        tier='T1',
        succeeded=lambda r: r.status == 'infra_error',
        landlock=6,
    ),
    *(
        Attack(
            f'{what} of the zygote',
            ('seccomp',),
            _python(
                f'import resource, time\n({ask})(int(os.environ["Z"]))'
            ).replace('@PYTHON@', 'Z=$PPID @PYTHON@'),
            tier='T1',
        )
        for what, ask in (
            ('clock', 'lambda p: time.clock_gettime(~p << 3 | 2)'),
            ('limits', 'lambda p: resource.prlimit(p, 7)'),
            ('cores', 'os.sched_getaffinity'),
            ('session', 'os.getsid'),
            ('group', 'os.getpgid'),
            ('priority', 'lambda p: os.getpriority(0, p)'),
            ('scheduler', 'os.sched_getscheduler'),
        )
    ),
    Attack(
        'capabilities of another process',
        ('seccomp',),
        _python(
            _SYSCALL + 'call(125, 90, (ctypes.c_int * 2)(0x20080522, @PID@),'
            ' bytes(24))'
        ),
        tier='T1',
    ),
    Attack(
        'socket of the host, by a pair of datagrams',
        ('seccomp',),
        _python(
            'import socket\nsocket.socketpair(1, 2)[0]'
            '.sendto(b"x", "@DIR@/datagrams")'
        ),
        tier='T1',
    ),
    Attack(
        'socket of the host, by a message',
        ('seccomp',),
        _python(
            'import socket\nsocket.socketpair(1, 2)[0]'
            '.sendmsg([b"x"], [], 0, "@DIR@/datagrams")'
        ),
        tier='T1',
    ),
    Attack(
        'tracing the zygote',
        ('landlock', 'seccomp'),
        _python(
            _SYSCALL + 'call(101, 117, 0x4206, int(os.environ["Z"]), 0, 0)'
        ).replace('@PYTHON@', 'Z=$PPID @PYTHON@'),
        tier='T1',
    ),
    Attack(
        'user namespace',
        ('seccomp',),
        _python(_SYSCALL + 'call(272, 97, 0x10000000)'),
    ),
    Attack(
        'mount of its own',
        ('landlock', 'seccomp'),
        _python(
            _SYSCALL + 'call(272, 97, 0x10020000)\n'
            'call(165, 40, b"none", b"/", None, 0x44000, None)'
        ),
    ),
    Attack(
        'key in the keyring',
        ('seccomp',),
        _python(_SYSCALL + 'call(248, 217, b"user", b"e", b"x", 1, -2)'),
    ),
    Attack(
        'semaphores',
        ('seccomp',),
        _python(_SYSCALL + 'call(64, 190, 0, 1, 0o1600)'),
    ),
    Attack(
        'a daemon',
        ('sweep',),
        'sleep 0.6; [ -e late ] && rm late && echo GOT',
        before='setsid sh -c "sleep 0.3; touch late" > /dev/null 2>&1 &',
    ),
    Attack(
        'a daemon of a weaker tier',
        ('sweep',),
        'sleep 0.6; [ -e late ] && rm late && echo GOT',
        before='setsid sh -c "sleep 0.3; touch late" > /dev/null 2>&1 &',
        tier='T1',
    ),
    Attack(
        'a swarm of processes',
        ('rlimits',),
        _python(
            'p = []\n'
            'try:\n'
            '  for _ in range(60):\n'
            '    p.append(os.fork())\n'
            '    if not p[-1]:\n'
            '      import time\n'
            '      time.sleep(5)\n'
            '      os._exit(0)\n'
            'finally:\n'
            '  for i in p: os.kill(i, 9)'
        ),
    ),
    Attack('memory', ('rlimits',), _python('x = bytearray(1 << 30)')),
    Attack(
        'a full disk',
        ('quota',),
        'set -e\ntrap "rm -f fill*" EXIT\n'
        'for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero > fill$i; done\n'
        'echo GOT',
    ),
    Attack(
        'a full disk of a weaker tier',
        ('quota',),
        'set -e\ntrap "rm -f fill*" EXIT\n'
        'for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero > fill$i; done\n'
        'sleep 0.3\necho GOT',
        tier='T1',
    ),
    *(
        Attack(
            f'disk of a weaker tier: {how}',
            ('quota',),
            f'{before}\n'
            + _python(
                'import time\nfiles = []\n'
                'for i in range(12):\n'
                '  files.append(open(f"fill{i}", "wb", buffering=0))\n'
                f'  {each}\n'
                '  files[-1].write(bytes(1 << 19))\n'
                'time.sleep(0.3)'
            )
            + '\ncd ..; rm -rf hidden fill*',
            tier='T1',
        )
        for how, before, each in (
            ('hidden', 'mkdir -m 300 hidden; cd hidden', ''),
            ('without a name', 'true', 'os.unlink(f"fill{i}")'),
            (
                'held by a child',
                'true',
                'os.unlink(f"fill{i}")\n' '  if i == 9 and os.fork(): break',
            ),
        )
    ),
    Attack(
        'a file that is allocated at once',
        ('seccomp',),
        _python(
            _SYSCALL + 'file = os.open("fill", os.O_CREAT | os.O_RDWR)\n'
            'os.unlink("fill")\ncall(285, 47, file, 0, 0, 4096)'
        ),
        tier='T1',
    ),
    Attack(
        'what is not allowed to be looked at',
        ('quota',),
        _python(
            'import subprocess\n'
            'file = os.open("sleep", os.O_CREAT | os.O_WRONLY, 0o111)\n'
            'os.write(file, open("/bin/sleep", "rb").read())\nos.close(file)\n'
            'subprocess.run(["./sleep", "0.3"], check=True)'
        ),
        tier='T1',
    ),
    Attack(
        'a huge file',
        ('rlimits', 'quota'),
        'head -c 6000000 /dev/zero > fill; s=$?; rm fill; '
        '[ $s = 0 ] && echo GOT',
    ),
    Attack(
        'no inodes left',
        ('quota',),
        'set -e\nmkdir -p many\ntrap "rm -r many" EXIT\n'
        'for i in $(seq 400); do : > many/$i; done\necho GOT',
    ),
    Attack(
        'a flood of output',
        ('rlimits',),
        'head -c 6000000 /dev/zero; s=$?; [ $s = 0 ] && echo GOT >&2',
    ),
    Attack('a long sleep', ('clock',), 'sleep 0.8; echo GOT', limits=_LATE),
    Attack(
        'token in the environment',
        ('environment',),
        'env | rev | grep -q @NEKOT@ && echo GOT',
    ),
    Attack(
        "the parent's open files",
        ('descriptors',),
        _python(
            'assert any("@NEKOT@"[::-1].encode() in d for d in data)'
        ).replace(
            'import os\n',
            'import os\ndata = []\n'
            'for fd in range(3, 1024):\n'
            '  try: data.append(os.pread(fd, 99, 0))\n'
            '  except OSError: pass\n',
        ),
    ),
)

_CONTROL = """
set -e
@PYTHON@ -c 'import json, subprocess; subprocess.run(["echo", "a"], check=True)'
mkdir -p folder
echo x > folder/file
(cat folder/file; ls folder) | sort
! git --version > /dev/null || git init -q folder/repo
rm -r folder
"""


def control(range_, one):
  """Check benign use: Python, pipes, files, processes, git."""
  result = range_.call(one, range_.world.fill_in(_CONTROL))
  assert (result.status, result.stdout) == ('ok', b'a\nfile\nx\n'), result
