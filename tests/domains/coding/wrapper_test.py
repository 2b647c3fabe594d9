"""Programs run as on judging sites, and calls of their functions."""

import dataclasses
import json

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import execution
from evojax.domains.coding import grade
from evojax.domains.coding import one_process
from evojax.domains.coding import suite
from evojax.domains.coding import wrapper
from evojax.sandbox import shared
from tests.domains.coding import graded

CALL = suite.Suite(
    (
        suite.Case('[3, 1, 2]\n2', '[1, 2]', True),
        suite.Case('[]\n1', '[]', False),
        suite.Case('[5, 4]\n1', '[4]', False),
    ),
    function='smallest',
    seconds=1.0,
)
RIGHT_CALL = """
def smallest(a, k):
  return sorted(a)[:k]
"""
# A search whose depth is the input.
DEEP = """
import sys
def search(n): return 0 if n == 0 else 1 + search(n - 1)
class Search:
  def search(self, n): return 0 if n == 0 else 1 + self.search(n - 1)
n = int(input())
print(search(n), Search().search(n))
"""
LIMITLESS = 'def f(n): return f(n + 1)\nprint(f(0))'


class AsJudgesTest(parameterized.TestCase):
  """Provides what LiveCodeBench's harness gives to programs."""

  @parameterized.parameters(5_000, 40_000)
  def test_searches_go_deep(self, depth):
    cases = [suite.Case(f'{n}\n', f'{n} {n}', False) for n in (3, depth)]
    # With a name that is not plain, each test gets its own process.
    for program in (DEEP, DEEP + '# \nvars()'):
      found = graded.grade_one(program, suite.Suite(tuple(cases), seconds=2.0))
      self.assertTrue(found.outcome, found)
    first, *_ = DEEP.strip().split('n = int')
    cases = (suite.Case(f'{depth}', f'{depth}', False),)
    tests = suite.Suite(cases, function='search', seconds=2.0)
    for program in (first, first.replace('class Search', 'class Solution')):
      found = graded.grade_one(program, tests)
      self.assertTrue(found.outcome, found)

  @parameterized.named_parameters(
      ('plain', LIMITLESS),
      ('alone', LIMITLESS + '\nvars()'),
      ('through C', 'class A:\n  def __repr__(self): return repr(self)\n'
       'print(A())'),
      ('cached', 'import functools\n@functools.cache\n' + LIMITLESS),
  )  # fmt: skip
  def test_endless_recursion_is_an_error_at_once(self, program):
    # Printing its traceback alone would exceed this time.
    tests = dataclasses.replace(graded.TESTS, seconds=0.7)
    found = graded.grade_one(program, tests)
    self.assertEqual((found.status, found.outcome), ('error', False))

  def test_one_process_is_as_deep_as_one_test(self):
    program = 'def f(n):\n  try: return f(n + 1)\n  except: return n\n'
    program += 'print(f(0))'
    box = shared.open_box(graded.SLOTS)
    of_a_test = execution._limits(box.limits, 2.0, 10)
    found = one_process.run(box, program, [b'', b''], of_a_test)
    alone = box.run(wrapper.wrap(program), limits=of_a_test)
    self.assertEqual([x.stdout for x in found], [alone.stdout] * 2)
    self.assertGreater(int(alone.stdout), 49_900)

  @parameterized.parameters(
      ('import __main__, sys\nx = 3\n'
       'print(__main__.x, __name__, sys.argv[0])', '3 __main__ main.py'),
      ('"""A docstring."""\nfrom __future__ import annotations\n'
       'def f(x: y): pass\nprint(__doc__, f.__annotations__["x"])',
       'A docstring. y'),
      # More digits than Python prints by default: 7 ** 9999 has 8451.
      ('print(len(str(7 ** 9999)), int("9" * 9000) % 9)', '8451 0'),
  )  # fmt: skip
  def test_a_program_is_the_main_module(self, program, expected):
    cases = (suite.Case('', expected, False),)
    found = graded.grade_one(program, suite.Suite(cases, seconds=1.0))
    self.assertTrue(found.outcome, found)

  def test_the_wrapper_adds_no_name(self):
    box, program = shared.open_box(graded.SLOTS), 'print(sorted(globals()))'
    alone = box.run(program).stdout
    self.assertNotEmpty(alone)
    self.assertEqual(box.run(wrapper.wrap(program)).stdout, alone)


class CallTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('function', RIGHT_CALL),
      ('method', 'class Solution:\n  def smallest(self, a: List[int], k: int)'
       ' -> List[int]:\n    return sorted(a)[:k]'),
      ('tuple', RIGHT_CALL.replace('sorted(a)[:k]', 'tuple(sorted(a)[:k])')),
      ('prints as well', RIGHT_CALL.replace('return', 'print(a); return')),
      ('its own test', RIGHT_CALL + 'if __name__ == "__main__":\n  1 / 0'),
      ('quotes', RIGHT_CALL + '"""\'\'\'"""\n\'\\\\\''),
  )  # fmt: skip
  def test_right(self, program):
    found = graded.grade_one(program, CALL)
    self.assertTrue(found.outcome, found)
    self.assertEqual(found.columns['mode'], grade.CODING_MODE['solves'])

  @parameterized.named_parameters(
      ('wrong', 'def smallest(a, k): return a[:k]', 'ok', 1),
      ('constant', 'def smallest(a, k): return [1, 2]', 'ok', 1),
      ('other name', 'def largest(a, k): return [1, 2]', 'error', 0),
      ('not Python', 'def smallest(a, k: return []', 'syntax_error', 0),
      ('no JSON', 'def smallest(a, k): return {1, 2}', 'error', 0),
      ('exits', 'import os\ndef smallest(a, k): os._exit(0)', 'ok', 0),
      ('exits before', 'import sys\nsys.exit(0)', 'ok', 0),
      ('writes results itself', 'import os\nos.write(1, b"[1, 2]")\n'
       + RIGHT_CALL, 'ok', 0),
      ('writes results afterwards', 'import atexit, os\n'
       'atexit.register(os.write, 1, b"x")\n' + RIGHT_CALL, 'ok', 0),
      ('overwrites the writer', 'import json\njson.dumps = lambda x:'
       ' "[1, 2]"\ndef smallest(a, k): return 0', 'ok', 0),
      ('equal to everything', 'class Yes(list):\n  __eq__ = lambda a, b: True\n'
       'def smallest(a, k): return Yes()', 'ok', 1),
      ('looks at its caller', 'import sys\ndef smallest(a, k):\n'
       '  return sorted(map(str, sys._getframe(1).f_locals))', 'ok', 0),
      ('much nesting', 'import os\ndef smallest(a, k):\n'
       '  os.write(1, b"[" * 50000); os._exit(0)', 'ok', 0),
  )  # fmt: skip
  def test_wrong(self, program, status, passed):
    found = graded.grade_one(program, CALL, partial=True)
    self.assertFalse(found.outcome)
    self.assertEqual(found.status, status)
    self.assertEqual(found.columns['tests_passed'], passed, found)

  def test_names_that_are_taken_for_granted(self):
    cases = suite.Case('3\n"a\u2028b"', '[27, 3]', False)
    tests = suite.Suite((cases,), function='f', seconds=1.0)
    program = 'def f(n, text): return [pow(n, 3, 1000), len(text)]'
    (found,) = graded.grade_texts([graded.fenced(program)], tests)
    self.assertTrue(found.outcome, found)

  @parameterized.parameters('merge', 'compress', 'count', 'pow')
  def test_a_method_named_like_one_of_them(self, name):
    cases = suite.Case('[1, 3]\n[2]', '[1, 2, 3]', False)
    tests = suite.Suite((cases,), function=name, seconds=1.0)
    program = f'class Solution:\n  def {name}(self, a, b): return sorted(a + b)'
    (found,) = graded.grade_texts([graded.fenced(program)], tests)
    self.assertTrue(found.outcome, found)

  @parameterized.parameters(
      ('factorial', '5', '120'),
      ('gcd', '12\n18', '6'),
      ('sorted', '[2, 1]', '[1, 2]'),
      ('len', '[2, 1]', '2'),
  )
  def test_a_name_that_is_taken_for_granted_is_no_answer(
      self, name, given, expected
  ):
    cases = suite.Case(given, expected, False)
    tests = suite.Suite((cases,), function=name, seconds=1.0)
    for program in ('', 'x = 1', 'class Solution: pass'):
      found = graded.grade_one(program, tests)
      self.assertEqual((found.outcome, found.status), (False, 'error'), found)
    # The program's own function may have the other name.
    method = f'class Solution:\n  def {name}(self, *a): return {name}(*a)'
    for program in (method, f'{name} = [{name}][0]'):
      self.assertTrue(graded.grade_one(program, tests).outcome, program)

  @parameterized.parameters(
      ('bisect_left(a, b) + len(ascii_lowercase)', '[1, 3]\n3', '27'),
      ('[xor(a, 1), deepcopy(b), mean(b), sys.maxsize > a]', '2\n[1, 3]',
       '[3, [1, 3], 2, true]'),
      ('json.loads(dumps(a)) + [sub(5, 3), date(2020, 1, 1).day]', '[0]',
       '[0, 2, 1]'),
      ('[Counter(a)["x"], heappop([b, 9]), gcd(4, 6), pow(3, 3, 10)]',
       '"xx"\n7', '[2, 7, 2, 7]'),
      ('[datetime.date(2020, 1, 1).day, StringIO("x").read(), re.sub("a", "b",'
       ' a), random.Random(0).choice([4])]', '"a"', '[1, "x", "b", 4]'),
      ('[Decimal_(a), Fraction_(1, 2), Decimal_(2)]', '"0.25"',
       '[0.25, 0.5, 2]'),
      ('type("A", (), {"tolist": lambda x: [a]})()', '3', '[3]'),
      ('len(str(a)) + len(str(7 ** 9999))', '1' * 5000, '13451'),
      ('7 ** 9', '', '40353607'),
  )  # fmt: skip
  def test_what_a_call_may_take_for_granted(self, value, given, expected):
    program = (
        'from decimal import Decimal as Decimal_\n'
        'from fractions import Fraction as Fraction_\n'
        f'def f(a=0, b=0): return {value}'
    )
    cases = (suite.Case(given, expected, False),)
    tests = suite.Suite(cases, function='f', seconds=1.0)
    found = graded.grade_one(program, tests)
    self.assertTrue(found.outcome, found)

  def test_classes_with_annotations_find_their_module(self):
    program = (
        'from __future__ import annotations\n'
        'from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\n'
        'def smallest(a, k): return [P(x).x for x in sorted(a)[:k]]'
    )
    self.assertTrue(graded.grade_one(program, CALL).outcome)

  @parameterized.parameters(
      (True, '{"1": {"-2": 0}}\n[{"3": 0}]', [[1], [-2], [3]]),
      (True, '{"01": {"a": 0}}\n[{"1": 0, "b": 0}]',
       [['01'], ['a'], ['1', 'b']]),
      (False, '{"1": {"2": 0}}\n[{"3": 0}]', [['1'], ['2'], ['3']]),
  )  # fmt: skip
  def test_keys_that_were_whole_numbers(self, integer_keys, given, expected):
    cases = (suite.Case(given, json.dumps(expected), False),)
    tests = suite.Suite(
        cases, function='f', integer_keys=integer_keys, seconds=1.0
    )
    program = (
        'def f(a, b):\n  (c,) = a.values()\n'
        '  return [list(x) for x in (a, c, b[0])]'
    )
    self.assertTrue(graded.grade_one(program, tests).outcome)
    # JSON makes the keys of a result strings in either case.
    tests = suite.Suite(
        (suite.Case('3', '{"3": 1}', False),), function='f', seconds=1.0
    )
    self.assertTrue(graded.grade_one('def f(n): return {n: 1}', tests).outcome)

  def test_the_wrapper_holds_no_answer(self):
    self.assertNotIn('[1, 2]', wrapper.wrap(RIGHT_CALL, 'smallest'))


if __name__ == '__main__':
  absltest.main()
