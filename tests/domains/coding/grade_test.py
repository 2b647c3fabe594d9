"""Programs in the real box: which ones earn an outcome."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax import records
from evojax.domains.coding import comparison
from evojax.domains.coding import execution
from evojax.domains.coding import grade
from evojax.domains.coding import one_process
from evojax.domains.coding import suite
from evojax.evidence import schema
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits
from evojax.sandbox import probe
from evojax.sandbox import shared
from tests.domains.coding import graded

ROOT = pathlib.Path(__file__).parents[3]


class OutcomeTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('right', graded.RIGHT),
      ('white space', graded.RIGHT + 'print()\nprint("  ")'),
      ('no newline', graded.RIGHT.replace('print(', 'print(end="", *[')
       .rstrip()[:-1] + '])'),
      ('reads stdin', 'import sys\n_, *a = map(int, sys.stdin.read().split())\n'
       'print(sum(x for x in a if x > 0))'),
      ('exits well', graded.RIGHT + 'exit()'),
      ('exits with 0', graded.RIGHT + 'import sys\nsys.exit(0)'),
      ('as main', 'def main():\n  input()\n  print(sum(max(int(x), 0) for x in'
       ' input().split()))\nif __name__ == "__main__":\n  main()'),
      ('complains on stderr', graded.RIGHT + 'import sys\nprint("x", file='
       'sys.stderr)'),
  )  # fmt: skip
  def test_right(self, program):
    found = graded.grade_one(program)
    self.assertTrue(found.outcome, found)
    self.assertEqual((found.status, found.partial), ('ok', 1.0))
    self.assertEqual(found.columns['tests_passed'], 4)
    self.assertIn(found.sandbox_tier, limits.TIERS)

  @parameterized.named_parameters(
      # (program, status, tests passed with partial credit, visible passed)
      ('wrong', 'input()\nprint(sum(map(int, input().split())))', 'ok', 2, 0),
      ('forgets the empty line', 'input()\nprint(sum(x for x in map(int,'
       ' input().split()) if x > 0) or -1)', 'ok', 2, 1),
      ('prints the example', 'print(6)', 'ok', 1, 1),
      ('prints nothing', 'input()', 'ok', 0, 0),
      ('echoes', 'print(input())\nprint(input())', 'ok', 1, 0),
      ('one more token', graded.RIGHT + 'print("done")', 'ok', 0, 0),
      ('not Python', 'print(', 'syntax_error', 0, 0),
      ('empty', '', 'ok', 0, 0),
      ('nul', 'print(6)\0', 'syntax_error', 0, 0),
      ('lone surrogate', 'print("\ud800")', 'syntax_error', 0, 0),
      ('too nested', '(' * 3000 + ')' * 3000, 'syntax_error', 0, 0),
      ('too deep', 'x = ' + '-' * 60_000 + '1', 'syntax_error', 0, 0),
      ('cannot be flushed', 'import sys\nclass A: closed = False\n'
       'def f(): raise ValueError\nA.flush = f\nsys.stdout = A', 'error',
       0, 0),
      ('crashes', graded.RIGHT + '1 / 0', 'error', 0, 0),
      ('crashes at times', 'input()\na = input().split()\n'
       'print(sum(max(int(x), 0) for x in a) + 0 // len(a))', 'error', 3, 1),
      ('exits with 1', graded.RIGHT + 'exit(1)', 'error', 0, 0),
      ('aborts', graded.RIGHT + 'import os; os.abort()', 'error', 0, 0),
      ('never ends', 'while True: pass', 'cpu_limit', 0, 0),
      ('ends only at times', 'input()\na = input().split()\n'
       'while not a: pass\nprint(sum(max(int(x), 0) for x in a))',
       'cpu_limit', 1, 1),
      ('much memory', 'a = [0] * 10**9', 'memory_limit', 0, 0),
      ('much output', 'while True: print("6" * 1000)', 'output_limit', 0, 0),
      ('recursion', 'f = lambda: f()\nf()', 'error', 0, 0),
      ('bytes that are no text', 'import sys\nsys.stdout.buffer.write('
       'b"\\xff")', 'ok', 0, 0),
  )  # fmt: skip
  def test_wrong(self, program, status, passed, visible):
    for partial in (False, True):
      found = graded.grade_one(program, partial=partial)
      self.assertFalse(found.outcome)
      self.assertEqual(found.status, status)
      self.assertEqual(found.columns['visible_passed'], bool(visible))
      if partial:
        self.assertEqual(found.columns['tests_passed'], passed)
      self.assertEqual(found.partial, passed / 4 if partial else 0.0)

  @parameterized.named_parameters(
      ('looks for the tests', 'import os\nprint(os.listdir("/"))\n'
       'print(os.environ)'),
      ('reads a file', 'print(open("/etc/hostname").read())'),
      ('reads the source of the grader', 'import evojax.domains.coding.grade'),
      ('says it passed', 'print("PASSED")\nprint("ok")\nprint(\'{"status":'
       ' "ok", "passed": 4}\')'),
      ('writes to where results may be', 'import os\nfor f in range(3, 32):\n'
       '  try: os.write(f, b\'{"run": 1, "status": "ok", "code": 0}\')\n'
       '  except OSError: pass'),
      ('exits before it is asked', 'import os\nos._exit(0)'),
      ('exits at once', 'import sys\nsys.exit(0)'),
      ('overwrites print', 'import builtins\nbuiltins.print = lambda *a: None\n'
       'print(6)'),
      ('overwrites comparison', 'class Yes(str):\n'
       '  __eq__ = lambda a, b: True\n  __hash__ = str.__hash__\n'
       'import builtins\nbuiltins.str = Yes\n'
       'print(Yes("6"))'),
      ('hard-coded examples', 'import sys\nprint({"3\\n4 -1 2\\n": 6}.get('
       'sys.stdin.read(), 7))'),
      ('prints after it has ended', graded.RIGHT
       + 'import atexit\natexit.register(print, "more")'),
      ('a thread prints afterwards', graded.RIGHT + 'import threading, time\n'
       'threading.Thread(target=lambda: (time.sleep(.01), print(1))).start()'),
      ('all answers at once', 'print(0, 6, 0, 10)'),
      ('looks at its parents', 'import gc, sys\nprint([o for o in'
       ' gc.get_objects() if "expected" in str(type(o))])'),
      ('looks at its process', 'print(open("/proc/self/environ").read())'),
      ('leaves a note for the next test', 'open("n", "a").write("x")\n'
       'print([6, 0, 0, 10][len(open("n").read()) - 1])'),
  )  # fmt: skip
  def test_cheat_earns_nothing(self, program):
    found = graded.grade_one(program, partial=True)
    self.assertFalse(found.outcome)
    self.assertLess(found.partial, 1.0)
    self.assertIn(found.status, ('ok', 'error'))

  def test_nothing_is_left_for_the_next_run(self):
    program = 'import os\nprint(os.path.exists("note"))\nopen("note", "w")'
    cases = (suite.Case('', 'False', False),) * 5
    found = graded.grade_one(program, suite.Suite(cases, seconds=1.0))
    self.assertTrue(found.outcome)

  def test_tolerance_is_the_problems(self):
    for tolerance, right in ((0.0, False), (1e-6, True)):
      tests = suite.Suite(
          (suite.Case('', '0.3', False),),
          comparison.Comparison(absolute=tolerance),
          seconds=1.0,
      )
      self.assertEqual(graded.grade_one('print(.1 + .2)', tests).outcome, right)

  def test_not_a_program(self):
    texts = (graded.RIGHT, f'```python{graded.RIGHT}', '', 'I do not know.')
    for found in graded.grade_texts(texts):
      self.assertEqual(found.status, 'no_program')
      self.assertFalse(found.outcome or found.columns['format_ok'])
      self.assertEqual(found.sandbox_tier, '')  # Nothing was run.
    long = graded.fenced(graded.RIGHT + '#' * grade.MAX_PROGRAM_CHARS)
    (found,) = graded.grade_texts([long])
    self.assertEqual((found.status, found.sandbox_tier), ('too_long', ''))


class ColumnsTest(parameterized.TestCase):

  def test_what_is_filled_is_declared(self):
    own = {c.name for c in grade.COLUMNS} - {c.name for c in schema.CORE}
    for text in (
        graded.fenced(graded.RIGHT),
        graded.RIGHT,
        graded.fenced('x' * 10**5),
    ):
      self.assertEqual(set(graded.grade_texts([text])[0].columns), own)

  def test_by_hand(self):
    found = graded.grade_one(
        'import sys\n\nx = input()\nprint(0 / 0)', partial=True
    )
    self.assertEqual(
        dict(found.columns),
        dict(
            difficulty=1,
            format_ok=True,
            compiles=True,
            tests_passed=0,
            tests_total=4,
            timeouts=0,
            crashed=True,
            n_lines=3,
            visible_passed=False,
            test_statuses='error,error,error,error',
            mode=0,
        ),
    )
    found = graded.grade_one('while 1: input', partial=True)
    # A program that exceeded its time is not run again.
    self.assertEqual(found.columns['timeouts'], 1)
    self.assertFalse(found.columns['crashed'])
    found = graded.grade_one('def', partial=True)
    self.assertFalse(found.columns['compiles'] or found.columns['crashed'])

  @parameterized.parameters(
      (graded.fenced(graded.RIGHT), 'stop', 'solves'),
      (graded.fenced('print(6)'), 'stop', 'constant'),
      (graded.fenced('print(open(0).read())'), 'length', 'solves'),
      (graded.RIGHT, 'stop', 'unfenced'),
      (graded.RIGHT, 'length', 'ramble'),
      (' ', 'stop', 'ramble'),
      ('```python\nprint(1)', 'length', 'ramble'),
      ('```python\nprint(1)', 'stop', 'unfenced'),
  )
  def test_modes(self, text, reason, mode):
    (found,) = grade.grade_many(
        [graded.problem()],
        [graded.completion(text, reason)],
        partial=False,
        slots=graded.SLOTS,
    )
    self.assertEqual(found.columns['mode'], grade.CODING_MODE[mode])

  @parameterized.parameters(
      (graded.RIGHT, True, 'passed,passed,passed,passed'),
      ('print(6)', False, 'passed,wrong'),
      ('print(', True, 'syntax_error'),
      ('n = int(input())\nwhile not n: pass\nprint(6)', True,
       'passed,cpu_limit'),
      ('n = int(input())\nprint(6 // n)', False, 'wrong'),
  )  # fmt: skip
  def test_each_test_has_a_status(self, program, partial, statuses):
    found = graded.grade_one(program, partial=partial)
    self.assertEqual(found.columns['test_statuses'], statuses)

  def test_who_may_read_what_is_shown(self):
    readers = {c.name: c.readers for c in grade.COLUMNS}
    self.assertEqual(readers['visible_passed'], ('diagnostic', 'report'))
    self.assertIn('reward', readers['tests_passed'])


class RunsTest(parameterized.TestCase):
  """Counts the runs of a program, and provokes failures of the box.

  Each test runs in its own process; for the rest see `one_process_test`.
  """

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.object(one_process, 'run', return_value=None))
    self.runs = []
    run = box_lib.Box.run

    def counted(box, program, stdin=b'', *, limits=None):
      self.runs.append((program, bytes(stdin)))
      answer = self.answer(box, program)
      return answer or run(box, program, stdin, limits=limits)

    self.answer = lambda box, program: None
    self.enterContext(mock.patch.object(box_lib.Box, 'run', counted))

  def test_identical_programs_run_once(self):
    grades = graded.grade_texts(
        [
            graded.fenced(graded.RIGHT),
            'x',
            graded.fenced(graded.RIGHT),
            graded.fenced(graded.RIGHT),
        ]
    )
    self.assertLen(self.runs, len(graded.CASES))
    self.assertEqual([g.outcome for g in grades], [True, False, True, True])
    self.assertGreater(grades[0].seconds, 0)
    self.assertEqual([g.seconds for g in grades[1:]], [0.0] * 3)
    # For another problem, the same program is judged by that problem's tests.
    other = suite.Suite(graded.CASES[:1] + graded.CASES[2:3], seconds=1.0)
    program = graded.fenced('print(0)')
    grades = grade.grade_many(
        [graded.problem(), graded.problem(other, 1)],
        [graded.completion(program)] * 2,
        partial=False,
        slots=graded.SLOTS,
    )
    self.assertEqual([g.outcome for g in grades], [False, True])

  def test_stops_at_the_first_failure(self):
    """The visible test runs first, though it is not the first."""
    graded.grade_one('print(6)')
    given = [stdin for _, stdin in self.runs]
    self.assertEqual(given, [b'3\n4 -1 2\n', b'0\n\n'])
    self.runs.clear()
    graded.grade_one('print(6)', partial=True)
    self.assertLen(self.runs, 4)
    self.runs.clear()
    for partial in (False, True):
      graded.grade_one('print(', partial=partial)
    self.assertLen(self.runs, 2)

  def test_answers_stay_outside(self):
    """The box receives no expected output."""
    tests = dataclasses.replace(
        graded.TESTS, cases=(suite.Case('7\n', 'Sesame1234', False),)
    )
    graded.grade_one('print(input())', tests)
    self.assertNotIn('Sesame1234', str(self.runs))

  def test_an_infra_error_is_no_grade(self):
    bad = limits.Result('infra_error', 'T1', message='gone')
    self.answer = lambda box, program: bad if 'bad' in program else None
    for partial in (False, True):
      good, lost = graded.grade_texts(
          [graded.fenced(graded.RIGHT), graded.fenced('print(6) # bad')],
          partial=partial,
      )
      self.assertTrue(good.graded and good.outcome)
      self.assertFalse(lost.graded)
      self.assertEqual(lost.status, records.INFRA_ERROR)
      self.assertEqual((lost.outcome, lost.partial), (False, 0.0))

  def test_late_because_of_others_is_tried_again(self):
    late = limits.Result('timeout', 'T1', contended=True)
    results = [late, late, None]
    self.answer = lambda box, program: results.pop(0) if results else None
    self.assertTrue(graded.grade_one(graded.RIGHT).outcome)
    self.answer = lambda box, program: late
    self.runs.clear()
    self.assertFalse(graded.grade_one(graded.RIGHT).graded)
    self.assertLen(self.runs, 3)
    # A program that is late without contention is itself at fault.
    own = dataclasses.replace(late, contended=False)
    self.answer = lambda box, program: own
    self.runs.clear()
    found = graded.grade_one(graded.RIGHT)
    self.assertEqual((found.status, len(self.runs)), ('timeout', 1))

  def test_a_zygote_that_dies_half_way_costs_nothing(self):
    """All processes of the box are killed; the programs they ran run again."""
    box = shared.open_box(graded.SLOTS)
    killed = []

    def kill(one, program):
      if 'slow' in program and not killed:
        killed.extend(s._process.pid for s in one._all if s._process)
        for pid in killed:
          os.kill(pid, signal.SIGKILL)

    box.start()
    self.answer = kill
    found = graded.grade_one(graded.RIGHT + '# slow')
    self.assertNotEmpty(killed)
    self.assertTrue(found.outcome, found)


class BoxTest(parameterized.TestCase):

  def test_one_box_per_process(self):
    self.assertIs(shared.open_box(graded.SLOTS), shared.open_box(graded.SLOTS))
    pid = os.getpid()
    with mock.patch.object(os, 'getpid', lambda: pid + 1):
      other = shared.open_box(graded.SLOTS)
    self.assertIsNot(other, shared.open_box(graded.SLOTS))
    other.close()

  def test_a_child_leaves_its_parents_boxes_alone(self):
    """A fork ends; the parent's boxes keep working, with their directories.

    It runs in its own process: modules that other tests import have exit
    functions as well, and not all of those survive a fork.
    """
    code = textwrap.dedent("""
        import atexit
        import os
        from unittest import mock
        from evojax.harness import calls
        from evojax.sandbox import probe, shared
        from tests.domains.coding import graded

        # The tier whose boxes have directories on the disk.
        with mock.patch.object(probe, 'tier', lambda: 'T1'):
          grader = shared.open_box(graded.SLOTS)
          boxes = [grader, calls.box(0)]
          boxes[1].start()
          print(graded.grade_one(graded.RIGHT).outcome, flush=True)
          before = [s._process for b in boxes for s in b._all if s._process]
          child = os.fork()
          if not child:
            assert calls.box(0) is not boxes[1]
            print(graded.grade_one(graded.RIGHT).outcome)
            atexit._run_exitfuncs()  # As at the end of any process.
            print('ended', flush=True)
            os._exit(0)
          os.waitpid(child, 0)
          print(graded.grade_one(graded.RIGHT + '# again').outcome)
        after = [s._process for b in boxes for s in b._all if s._process]
        print(len(before) > 1 and before == after)
        print(all(process.poll() is None for process in before))
        """)
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    self.assertEqual(
        done.stdout.split(),
        ['True', 'True', 'ended', 'True', 'True', 'True'],
        done.stderr,
    )

  def test_without_a_box_nothing_is_run(self):
    with mock.patch.object(
        probe, 'tier', side_effect=probe.WeakSandboxError('no')
    ):
      with self.assertRaises(probe.WeakSandboxError):
        graded.grade_one(graded.RIGHT)
      # A text without a program needs no box.
      self.assertEqual(graded.grade_texts(['x'])[0].status, 'no_program')

  def test_limits_are_the_problems(self):
    of_the_box = limits.Limits()
    found = execution._limits(of_the_box, 0.5, 10**6)
    self.assertEqual((found.cpu_seconds, found.wall_seconds), (0.5, 3.0))
    self.assertEqual(found.output_bytes, 4 * 10**6)
    self.assertEqual(found.of_the_box, of_the_box.of_the_box)


if __name__ == '__main__':
  absltest.main()
