"""All tests of a program in one process give the same verdicts faster."""

import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import execution
from evojax.domains.coding import one_process
from evojax.domains.coding import suite
from evojax.sandbox import shared

# 2n for four values of n, one of them visible.
CASES = tuple(
    suite.Case(f'{n}\n', str(2 * n), i == 0)
    for i, n in enumerate((3, 0, -4, 70))
)
TESTS = suite.Suite(CASES, seconds=0.2)

# Right if an earlier test left a trace, and for the visible test.
_TAIL = '\nn = int(input())\nprint(2 * n if seen or n == 3 else 0)'
_OWN_KEYS = """
import re
told = []
class Own({0}):
  def __hash__(self): return 2
  def __eq__(self, other):
    if type(other) is not Own: other.hear()
    return False
  def hear(self): told.append(1)
{1}
seen = bool(told)"""

# Each is judged as if every test ran separately; if `plain`, tests share a
# process.
PROGRAMS = (
    ('right', True, 'print(2 * int(input()))'),
    ('right with sys', True, 'import sys\nprint(2 * int(sys.stdin.read()))'),
    ('bytes', True, 'import sys\nprint(2 * int(sys.stdin.buffer.read()))'),
    ('wrong', True, 'print(3 * int(input()))'),
    ('right at times', True, 'n = int(input())\nprint(max(2 * n, 0))'),
    ('constant', True, 'print(6)'),
    ('nothing', True, 'pass'),
    ('fails at times', True, 'n = int(input())\nprint(2 * n * n // n)'),
    ('fails', True, 'print(x)'),
    ('ends early', True, 'import sys\nprint(2 * int(input()))\nsys.exit(0)'),
    ('ends badly', True, 'print(2 * int(input()))\nexit(3)'),
    ('says why', True, 'import sys\nprint(2 * int(input()))\nsys.exit("no")'),
    ('main', True, 'if __name__ == "__main__":\n  print(2 * int(input()))'),
    ('reads on', True, 'n = int(input())\nprint(2 * n, input())'),
    ('recursion', True, 'def f():\n  f()\nf()'),
    ('never ends', True, 'n = int(input())\nwhile n: pass\nprint(0)'),
    ('prints without end', True, 'while 1: print(1)'),
    ('takes memory', True, 'x = [0] * 10**9\nprint(2 * int(input()))'),
    ('no newline', True, 'print(2 * int(input()), end="")'),
    ('not text', True, 'import sys\nsys.stdout.buffer.write(bytes([255]))'),
    ('surrogate', True, 'print(chr(0xd800))'),
    ('closes', True, 'import sys\nprint(2 * int(input()))\nsys.stdout.close()'),
    ('not Python', False, 'print(2 *'),
    ('descriptor', False, 'import os\nprint(2 * int(os.read(0, 9)))'),
    ('opens', False, 'print(2 * int(open(0).read()))'),
    ('fileno', False, 'import sys\nsys.stdin.fileno()\nprint(2*int(input()))'),
    (
        'remembers in a module',
        False,
        'import math\nn = int(input())\nmath.seen = getattr(math, "seen", 0)'
        ' + 1\nprint(2 * n if math.seen > 1 else 0)',
    ),
    (
        'remembers in the modules',
        False,
        'import sys as s\ns.modules[1] = 1\nprint(2 * int(input()))',
    ),
    ('replaces', False, 'import sys\nsys.stdin = 1\nprint(6)'),
    ('its own method', True, 'class A:\n  def f(self, n): return 2 * n\n'
     'print(A().f(int(input())))'),
    ('format', True, 'print("{:d}".format(2 * int(input())))'),
    ('module', True, 'import math\nprint(math.prod((2, int(input()))))'),
    ('all of a module', True, 'from math import *\nprint(2 * int(input()))'),
    # Each of these behaves differently alone than in a shared process.
    ('ends with a fraction', True, 'print(2 * int(input()))\nexit(0.0)'),
    (
        'ends with what equals nothing',
        True,
        'class A:\n  def __ne__(self, x): return False\n'
        'print(2 * int(input()))\nexit(A())',
    ),
    (
        'finalizer',
        True,
        'class A:\n  def __del__(self): print(2 * n)\n'
        'def f(): return x\nx = A()\nn = int(input())',
    ),
    (
        'finalizer in the next test',
        True,
        'class A:\n  def __del__(self): print(2)\n'
        'def f(): return x\nx = A()\nprint(2 * int(input()))\n'
        'y = [[] for i in range(5000)]',
    ),
    (
        'too many errors',
        True,
        'import sys\nprint("x" * 10**6, file=sys.stderr)\n'
        'print(2 * int(input()))',
    ),
    (
        'reads what it printed',
        False,
        'import sys\nn = int(input())\nprint(2 * n)\nsys.stdout.seek(0)\n'
        'sys.stdout.read()',
    ),
    (
        'bytes that it printed',
        False,
        'import sys\nprint(2 * int(input()))\nsys.stdout.buffer.getvalue()',
    ),
    (
        'remembers in errors',
        False,
        'import sys\nn = int(input())\nsys.stderr.seek(sys.stderr.tell() + 1)'
        '\nprint(2 * n if sys.stderr.tell() > 1 else 0)',
    ),
    ('looks around', True, 'print(2 * int(input()) if len(dir()) > 3 else 0)'),
    (
        'remembers subclasses',
        False,
        'import collections\nclass A: pass\n'
        'seen = isinstance(A(), collections.UserDict)\n'
        'class B(collections.UserDict):\n  @classmethod\n'
        '  def __subclasshook__(cls, other): return True\n'
        'n = int(input())\nprint(2 * n if seen else 0)',
    ),
    (
        'how deep',
        False,
        'def f(n):\n  try: return f(n + 1)\n  except RecursionError: return n\n'
        'x = f(0)\nprint(2 * int(input()))',
    ),
    *(
        (
            f'remembers {where}',
            False,
            f'{before}\nd[1] = d.get(1, 0) + 1\nn = int(input())\n'
            'print(2 * n if d[1] > 1 else 0)',
        )
        for where, before in (
            (
                'through a getter',
                'import operator, collections\nd = operator.attrgetter('
                '"__globals__")(collections.namedtuple)',
            ),
            (
                'through a pattern',
                'from collections import namedtuple as f\n'
                'match f:\n  case object(__globals__=d): pass',
            ),
            (
                'through a name of its own',
                'def __globals__(): pass\nimport collections\n'
                'd = collections.namedtuple.__globals__',
            ),
            (
                'through an enumeration',
                'def _value2member_map_(): pass\nimport re\n'
                'd = re.I._value2member_map_',
            ),
            ('through a frame', 'd = (0 for i in ()).gi_frame.f_builtins'),
            (
                'through a module of a module',
                'from re import enum\nd = enum.sys.modules',
            ),
            (
                'through a module in a variable',
                'import re\nx = re.enum\nd = x.sys.modules',
            ),
            (
                'through a module by another name',
                'from fractions import sys as s\nd = s.modules',
            ),
            (
                'through the names of groups',
                'import re\nclass A:\n  def __ror__(self, x): return x\n'
                'd = re.match("(?P<a>x)", "x").re.groupindex | A()',
            ),
            (
                'through the names of groups without a class',
                'import re\nd = re.match("(?P<a>x)", "x").re.groupindex |'
                ' type("A", (), {"__ror__": lambda self, x: x})()',
            ),
            (
                'through a method named like them',
                'import re\ndef f():\n  def re(): pass\n'
                '  def groupindex(): pass\n'
                'd = re.match("(?P<a>x)", "x").re.groupindex',
            ),
            (
                'through a formatter',
                'import string, collections\nd = string.Formatter().get_field('
                '"0.__globals__", (collections.namedtuple,), {})[0]',
            ),
        )
    ),
    ('flags of its own', False, _OWN_KEYS.format(
        'int', 're.match("a", "", Own(2))') + _TAIL),
    ('patterns of its own', False, _OWN_KEYS.format(
        'str', 're.sub("a", Own(chr(92) + "g<0>"), "a")') + _TAIL),
    (
        'a number that flags keep',
        False,
        'import re\nclass F(int): pass\nold = type(re.I)(F(1 << 20)).value\n'
        'seen = type(old) is not F' + _TAIL,
    ),
    (
        'texts that are shared',
        False,
        'from collections import namedtuple\ns = "".join(["ab", "cd"])\n'
        'X = namedtuple("X", [s])\nseen = not any(x is s for x in dir(X))'
        + _TAIL,
    ),
    (
        'patterns that are forgotten',
        False,
        'import re\nn = int(input())\nx = re.match("x", "x")\n'
        'for i in range(300): re.match(f"p{i}q{n}", "")\n'
        'seen = re.match("x", "x").re is not x.re\n'
        'print(2 * n if seen or n == 3 else 0)',
    ),
    # The text does not reveal it, but running the tests alone does.
    (
        'memory that is left',
        True,
        f'try:\n  x = bytes({execution.MEMORY_BYTES} * 5 // 8)\n'
        '  seen = False\n'
        'except Exception:\n  seen = True' + _TAIL,
    ),
)  # fmt: skip


class TogetherTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.box = shared.open_box(2)

  def judge(self, program, partial, tests=TESTS):
    runs = []
    run = self.box.run

    def count(*args, **kwargs):
      runs.append(args)
      return run(*args, **kwargs)

    with mock.patch.object(self.box, 'run', count):
      (verdict,) = execution.run_many(
          self.box, [(tests, program)], partial=partial
      )
    return dataclasses.replace(verdict, seconds=0.0), len(runs)

  @parameterized.named_parameters(*PROGRAMS)
  def test_verdict(self, plain, program):
    self.assertEqual(one_process.is_plain(program), plain)
    for partial in (False, True):
      verdict, _ = self.judge(program, partial)
      with mock.patch.object(one_process, 'run', return_value=None):
        alone, _ = self.judge(program, partial)
      self.assertEqual(verdict, alone)

  @parameterized.parameters(
      'print(repr(input()))',
      'import sys\nfor line in sys.stdin: print(repr(line.rstrip("\\n")))',
  )
  def test_carriage_returns(self, program):
    cases = tuple(
        suite.Case(f'{n}\r\n', repr(f'{n}\r'), n == 1) for n in (1, 2)
    )
    verdict, runs = self.judge(program, True, suite.Suite(cases))
    self.assertEqual((verdict.statuses.count('passed'), runs), (2, 2), verdict)

  def test_runs(self):
    for name, plain, program in PROGRAMS[:9]:
      self.assertTrue(plain)
      found, runs = self.judge(program, True)
      # A program that is right here is right alone, too.
      right = set(found.statuses) == {'passed'}
      self.assertEqual(runs, 2 if right else 1, name)

  @parameterized.parameters(('#' * (8 << 10), ''), ('', '\n' * (1 << 20)))
  def test_what_is_long_is_run_test_by_test(self, comment, blank):
    tests = dataclasses.replace(
        TESTS,
        cases=tuple(case._replace(stdin=case.stdin + blank) for case in CASES),
    )
    program = f'print(2 * int(input())){comment}'
    verdict, runs = self.judge(program, True, tests)
    self.assertEqual((verdict.statuses.count('passed'), runs), (4, 4), verdict)

  @parameterized.parameters(
      'import collections\ncollections.abc.sys',
      'import sys\nm = sys\n',
      'import sys\nsys.modules',
      'import sys\nsys.setrecursionlimit(9)',
      'from sys import modules',
      'from os import path',
      'import re, os',
      'from .sys import stdin',
      'import math\ndef f(math): pass\nmath = 3\nprint(math)',
      'x = ().__class__',
      'globals()["x"] = 1',
      'def f(): pass\nf.n = 1',
      'del print.x',
      'import random\nrandom.seed(1)',
      'print(__builtins__)',
      'from fractions import Fraction\nFraction.register(str)',
      'from collections import *\nclass A(ChainMap): pass',
      'from functools import *\nupdate_wrapper(A, B)',
      'from functools import wraps as w',
      'from sys import *',
      'try: 1 / 0\nexcept Exception as e: print("{0.args}".format(e))',
      'f = str.format',
      'print("{0[0]} {1:{0.args}}".format(x, y))',
      'class A:\n  def gi_frame(self): pass\nx = y.gi_frame',
      'print(x is y)',
      'print(x is 1)',
      'import operator\nprint(operator.is_(x, y))',
      'from operator import is_not',
      'print(hash(x))',
      'from re import *\ndef f(): return type(1)',
  )
  def test_what_may_be_remembered(self, program):
    self.assertFalse(one_process.is_plain(program))

  @parameterized.parameters(
      'print(x is None is not y, y is not True, None is x)',
      'class A: pass\nprint(type(A()) == A)',
      'import re\nprint(re.findall("a", input(), re.I))',
  )
  def test_what_may_not(self, program):
    self.assertTrue(one_process.is_plain(program))

  def test_what_is_told_is_not_believed(self):
    # As if it controlled the driver: none of these is a result of four tests.
    program = PROGRAMS[0][2]
    good, _ = self.judge(program, True)
    run = self.box.run
    for told in (
        b'', b'[]', b'{}', b'null', b'[1, 2, 3, 4]', b'[["ok", "6"]]',
        b'[["ok", 6], ["ok", 0], ["ok", 1], ["ok", 2]]', b'[' * 100_000,
        b'[["right", "6"], ["ok", "0"], ["ok", "-8"], ["ok", "140"]]',
        b'[["ok", "\\u1234"], ["ok", "0"], ["ok", "-8"], ["ok", "140"]]',
    ):  # fmt: skip

      def lie(source, stdin=b'', *, limits=None, told=told):
        result = run(source, stdin, limits=limits)
        if 'def drive' not in source:
          return result
        return dataclasses.replace(result, stdout=told)

      with mock.patch.object(self.box, 'run', lie):
        (verdict,) = execution.run_many(
            self.box, [(TESTS, program)], partial=True
        )
      self.assertEqual(dataclasses.replace(verdict, seconds=0.0), good, told)


if __name__ == '__main__':
  absltest.main()
