"""Attacks by programs that use more than their share of the machine."""

import dataclasses

from tests.sandbox.attacks import Attack
from tests.sandbox.attacks import attempt as _try
from tests.sandbox.attacks import LIMITS
from tests.sandbox.attacks import SYSCALL

_LATE = dataclasses.replace(LIMITS, wall_seconds=0.3)
_LONG = dataclasses.replace(LIMITS, cpu_seconds=0.15)

ATTACKS = (
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
    *(
        Attack(
            f'disk of a weaker tier: {how}',
            ('quota',),
            _try(
                f'{before}\nfiles = []\n'
                'for i in range(20):\n'
                '  files.append(open(str(i), "wb", buffering=0))\n'
                f'  {each}\n'
                '  files[-1].write(bytes(1 << 19))\n'
                f'  {after}\n'
                'time.sleep(0.3)',
                SYSCALL + 'import time',
            ),
            tier='T1',
        )
        for how, before, each, after in (
            ('hidden', 'os.mkdir("d", 0o300); os.chdir("d")', '', ''),
            ('hidden below', 'os.mkdir("d"); os.mkdir("d/e", 0o100)\n'
             'os.mkdir("d/f", 0o300); os.chdir("d/f")', '', ''),
            ('without a name', '', 'os.unlink(str(i))', ''),
            ('deep', 'for _ in range(30):\n'
             '  os.mkdir("x" * 200); os.chdir("x" * 200)', '', ''),
            ('mapped alone', 'libc.mmap.restype = ctypes.c_void_p', '',
             'libc.mmap(None, 4096, 1, 1, os.open(str(i), 0), 0)\n'
             '  os.closerange(3, 99); os.unlink(str(i)); files.clear()'),
        )  # fmt: skip
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
        'more nameless files than inodes of a weaker tier',
        ('quota',),
        _try(
            'import os, time\nopen_files = []\n'
            'for i in range(50):\n'
            '  open_files.append(open(str(i), "w")); os.unlink(str(i))\n'
            'for i in range(30): open(f"named{i}", "w")\n'
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
