"""Limits, statuses, and a box whose zygote fails."""

import concurrent.futures
import contextlib
import glob
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.sandbox import box
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import wire
from tests.sandbox import attacks

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_HELD = [t for t in ('T0', 'T1', 'T2') if t == 'T2' or not attacks.missing(t)]
_WIDE = limits_lib.Limits(wall_seconds=30.0, cpu_seconds=10.0)
_others: list[int] = []  # Boxes that other suites opened in this process.


def setUpModule():
  _others.extend(supervisors())


def children(process):
  """Return process ids of the children of all threads of a process."""
  found = []
  for path in glob.glob(f'/proc/{process}/task/*/children'):
    with contextlib.suppress(FileNotFoundError):  # A thread that just ended.
      found += map(int, pathlib.Path(path).read_text().split())
  return found


def supervisors():
  """Return the supervisors of this suite's boxes."""
  found = []
  for child in children(os.getpid()):
    command = pathlib.Path(f'/proc/{child}/cmdline').read_bytes()
    if b'sandbox/supervisor.py' in command and child not in _others:
      found.append(child)
  return found


def zygote():
  """Return the process id of the only zygote."""
  (supervisor,) = supervisors()
  (found,) = children(supervisor)
  return found


@contextlib.contextmanager
def after(seconds, function):
  """Call a function after some seconds, in the background."""
  timer = threading.Timer(seconds, function)
  timer.start()
  try:
    yield
  finally:
    timer.join()


class ResultsTest(parameterized.TestCase):
  """Results, which are the same in every tier."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.boxes = {t: box.Box(tier=t, limits=_WIDE, attempts=1) for t in _HELD}
    for one in cls.boxes.values():
      cls.addClassCleanup(one.close)

  @parameterized.named_parameters(
      ('output', 'print(input() * 2)', 'ok', b'abab\n', 0),
      ('nothing', '', 'ok', b'', 0),
      ('no_newline', 'print(1, end="")', 'ok', b'1', 0),
      ('bytes', 'import sys\nsys.stdout.buffer.write(b"\\xff\\0")', 'ok',
       b'\xff\0', 0),
      ('unicode', 'print("\u00e9")', 'ok', b'\xc3\xa9\n', 0),
      ('exit', 'print(1)\nexit()', 'ok', b'1\n', 0),
      ('exit_code', 'print(1)\nimport sys; sys.exit(3)', 'error', b'1\n', 3),
      ('exit_text', 'exit("no")', 'error', b'', 1),
      ('early_exit', 'import os\nprint(1)\nos._exit(0)', 'ok', b'', 0),
      ('raises', 'print(1)\n1 / 0', 'error', b'1\n', 1),
      ('no_python', 'print(', 'error', b'', 1),
      ('null_byte', 'print(1)\0', 'error', b'', 1),
      ('surrogate', 'print("\udcff")', 'error', b'', 1),
      ('crash', 'import ctypes\nctypes.string_at(0)', 'error', b'', -11),
      ('memory', 'x = bytearray(1 << 40)', 'memory_limit', b'', 1),
      ('like_memory', 'class MemoryErrorX(Exception): pass\n'
       'raise MemoryErrorX', 'error', b'', 1),
      ('recursion', 'def f(n): return n and 1 + f(n - 1)\n'
       'import sys\nsys.setrecursionlimit(10 ** 6)\nprint(f(50000))', 'ok',
       b'50000\n', 0),
      ('main', 'import __main__\nprint(__name__, __main__.__name__)\n'
       'import dataclasses\n@dataclasses.dataclass\nclass A:\n  a: int = 1\n'
       'print(A())', 'ok', b'__main__ __main__\nA(a=1)\n', 0),
      ('stays_alone', 'import sys\n'
       'print([m for m in sys.modules if "evojax" in m], sys.argv)', 'ok',
       b"[] ['main.py']\n", 0),
      ('swallows_all', 'while True:\n  try: raise SystemExit\n'
       '  except BaseException: break\nprint(2)', 'ok', b'2\n', 0),
      ('closes', 'import sys\nprint(1)\nsys.stdout.close()', 'ok', b'1\n', 0),
      ('closes_both', 'import sys\nwith sys.stdout as f: f.write("1")\n'
       'sys.stderr.close()', 'ok', b'1', 0),
      ('leaves_open', 'f = open(1, "w").write\nf("1")', 'ok', b'1', 0),
      ('leaves_bytes', 'import os\nf = os.fdopen(1, "wb")\nf.write(b"1")',
       'ok', b'1', 0),
      ('has its own', 'import sys\nclass Out:\n  flush = lambda self: None\n'
       "print(1)\nsys.stdout = Out()", 'ok', b'1\n', 0),
      ('replaces', 'import io, sys\nprint(1)\nsys.stdout = io.StringIO()\n'
       'print(2)', 'ok', b'1\n', 0),
      ('detaches', 'import io, sys\nfor _ in range(3):\n'
       '  x = sys.stdout\n  sys.stdout = io.TextIOWrapper(x.detach())\n'
       'sys.stderr.detach()\nprint(1)', 'ok', b'1\n', 0),
      ('no_output', 'import sys\nsys.stdout = None\nprint(1)', 'ok', b'', 0),
      ('file', 'print(__file__)', 'ok', b'main.py\n', 0),
      # As in `python main.py`.
      ('deep', 'def f(n): return n and 1 + f(n - 1)\nprint(f(998))', 'ok',
       b'998\n', 0),
      ('too_deep', 'def f(n): return n and 1 + f(n - 1)\nprint(f(999))',
       'error', b'', 1),
      ('at_exit', 'import atexit\natexit.register(print, 5)', 'ok', b'5\n', 0),
  )  # fmt: skip
  def test_program(self, source, status, stdout, exit_code):
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run(source, b'ab')
        self.assertEqual(
            (result.status, result.stdout, result.exit_code, result.tier),
            (status, stdout, exit_code, tier),
            result,
        )

  def test_an_error_names_the_line_and_no_box(self):
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run('def f():\n  return {}["k"]\nf()')
        self.assertEqual(result.message, "KeyError: 'k'")
        self.assertIn(b'"main.py", line 2, in f', result.stderr)
        self.assertNotIn(b'sandbox', result.stderr)

  def test_installed_packages_are_not_there(self):
    """They include reference solutions."""
    library = pathlib.Path(os.__file__).parent
    found = next((library / 'site-packages').rglob('*.py'), None)
    if found is None:
      self.skipTest('none are installed')
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run(f'open({str(found)!r}).read()')
        self.assertEqual(result.status, 'ok' if tier == 'T2' else 'error')

  def test_threads(self):
    source = (
        'import threading, time\n'
        'def f():\n  time.sleep(0.05)\n  print(1)\n'
        'threading.Thread(target=f).start()'
    )
    for tier, one in self.boxes.items():
      self.assertEqual(one.run(source).stdout, b'1\n', tier)

  def test_threads_are_counted_where_the_kernel_does_not(self):
    source = (
        'import threading, time\nthreading.stack_size(1 << 16)\n'
        'for _ in range(40):\n'
        '  threading.Thread(target=time.sleep, args=(9,)).start()\n'
    )
    if 'T1' not in _HELD:
      self.skipTest('in T0 it does')
    with (
        mock.patch.object(box.Box, '_has_own_user', return_value=False),
        box.Box(tier='T1', attempts=1) as one,
    ):
      result = one.run(source)
    self.assertEqual(result.message, 'more than 16 threads at a time')
    self.assertEqual(result.status, 'error')

  def test_an_end_that_fails_has_a_traceback(self):
    """Otherwise it would not look like Python."""
    source = 'import sys\nclass A:\n  closed = False\nsys.stdout = A()'
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run(source)
        self.assertEqual(result.status, 'error')
        self.assertIn(b'Traceback (most recent', result.stderr)

  @parameterized.parameters(('stdout', 'output_limit'), ('stderr', 'ok'))
  def test_output_is_cut(self, name, status):
    limits = limits_lib.Limits(output_bytes=1000)
    source = f'import sys\nsys.{name}.write("x" * %d)'
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        exactly = one.run(source % 1000, limits=limits)
        self.assertEqual(exactly.status, 'ok', exactly)
        more = one.run(source % 1001, limits=limits)
        self.assertEqual(more.status, status)
        self.assertEqual(getattr(more, name), b'x' * 1000)

  def test_cpu_limit(self):
    limits = limits_lib.Limits(wall_seconds=30.0, cpu_seconds=0.2)
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run('while True: pass', limits=limits)
        self.assertEqual(result.status, 'cpu_limit')
        self.assertBetween(result.cpu_seconds, 0.2, 5.0)

  def test_wall_limit_of_a_sleeper(self):
    limits = limits_lib.Limits(wall_seconds=0.4)
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run('import time\ntime.sleep(60)', limits=limits)
        self.assertEqual(result.status, 'timeout')
        self.assertGreaterEqual(result.wall_seconds, 0.4)
        self.assertLess(result.cpu_seconds, 0.2)
        # It chose to sleep, so a busy machine is no excuse.
        self.assertFalse(result.contended, result)

  def test_long_input_and_source(self):
    data = os.urandom(1 << 16).hex().encode() * 16  # 2 MiB.
    source = '#' * (1 << 20) + '\nimport sys\nprint(len(sys.stdin.read()))'
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        self.assertEqual(one.run(source, data).stdout, b'2097152\n')

  def test_nothing_is_left_in_the_directory(self):
    # Deeper than Python's recursion limit, and longer than a path may be.
    deep = (
        'import os\n'
        'for i in range(1010):\n'
        '  os.mkdir("deep")\n  open("f", "w")\n  os.chdir("deep")\n'
        'os.mkdir("x", 0)\n'
    )
    limits = limits_lib.Limits(files=9000, disk_bytes=64 << 20)
    for tier in _HELD:
      with (
          self.subTest(tier),
          box.Box(tier=tier, limits=limits, attempts=1) as one,
      ):
        # T1 only watches the directory, and one that is too deep counts as
        # full.
        allowed = ('ok', 'disk_limit') if tier == 'T1' else ('ok',)
        self.assertIn(one.run(deep).status, allowed)
        listed = one.run('import os\nprint(os.listdir("."))')
        self.assertEqual(listed.stdout, b'[]\n')


class ContentionTest(parameterized.TestCase):

  @parameterized.parameters(
      (5.0, 1.0, 3.9, True),
      (5.0, 1.0, 0.4, False),
      (5.0, 9.0, 4.0, True),  # CPU time of several processes.
      (5.0, 0.7, 1.1, False),  # It slept, and waited whenever it woke up.
  )
  def test_who_sleeps_is_not_kept_from_running(self, wall, cpu, waited, late):
    answer = wire.Answer('', 'timeout', -9, wall, cpu, waited)
    with tempfile.TemporaryFile() as file, box.Box(tier='T2') as one:
      limits = limits_lib.Limits(wall_seconds=wall)
      output = file.fileno()
      found = one._result(answer, (output, output), limits)
    self.assertEqual((found.status, found.contended), ('timeout', late))

  def test_a_timeout_on_a_busy_machine_says_so(self):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # Inherited by all below.
    busy = []
    try:
      for _ in range(4):
        busy.append(
            subprocess.Popen([sys.executable, '-S', '-c', 'while 1: pass'])
        )
      with box.Box(tier=_HELD[0], limits=_WIDE) as one:
        one.start()
        limits = limits_lib.Limits(wall_seconds=1.0, cpu_seconds=10.0)
        result = one.run('while True: pass', limits=limits)
    finally:
      os.sched_setaffinity(0, before)
      for process in busy:
        process.kill()
        process.wait()
    self.assertEqual(result.status, 'timeout')
    self.assertTrue(result.contended, result)
    self.assertLess(result.cpu_seconds, 0.8)
    self.assertRegex(result.message, r'waited \d+\.\d+ s for a core')

  def test_threads_that_wait_for_each_other_are_no_excuse(self):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    # Hashing releases the interpreter's lock, so that all compete for the core.
    program = (
        'import hashlib, threading\n'
        'threading.stack_size(1 << 16)\ndata = bytes(1 << 20)\n'
        'def work():\n'
        '  while True: hashlib.sha256(data).digest()\n'
        'for _ in range(10): threading.Thread(target=work).start()\n'
    )
    try:
      with box.Box(tier=_HELD[0], limits=_WIDE) as one:
        one.start()
        limits = limits_lib.Limits(wall_seconds=1.0, cpu_seconds=3.0)
        result = one.run(program, limits=limits)
    finally:
      os.sched_setaffinity(0, before)
    waited = result.message.partition('waited ')[2].partition(' ')[0]
    self.assertEqual(result.status, 'timeout', result)
    # Each waited for nine others. Waiting counts only while other programs had
    # the core, which is the time when none of these ran.
    strangers = result.wall_seconds - result.cpu_seconds
    self.assertLess(float(waited or 0.0), strangers + 0.1, result)


class InfraTest(parameterized.TestCase):
  """A zygote that is killed, stopped or slow causes no grade."""

  def _box(self, attempts, tier=_HELD[0], **limits):
    one = box.Box(
        tier=tier,
        limits=limits_lib.Limits(**(dict(wall_seconds=1.5) | limits)),
        grace_seconds=1.0,
        attempts=attempts,
    )
    self.addCleanup(one.close)
    one.start()
    return one

  @parameterized.product(
      sign=(signal.SIGKILL, signal.SIGSTOP),
      who=('zygote', 'supervisor'),
      tier=_HELD[:2],
  )
  def test_signalled_between_runs(self, sign, who, tier):
    one = self._box(2, tier, wall_seconds=0.5)
    process = zygote() if who == 'zygote' else supervisors()[0]
    os.kill(process, sign)
    result = one.run('print(1)')
    self.assertEqual((result.status, result.stdout), ('ok', b'1\n'))
    # A stopped supervisor causes no failure.
    if (sign, who) == (signal.SIGSTOP, 'zygote'):
      self.assertEqual(result.attempts, 2)

  def test_killed_in_a_run_it_is_tried_again(self):
    one = self._box(2)
    with after(0.2, lambda: os.kill(zygote(), signal.SIGKILL)):
      result = one.run('import time\ntime.sleep(0.5)\nprint(1)')
    self.assertEqual((result.status, result.attempts), ('ok', 2))

  def test_stopped_in_a_run_it_is_no_timeout(self):
    one = self._box(1, wall_seconds=0.5)
    with after(0.2, lambda: os.kill(zygote(), signal.SIGSTOP)):
      result = one.run('import time\ntime.sleep(0.4)\nprint(1)')
    self.assertEqual(result.status, 'infra_error')
    self.assertEqual(result.stdout, b'')
    self.assertIn('did not answer within 1.5 s', result.message)
    # The next run has nothing to do with it.
    self.assertEqual(one.run('print(2)').stdout, b'2\n')

  def test_stopped_for_a_while_it_is_what_it_was(self):
    """The program ended in time, but this was noticed late."""
    one = self._box(1, wall_seconds=0.5)
    process = zygote()
    resume = threading.Timer(0.8, os.kill, (process, signal.SIGCONT))
    resume.start()
    with after(0.1, lambda: os.kill(process, signal.SIGSTOP)):
      result = one.run('import time\ntime.sleep(0.2)\nprint(1)')
    resume.join()
    self.assertEqual((result.status, result.stdout), ('ok', b'1\n'), result)

  def test_a_program_killed_from_outside_is_no_crash(self):
    if _HELD[0] == 'T2':
      self.skipTest('a program could have done it itself')
    one = self._box(2)

    def kill():
      (child,) = children(zygote())
      os.kill(child, signal.SIGKILL)

    with after(0.2, kill):
      result = one.run('import time\ntime.sleep(0.5)\nprint(1)')
    self.assertEqual((result.status, result.attempts), ('ok', 2))

  def test_a_zygote_that_cannot_start(self):
    one = box.Box(tier=_HELD[0], attempts=2)
    self.addCleanup(one.close)
    with mock.patch.object(sys, 'executable', '/bin/false'):
      result = one.run('print(1)')
    self.assertEqual((result.status, result.attempts), ('infra_error', 2))
    self.assertIsNone(result.exit_code)
    self.assertEqual(one.run('print(1)').status, 'ok')

  @parameterized.parameters('program', 'repository')
  def test_out_of_memory_a_run_goes_first(self, profile):
    scores = lambda process: [
        pathlib.Path(f'/proc/{p}/oom_score_adj').read_text().strip()
        for p in ('self', process)
    ]
    for tier in set(_HELD) - {'T2'}:
      with box.Box(profile, tier=tier) as one:
        one.start()
        self.assertLen(set(scores(zygote())), 1, tier)
        deadline = time.monotonic() + 10
        found = []
        while found != ['1000'] and time.monotonic() < deadline:
          found = [scores(child)[1] for child in children(zygote())]
          time.sleep(0.01)
        self.assertEqual(found, ['1000'], tier)

  def test_a_crash_is_dumped_nowhere(self):
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard in (0, 1):
      self.skipTest('a limit of the core is given')
    with box.Box(tier=_HELD[0]) as one:
      limit = one.run('import resource as r; print(r.getrlimit(r.RLIMIT_CORE))')
      self.assertEqual(limit.stdout, b'(1, 1)\n')
      crash = 'import ctypes, os\nos.chdir(os.environ["HOME"])\n'
      self.assertLess(one.run(f'{crash}ctypes.string_at(0)').exit_code, 0)

  def test_no_descriptors_left(self):
    one = self._box(1)
    with mock.patch.object(os, 'memfd_create', side_effect=OSError(24, 'no')):
      self.assertEqual(one.run('print(1)').status, 'infra_error')
    self.assertEqual(one.run('print(1)').status, 'ok')


class LeavesNothingTest(parameterized.TestCase):

  def _state(self):
    return (
        len(os.listdir('/proc/self/fd')),
        supervisors(),
        glob.glob(os.path.join(tempfile.gettempdir(), 'evojax-box-*')),
        pathlib.Path('/proc/self/mounts').read_text(),
    )

  @parameterized.parameters(*_HELD)
  def test_runs(self, tier):
    before = self._state()
    with box.Box(tier=tier, slots=2, limits=_WIDE) as one:
      one.start()  # On a busy machine, one slot may have done everything.
      sources = [f'open("x", "w")\nprint({i})' for i in range(60)]
      with concurrent.futures.ThreadPoolExecutor(one.slots) as pool:
        results = list(pool.map(one.run, sources))
      self.assertEqual(
          [r.stdout for r in results], [f'{i}\n'.encode() for i in range(60)]
      )
      self.assertLen(supervisors(), 2)
      inner = [c for s in supervisors() for c in children(s)]
      self.assertLen(inner, 2)
    # No zombie is left to process 1 of this machine either.
    self.assertEmpty([p for p in inner if os.path.exists(f'/proc/{p}')])
    self.assertEqual(self._state(), before)

  @parameterized.parameters(*_HELD)
  def test_a_parent_that_is_killed(self, tier):
    folder = tempfile.mkdtemp()
    self.addCleanup(os.rmdir, folder)
    source = (
        'import sys, tempfile, threading\n'
        f'sys.path.insert(0, {str(_ROOT)!r})\n'
        f'tempfile.tempdir = {folder!r}\n'
        'from evojax.sandbox import box, limits\n'
        # Deeper than Python's recursion limit.
        f'b = box.Box(tier={tier!r}, limits=limits.Limits(files=9000))\n'
        'b.start()\n'
        'run = lambda: b.run("import os, time\\nfor _ in range(1100):\\n'
        "  os.mkdir('d'); os.chdir('d')\\ntime.sleep(60)\")\n"
        'threading.Thread(target=run).start()\n'
        'print(1, flush=True)\n'
    )
    parent = subprocess.Popen(
        [sys.executable, '-c', source], stdout=subprocess.PIPE
    )
    parent.stdout.readline()
    time.sleep(1.0)
    (supervisor,) = children(parent.pid)
    (inner,) = children(supervisor)
    (program,) = children(inner)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    left = [supervisor, inner, program]
    while left and time.monotonic() < deadline:
      left = [p for p in left if os.path.exists(f'/proc/{p}/exe')]
      time.sleep(0.02)
    self.assertEmpty(left)
    while os.listdir(folder) and time.monotonic() < deadline:
      time.sleep(0.02)
    self.assertEmpty(os.listdir(folder))


class ArgumentsTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(profile='shell'), 'profile='),
      (dict(tier='T3'), 'tier='),
      (dict(profile='pure'), 'entry='),
      (dict(entry=box.Entry('x.py')), 'entry='),
      (dict(slots=0), 'slots=0'),
      (dict(attempts=0), 'attempts=0'),
      (dict(profile='repository', slots=2), 'one tree'),
      (dict(without=('moat',)), 'moat'),
  )
  def test_refused(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      box.Box(**{'tier': 'T0', **arguments})

  @parameterized.parameters(
      dict(wall_seconds=0.0),
      dict(wall_seconds=float('nan')),
      dict(cpu_seconds=float('inf')),
      dict(memory_bytes=-1),
      dict(files=0),
  )
  def test_limits_are_positive(self, **values):
    with self.assertRaisesRegex(ValueError, f'{next(iter(values))}='):
      limits_lib.Limits(**values)

  def test_some_limits_are_the_boxs(self):
    with box.Box(tier='T2') as one:
      with self.assertRaisesRegex(ValueError, 'in this box'):
        one.run('', limits=limits_lib.Limits(disk_bytes=1))

  def test_tiers_are_nested(self):
    tiers = limits_lib.TIERS
    self.assertLess(tiers['T2'], tiers['T1'])
    self.assertLess(tiers['T1'], tiers['T0'])


class LibraryTest(absltest.TestCase):

  def test_the_standard_library_is_enough(self):
    """Its processes start without `site`, and so does this one."""
    folder = _ROOT / 'evojax' / 'sandbox'
    names = [f'evojax.sandbox.{p.stem}' for p in folder.glob('[!_]*.py')]
    self.assertIn('evojax.sandbox.disk', names)
    # The box reports its progress to the process that it runs in.
    others = ['evojax.runtime', 'evojax.runtime.waits']
    source = (
        'import importlib, sys\n'
        f'sys.path.insert(0, {str(_ROOT)!r})\n'
        f'for name in {names}: importlib.import_module(name)\n'
        'known = {*sys.stdlib_module_names, "__main__"}\n'
        'found = {n for n in sys.modules if n.split(".")[0] not in known}\n'
        f'print(found - {{"evojax", "evojax.sandbox", *{names}, *{others}}})\n'
    )
    run = subprocess.run(
        [sys.executable, '-I', '-S', '-B', '-c', source],
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(run.stdout + run.stderr, 'set()\n')


class UnprivilegedTest(absltest.TestCase):

  @absltest.skipIf(os.geteuid() != 0, 'all other tests are')
  def test_it_holds_for_who_is_not_root(self):
    program = 'import numpy, pytest; print(numpy.ones(2).sum())'
    source = (
        'from evojax.sandbox import box, probe, repository\n'
        'print(probe.faults("T0"), probe.faults("T1"))\n'
        'for tier in ("T0", "T1"):\n'
        '  with repository.Workspace(tier=tier) as w:\n'
        '    print(w.run(["sh", "-c", "echo a | cat"]).stdout)\n'
        f'    print(w.run([repository.PYTHON, "-c", {program!r}]).stdout)\n'
        '  with box.Box(tier=tier) as b:\n'
        f'    print(b.run({program!r}).stdout)\n'
    )
    said = attacks.run_elsewhere(self, source, 65534)
    expected = [str([attacks.missing(t)] if attacks.missing(t) else [])
                for t in ('T0', 'T1')]  # fmt: skip
    of_a_tier = "b'a\\n'\n" + 2 * "b'2.0\\n'\n"
    self.assertEqual(said, f"{' '.join(expected)}\n{2 * of_a_tier}")


if __name__ == '__main__':
  absltest.main()
