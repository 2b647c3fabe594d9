"""The language accepts what it should, and otherwise names a remedy."""

import importlib
import math
import operator
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.harness import calls
from evojax.harness import language
from evojax.harness import numpy_names
from evojax.harness import python_names
from evojax.harness import values
from evojax.harness import worker
from tests.harness import recorded

COLUMNS = ('outcome', 'n_tokens')
# Arguments, some of which fit each function.
_ARGUMENTS = (
    'x',
    'x, x',
    'x.ravel(), x.ravel()',
    'x, 1',
    'x, [0, 1]',
    '[x, x]',
    'x, x > 1, x',
    'x, 0, 1',
    '"ij->i", x',
    'x @ x.T + np.eye(2), np.ones(2)',
    'x @ x.T',
    'x.astype(int)',
    'x.astype(int).ravel()',
    'x.astype(int), x.astype(int)',
    'x[0], x[0], 1',
    'x[0], 1, x[0]',
    'x, 50',
    'x, 0.5',
    '3',
    '3, 4',
    '(2, 3)',
    '(2, 3), 1',
    '1, 2, 3',
    '0.5',
    '[1.0, 2.0]',
    '[1.0, 2.0], [2.0, 4.0]',
    '[x > 1, x > 0], [1.0, x], 2.0',
    'x, np.zeros((2, 1), int), 1',
    'x > 1',
    'x[0], x[1], x[0]',
    'x, 0, axis=1',
    'x, (3, 2)',
    'x, (2, 2, 3)',
)


def refusals(source, path='diagnostics/x.py'):
  return language.reasons(path, source, COLUMNS)


class LanguageTest(parameterized.TestCase):

  @parameterized.parameters(
      ('x = np.empty(3)', 'np.empty returns uninitialised memory; use np.zer'),
      ('x = np.random.rand()', 'np.random makes the answer differ from run'),
      ('x = np.load("x")', 'np.load reads a file'),
      ('x = np.cummsum(e)', r'is not on the list .*; there is cumsum'),
      ('x = e.outcomes', r'.outcomes is neither .* there is outcome'),
      ('x = np.sum(1, out=2)', 'out= writes into memory that is not its own'),
      (
          'x = np.add(1, 2, e)',
          r'np.add takes 2 arguments without a name, not 3',
      ),
      ('x = np.log(e, where=e)', 'np.log with where= leaves the rest unini'),
      ('x = e.valid.sum(0, int, 1)', '.sum takes 2 arguments without a name'),
      ('x = e.seconds', '.seconds is neither a column of the evidence nor'),
      ('x = e.valid.astype("O")', "'O' is not a dtype of numbers; use one of"),
      ('x = open("y")', 'no open: a function sees its arguments alone'),
      ('x = print(1)', 'no print: nothing that a function prints is kept; re'),
      ('x = type(e)', r'no type: use isinstance\(x, ...\)'),
      ('x = opens(1)', 'there is no opens; a function may use what it imports'),
      ('x = e.__class__', '.__class__ begins with an underscore'),
      ('x = "{0.x}".format(e)', "use an f-string: f'share_{name}'"),
      ('import os', 'import os is refused; a function sees its arguments al'),
      ('import torch', 'import torch is refused; a function runs on NumPy'),
      ('import scipy.stats', 'the box has NumPy alone; write the formula'),
      ('import random', 'fixed seed pays by position; compute it from'),
      ('import warnings', 'evojax silences warnings already; take it out'),
      ('from time import time', 'time is refused; an answer must not depend'),
      ('from numpy import *', r'from numpy import \* hides what is used; name'),
      ('from numpy import empty', 'np.empty returns uninit.*; use np.zeros'),
      ('from numpy import random', 'seed pays by position; compute it from'),
      ('from operator import attrgetter', 'write `lambda x: x.name`'),
      ('from functools import wraps', 'call one function inside the other'),
      ('from typing import TypeVar', 'annotate with Any'),
      ('from . import x', 'import . is refused; a function sees its argume'),
      (
          'try:\n    x = 1\n  except: pass',
          'except: also catches a lack of memory; write except ZeroDivisionErr',
      ),
      (
          'try:\n    x = 1\n  finally: pass',
          'finally is not allowed, since it may hide a lack of memory',
      ),
      ('raise OSError', 'OSError may not be raised; use ValueError'),
      ('raise Exception("x")', 'may not be raised; use ValueError'),
      ('with open(e): pass', r"no with but np.errstate\(divide='ignore'\)"),
      ('class C: pass', 'class C must be at the top level of the file'),
      ('f = np.array', r'np.array may only be called; write lambda x: np.ar'),
      ('x = str(zip([1], [2]))', 'is an iterator or .*, make a list of it'),
      ('x = str(i for i in [1])', 'is an iterator or .*, make a list of it'),
      ('x = f"{np.exp}"', 'np.exp is a function, whose text .*; it may be cal'),
      ('x = getattr(e, f"{e}")', r'getattr takes .*; e\[name\] reads a column'),
      ('x = getattr(e, "seed")', 'seed is neither a column of the evidence'),
      ('x = np.log(e, out=e, where=e)', 'or give out=np.zeros_like.* as well'),
      ('sum = 1', 'sum means something already; give yours another name'),
      ('x = 10000000000', 'a number is larger than 1e'),
      ('x = measure(e)', 'measure calls itself; use a loop'),
      ('f = {}.get', r'.get may only be called'),
      ('x = sorted([1], reverse={}.get)', r'.get may only be called'),
      ('x = sorted([1], key=[].append)', r'.append may only be called'),
      ('x = dict(a=zip([1], [2]))', 'is an iterator .*, make a list of it'),
      ('x = np.sum(**e)', 'arguments with .. hide what is passed'),
      ('x = np.add(*e)', 'arguments with . hide what is passed'),
      ('σ = 1', 'σ is not ASCII; write names in a-z, 0-9 and _'),
      ('x = dict(größe=1)', 'größe is not ASCII'),
      ('x = np.sum((float, 1))', 'may hold a function or an iterator, whose'),
      ('x = np.ndarray(3)', 'np.ndarray returns uninitialised memory'),
      ('x = np.pad(e, 1, np.exp)', 'np.pad takes its mode as a text, one of c'),
      ("x = np.pad(e, 1, mode='empty')", 'np.pad takes its mode as a text'),
      ('x = np.array_equal(e, 1)', r'is refused; write \(x == y\).all\(\)'),
  )
  def test_a_refusal_can_be_acted_on(self, body, pattern):
    source = f'import numpy as np\n\ndef measure(e):\n  {body}\n  return {{}}\n'
    found = refusals(source)
    self.assertRegex('\n'.join(found), pattern)
    self.assertRegex(found[0], r'^diagnostics/x.py line [1-6]: ')

  @parameterized.parameters(
      'isinstance(e, (int, float))',
      'isinstance(e, (int, np.float32, np.ndarray))',
      'isinstance(e, np.ndarray)',
      'e.valid.dtype == bool',
      'e.valid.dtype in (np.int32, int)',
      "e.valid.dtype.kind in 'fi'",
      'np.select(condlist=[e > 1], choicelist=[e], default=0.0)',
      'np.pad(e, 1)',
      "np.pad(e, ((0, 0), (1, 0)), mode='edge')",
      "'a b'.split(sep=' ', maxsplit=1)",
      'np.array(e, ndmin=1)',
      "{'größe': 1}",
      'dict(**{"a": 1})',
      'max(0, *[1, 2])',
      'f"{1.5:.2f} {2:>4} {e!r}"',
      "'{:.1f} {name}'.format(1.0, name=2)",
      "'%d of %.2f' % (1, 2.0)",
      'sorted([2, 1], key=lambda x: -x)',
      'list(map(abs, [1])) + [f(1) for f in (abs, lambda x: x)]',
      'np.subtract(*np.percentile(e.n_tokens, [75, 25]))',
      'np.finfo(np.float32).eps + np.finfo(float).max',
      'getattr(e, "outcome", None)',
      'np.divide(e, 2, out=np.zeros_like(e), where=e > 1)',
      '(n := len([1])) + n',
      'sorted(["b", "A"], key=str.lower)',
      'e.outcome.reshape(*e.outcome.shape, -1)',
  )
  def test_passes(self, expression):
    source = f'import numpy as np\n\ndef measure(e):\n  return {expression}\n'
    self.assertEqual(refusals(source), [])

  def test_what_belongs_to_a_refused_statement_goes_with_it(self):
    for statement, first in (
        ('match e:\n    case [0, {1: 2}]:\n      y = 1', 'line 2: no match'),
        ('async with e as x:\n    y = x', 'line 2: no async'),
    ):
      (found,) = refusals(f'def measure(e):\n  {statement}\n  return {{}}\n')
      self.assertStartsWith(found, f'diagnostics/x.py {first}')

  def test_all_at_once_but_not_without_end(self):
    source = 'import os\n' + 'x = open(1)\n' * 20
    found = refusals(source)
    self.assertLen(found, language.MAX_REASONS + 1)
    self.assertStartsWith(found[0], 'diagnostics/x.py line 1: import os')
    self.assertEqual(found[-1], 'diagnostics/x.py: and 13 more')

  @parameterized.parameters(
      '(' * 90 + '1' + ')' * 90,
      '-' * 100 + '1',
      '[' * 70 + ']' * 70,
      '1' + ' + 1' * 3000,
      'f(' * 5000 + ')' * 5000,
      '(yield)',
      'lambda: (yield)',
      '[(yield) for a in b]',
      'f(*a, **b)(c)[d](e)',
      'a.b.c()',
      'collections.namedtuple("a", b)',
      '"a" ' * 20000,
      f'0x{"f" * 5000}',
      f'[].append(dtype=0x{"f" * 5000})',
      'f"{\'a\u00a0b\'.split()}"',
  )
  def test_what_would_exhaust_the_reader(self, expression):
    found = refusals(f'x = {expression}\n')
    # Redundant brackets do not count as levels.
    if expression.strip('()') != '1':
      self.assertNotEmpty(found)

  @parameterized.parameters(
      'return 1', 'yield', 'nonlocal x', 'break', '*a, = b', 'x[0]: int = 1',
      'class C:\n  yield 1', 'class C:\n  return 1', 'from .. import a as b',
      'class C:\n  def f(): pass', 'class C:\n  @staticmethod\n  def f(): pass',
      'def f(x=(yield)): pass', 'def parts(e):\n  return', 'raise',
      'def f(*, a, b=1, **k): return f(**k)', 'def parts(): pass', 'self = 1',
  )  # fmt: skip
  def test_what_means_nothing_is_read_all_the_same(self, source):
    self.assertIsInstance(refusals(source), list)

  def test_what_cannot_be_shown_stands_nowhere(self):
    number = f'0x{"f" * 5000}'
    for line in (
        f'def f(x: g({number})): return x',
        f'x = np.zeros(3, {number})',
    ):
      (found,) = refusals(f'import numpy as np\n{line}\n')
      self.assertRegex(found, r'line 2: a number is larger than 2\*\*63')

  def test_loops(self):
    two = '[a for a in (1,) for b in (1,)]'
    nest = (
        lambda n: ''.join(
            '  ' * (i + 1) + f'for i{i} in range(2):\n' for i in range(n)
        )
        + '  ' * (n + 1)
        + f'x = {two}\n'
    )
    for loops, refused in ((1, False), (2, True)):
      source = f'def measure(e):\n{nest(loops)}  return {{}}\n'
      self.assertEqual(bool(refusals(source)), refused, source)

  @parameterized.parameters(
      ''.join(f'A{i} = (A{i + 1}, A{i + 1})\n' for i in range(60)),
      ''.join(f'A{i + 1} = (A{i}, A{i})\n' for i in range(60)),
      'A0 = (A1,)\nA1 = (A0,)\n',
      'A0 = -A0\n',
  )
  def test_constants_made_of_constants(self, constants):
    """Each is read once; as a tree, they would have 2**60 leaves."""
    self.assertIsInstance(
        refusals(f'{constants}def f(x=A0):\n  return x\n'), list
    )

  def test_what_is_known_late(self):
    """Each line depends on the next; reading only downwards would be slow."""
    lines = ''.join(f'  x{i} = x{i + 1}\n' for i in range(700))
    source = f'def measure(e):\n{lines}  x700 = iter([1])\n  return str(x0)\n'
    with mock.patch.object(
        values.Kinds, '_learn', autospec=True, side_effect=values.Kinds._learn
    ) as learn:
      self.assertRegex(refusals(source)[0], 'x0 is an iterator')
    self.assertLess(learn.call_count, 10 * source.count('\n') * 8)

  @parameterized.parameters(
      ('@dataclass\n', 'f: Callable = shout', 'shout would be shown by the'),
      ('@dataclass\n', 'f = np.mean', 'np.mean would be shown by the'),
      ('', 'f = shout', 'a method calls a function by its name'),
      ('@dataclass\n', 'f = field(default_factory=lambda: iter([]))', 'shown'),
      ('@dataclass\n', 'f: str = field(default_factory=Plain)', 'shown by the'),
      ('@dataclass\n', 'f: str = field(default_factory=Record)', ''),
      ('@dataclass\n', 'f: list = field(default_factory=lambda: [1])', ''),
  )
  def test_records_hold_what_can_be_shown(self, decorator, line, pattern):
    source = (
        'from dataclasses import dataclass, field\n'
        'from typing import Callable\nimport numpy as np\n'
        'def shout(x): return x\n'
        'class Plain: pass\n@dataclass\nclass Record:\n  x: int = 1\n'
        f'{decorator}class C:\n  {line}\n'
        'def measure(e):\n  return {"x": len(str(C().f))}\n'
    )
    found = '\n'.join(refusals(source))
    self.assertEqual(bool(found), bool(pattern), found)
    self.assertIn(pattern, found)

  def test_methods_of_classes(self):
    source = (
        'class A:\n  @classmethod\n  def make(cls, x): return cls()\n'
        '  @staticmethod\n  def f(x): return x + 1\n'
        '  def g(self): return 1\n'
        'def measure(e):\n  return {"x": A.f(1) + A.make(1).g()}\n'
    )
    self.assertEqual(refusals(source), [])
    for old, new, pattern in (
        ('A.f(1)', 'A.g(1)', 'A.g needs an instance of A, or @classmethod'),
        ('A.f(1)', 'len(str(A.make(1)))', 'is an iterator or an object'),
        ('A.f(1)', 'len(str(A.f))', 'A.f is a function'),
        ('A.f(1)', 'len(A.f(abs))', 'abs is a function'),
        ('return cls()', 'return str(cls)', 'cls'),
    ):
      self.assertRegex('\n'.join(refusals(source.replace(old, new))), pattern)

  def test_state_of_calls(self):
    plain = 'A = 1\nB = [A]\ndef f(x, y=-1, z=(1, A), f=abs):\n  return x\n'
    self.assertEqual(refusals(plain), [])
    for default in ('[]', 'B', '{}', 'dict()'):
      source = plain.replace('y=-1', f'y={default}')
      self.assertRegex(refusals(source)[0], 'line 3: a default of f is made')

  @parameterized.parameters(
      ('x = zip([1], [2])\n  x = x', 'list(x)', 'x may be read once'),
      ('x = make(e)', 'list(x[0])', 'x may be read once'),
      ('for x in [zip([1])]:\n    y = 1', 'list(x)', 'x may be read once'),
      ('x = list(zip([1], [2]))', 'x', ''),
      ('x = lambda y: y', 'x(e.outcome)', ''),
      ('x = C(1)', 'x(e.outcome)', ''),
      ('x = factory(2)', 'x(e.outcome)', ''),
  )
  def test_parts_share_nothing_that_is_read_once(self, line, value, pattern):
    source = (
        'def make(e): return (zip([1]),)\n'
        'def factory(n):\n  def f(x): return n * x\n  return f\n'
        'class C:\n  def __init__(self, n): self.n = n\n'
        '  def __call__(self, x): return self.n * x\n'
        f"def parts(e):\n  {line}\n  return {{'a': {value}, 'b': {value}}}\n"
    )
    found = refusals(source, 'reward.py')
    self.assertEqual(bool(found), bool(pattern), found)
    self.assertIn(pattern, '\n'.join(found))

  def test_names_of_modules_mean_what_they_say(self):
    for line, name in (
        ('import math as np', 'np'),
        ('from numpy import exp as math', 'math'),
        ('from math import exp\nexp = 1', 'exp'),
    ):
      source = f'{line}\ndef measure(e):\n  return {{}}\n'
      self.assertRegex('\n'.join(refusals(source)), f'{name} means something')

  def test_what_is_imported_under_any_name(self):
    source = (
        'import numpy\nimport numpy.linalg as la\nimport numpy as jnp\n'
        'from numpy import linalg, clip as bound\n'
        'from collections import Counter as C\n'
        'def measure(e):\n'
        '  x = numpy.exp(bound(jnp.ones(2), 0, 1))\n'
        '  return {"x": la.norm(x) + linalg.norm(x) + len(C([1]))}\n'
    )
    self.assertEqual(refusals(source), [])
    for old, new in (
        ('numpy.exp', 'numpy.empty'),
        ('jnp.ones(2)', 'jnp.random.rand(2)'),
        ('la.norm(x)', 'la.os'),
        ('len(C([1]))', 'C.__init__'),
        ('bound(jnp.ones(2), 0, 1)', 'bound(jnp.ones(2), 0, 1, out=e)'),
        ('bound(jnp.ones(2), 0, 1)', 'bound(jnp.ones(2), 0, 1, e)'),
    ):
      self.assertNotEmpty(refusals(source.replace(old, new)), new)


def answer(source, seconds=5.0):
  """Return the box's answer for a diagnostic, or how it failed."""
  call = calls.Call('f.py', 'measure', [recorded.view()])
  (found,) = calls.exchange({'f.py': source}, [call], calls.limits(seconds))
  return found


class BoxTest(parameterized.TestCase):

  def test_limits_are_not_caught(self):
    """Otherwise the answer would depend on the machine."""
    for body, pattern in (
        ('x = np.zeros(16 * 10**9) + 1', 'MemoryError'),
        (
            'y = []\n    for _ in range(10**5): y = [y]\n    x = str(y)',
            'RecursionError',
        ),
    ):
      source = (
          f'import numpy as np\ndef measure(e):\n  try:\n    {body}\n'
          '  except Exception:\n    return {"x": 1.0}\n  return {"x": 2.0}\n'
      )
      self.assertEqual(refusals(source), [])
      self.assertRegex(str(answer(source)), f'crash: line [46]: .*{pattern}')
    for body in ('x = 1 / 0', 'x = {}[1]', 'x = y', 'x = np.ones(2) @ [1]'):
      source = (
          f'import numpy as np\ndef measure(e):\n  try:\n    {body}\n'
          '  except Exception as error:\n    return {"x": 1.0}\n'
      )
      self.assertEqual(answer(source)['x'], 1)

  @parameterized.parameters(
      'x = re.match("(a+)+$", "a" * 99 + "b")',
      'while True: x = [i for i in range(99)]',
      'try:\n    while e: pass\n  except Exception: pass',
      'x = sum(itertools.count())',
  )
  def test_work_without_an_end_is_a_hang(self, body):
    source = (
        f'import itertools\nimport re\ndef measure(e):\n  {body}\n'
        '  return {"x": 1.0}\n'
    )
    self.assertEqual(refusals(source), [])
    self.assertEqual(answer(source, 0.2).status, 'hang')

  def test_constants_keep_their_form(self):
    source = (
        'from __future__ import annotations\n'
        'import collections\nfrom dataclasses import dataclass, field\n'
        'from typing import List, NamedTuple\n'
        'class Bound(NamedTuple):\n  low: float = 0.5\n'
        '@dataclass(frozen=True)\nclass Config:\n'
        '  bound: Bound = Bound()\n'
        '  rates: List[int] = field(default_factory=list)\n'
        'Pair = collections.namedtuple("Pair", "a b")\n'
        'CONFIG, PAIR = Config(), Pair(1, b=2)\n'
        'SCORES = {"a": lambda x: x + 1, "b": (abs, len)}\n'
        'def measure(e):\n'
        '  x = CONFIG.bound.low + PAIR.b + SCORES["a"](1)\n'
        '  x += SCORES["b"][0](-1)\n'
        '  return {f"x_{x:.1f}".replace(".", "_"): x + len(CONFIG.rates)}\n'
    )
    self.assertEqual(answer(source), {'x_5_5': 5.5})

  def test_every_module_works_in_the_box(self):
    """Modules are fully loaded before files become unreadable."""
    values = (
        'bisect.bisect([1], 1)', 'collections.OrderedDict(a=1)',
        'collections.Counter("aab").most_common(1)',
        'collections.deque([1], maxlen=1)', 'copy.deepcopy({"a": [1]})',
        'functools.reduce(operator.add, [1, 2])', 'heapq.nlargest(1, [1, 2])',
        'list(heapq.merge([1], [2]))', 'list(itertools.pairwise([1, 2]))',
        're.sub(r"(a)|(?i:B)", lambda m: m.group(), "ab")',
        're.compile(r"\\d+", re.M | re.X).findall("1 2")',
        're.split(",", "a,b")', 're.escape("a.b")',
        *(f'statistics.{n}([1.0, 2.0, 4.0], [2.0, 4.0, 9.0])' for n in (
            'correlation', 'covariance', 'linear_regression')),
        *(f'statistics.{n}([1.0, 2.0, 4.0])' for n in (
            'fmean', 'geometric_mean', 'harmonic_mean', 'mean', 'median',
            'median_high', 'median_low', 'mode', 'multimode', 'pstdev',
            'pvariance', 'quantiles', 'stdev', 'variance')),
        'string.punctuation.upper()', '"{:>4} {x:.1f}".format(1, x=2.0)',
        'f"{1e6:,.1f} {0.5:.0%} {7:03d} {1.5!r}"', 'repr(1.5)',
        'format(1, "x")',
    )  # fmt: skip
    imports = '\n'.join(
        f'import {name}'
        for name in sorted(python_names.MODULES - {'__future__', 'numpy'})
    )
    source = (
        f'{imports}\nimport numpy as np\ndef measure(e):\n  x = ['
        + ', '.join(values)
        + ']\n  return {"x": len(x)}\n'
    )
    self.assertEqual(refusals(source), [])
    self.assertEqual(answer(source), {'x': len(values)})

  def test_all_that_may_be_imported_is_loaded(self):
    loaded = {*worker.MODULES, 'numpy', 'numpy.linalg', '__future__'}
    self.assertEqual(python_names.MODULES - loaded, set())
    for table in (
        python_names.FUNCTIONS, python_names.CONSTANTS, python_names.TYPES,
    ):  # fmt: skip
      for module, listed in table.items():
        for name in listed:
          operator.attrgetter(name)(importlib.import_module(module))


class NamesTest(parameterized.TestCase):

  def test_they_are_there(self):
    for name in numpy_names.CONSTANTS | numpy_names.DTYPES:
      self.assertTrue(hasattr(np, name), name)
    for name in numpy_names.UNARY | numpy_names.BINARY:
      function = getattr(np, name)
      self.assertIsInstance(function, np.ufunc)
      self.assertEqual(function.nin, 1 + (name in numpy_names.BINARY), name)
    for name in numpy_names.MATH:
      self.assertTrue(hasattr(math, name), name)

  def test_after_the_positional_arguments_comes_out(self):
    """Otherwise a function could be given an array to write into."""
    x = np.ones((2, 3))
    for name, rest in (
        ('sum', (x, 0, None)), ('cumsum', (x, 0, None)), ('clip', (x, 0, 1)),
        ('take', (x, [0], 0)), ('median', (x, 0)), ('percentile', (x, 5, 0)),
        ('argmax', (x, 0)), ('round', (x, 1)), ('concatenate', ([x], 0)),
        ('dot', (x, x.T)), ('matmul', (x, x.T)), ('maximum', (x, x)),
    ):  # fmt: skip
      most, _ = numpy_names.positional(name)
      self.assertEqual(most, len(rest), name)

  @parameterized.parameters(
      *(f'np.{n}' for n in sorted(numpy_names.FUNCTIONS)),
      *(f'np.linalg.{n}' for n in sorted(numpy_names.LINALG)),
  )
  def test_it_works_in_the_box(self, name):
    """Modules are fully loaded before files become unreadable."""
    if name == 'np.einsum':
      tries = ['"ij->i", x']
    else:
      tries = _ARGUMENTS
    called = []
    for arguments in tries:
      source = (
          'import numpy as np\n'
          'def measure(e):\n'
          '  x = np.array([[0.5, 2.0, 1.0], [1.0, 0.0, 3.0]])\n'
          f'  y = {name}({arguments})\n'
          '  return {"x": 1.0}\n'
      )
      (answer,) = calls.exchange(
          {'f.py': source},
          [calls.Call('f.py', 'measure', [recorded.view()])],
          calls.limits(5.0),
      )
      called.append(str(answer))
      if isinstance(answer, dict):
        return
      self.assertNotRegex(str(answer), 'Permission|ImportError|NotFound')
    self.fail(called)


if __name__ == '__main__':
  absltest.main()
