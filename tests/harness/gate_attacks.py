"""Attacks by functions on the gate, each with the layers that stop it.

An attack proves something if the whole gate refuses it, the gate without its
layers admits it, and, if it has several layers, each of them alone refuses it.
In each of these configurations honest functions pass. An admitted attack has
worked; otherwise it returns no number, which is refused as well.
"""

import dataclasses
import textwrap

LANGUAGE = ('language',)


@dataclasses.dataclass(frozen=True)
class Attack:
  """One attack."""

  name: str
  layers: tuple[str, ...]  # Each of them stops it alone.
  path: str
  source: str


def _measure(name, body, before='', layers=LANGUAGE, signature='e'):
  """Return a diagnostic that has a number if `got` is true."""
  body = textwrap.indent(textwrap.dedent(body).strip(), '  ')
  source = (
      f'import numpy as np\n\n\n{textwrap.dedent(before).strip()}\n\n\n'
      f'def measure({signature}):\n{body}\n'
      "  return {'x': float((e.outcome & e.valid).sum())} if got else {}\n"
  )
  return Attack(name, layers, 'diagnostics/x.py', source)


# Name -> (body, code above the function).
_WRITTEN = {
    # Access to objects outside of the function.
    'class of a tuple': ('got = ().__class__.__base__.__subclasses__()', ''),
    'globals of a function': ('got = measure.__globals__["np"]', ''),
    'builtins by name': ('got = __builtins__', ''),
    'getattr': ('got = getattr(e, "__dict__")', ''),
    'type': ('got = type(e).__init__', ''),
    'vars': ('got = vars(e)', ''),
    'dir': ('got = dir(e)', ''),
    'eval': ('got = eval("1 + 1")', ''),
    'exec': ('got = []\nexec("got.append(1)")', ''),
    'compile': ('got = compile("1", "x", "eval")', ''),
    'globals': ('got = globals()', ''),
    'locals': ('got = locals()', ''),
    '__import__': ('got = __import__("os").sep', ''),
    'import os': ('got = os.sep', 'import os'),
    'import inside': ('import os\ngot = os.sep', ''),
    'import as np': ('got = nq.sep', 'import os as nq'),
    'star import': ('got = pi', 'from math import *'),
    'import of a part': ('got = empty(3).size', 'from numpy import empty'),
    'attribute by match': (
        """
        match e:
          case object(__class__=found):
            got = found
        """,
        '',
    ),
    'attributes in a format': ('got = "{0.__class__}".format(e)', ''),
    'format_map': ('got = "{e.__class__}".format_map({"e": e})', ''),
    'format kept in a variable': ('f = "{0}".format\ngot = f(1)', ''),
    # Addresses, which differ between processes or reveal earlier calls.
    'a generator as text': ('got = "0x" in str(n for n in [1])', ''),
    'a zip as text': ('x = zip([1], [2])\ngot = "0x" in f"{x}"', ''),
    'an iterator in a list': ('got = "0x" in str([enumerate([1])])', ''),
    'a generator by max': (
        'x = max((n for n in [1]), (n for n in [2]), key=lambda x: 0)\n'
        'got = "0x" in str(x)',
        '',
    ),
    'a generator by np.max': ('got = "0x" in str(np.max(n for n in [1]))', ''),
    'a lambda as text': ('got = "0x" in str(dict(key=lambda x: x))', ''),
    'a function as text': (
        'got = "0x" in f(key=f)',
        'def f(key):\n  return str(key)',
    ),
    'an iterator of an array as text': (
        'got = "0x" in str(e.valid.flat)',
        '',
    ),
    'underscored attribute': ('got = e._reader', ''),
    'code of a lambda': ('got = (lambda: 1).__code__', ''),
    'traceback of an error': (
        """
        try:
          1 / 0
        except ZeroDivisionError as error:
          got = error.__traceback__
        """,
        '',
    ),
    'annotation that is run': ('got = True', 'def f(x: print("run")): pass'),
    'decorator': ('got = f == 1', '@(lambda g: 1)\ndef f(): pass'),
    'line of its own': ('got = A[0]', 'A = []\nA.append(1)\nif A: A[0] = 2'),
    # Memory of others, or uninitialised memory.
    'np.empty': ('x = np.empty(3)\ngot = True', ''),
    'np.empty_like': ('x = np.empty_like(e.valid)\ngot = True', ''),
    'np.ndarray': ('x = np.ndarray(3)\ngot = True', ''),
    'where= of a ufunc': (
        'x = np.add(e.valid, 1, where=e.valid)\ngot = True',
        '',
    ),
    'where= of a ufunc, aliased': (
        'f = np.add\nx = f(e.valid, 1, where=e.valid)\ngot = True',
        '',
    ),
    'out without a name': (
        'x = np.zeros(3)\ny = np.add(1, 2, x)\ngot = x[0] == 3',
        '',
    ),
    'out of a sum': (
        'x = np.zeros(())\ny = np.ones(3).sum(0, None, x)\ngot = x == 3',
        '',
    ),
    'out in keywords': (
        'x = np.zeros(3)\ny = np.add(1, 2, **{"out": x})\ngot = x[0] == 3',
        '',
    ),
    'out in a star': (
        'x = np.zeros(3)\ny = np.add(*(1, 2, x))\ngot = x[0] == 3',
        '',
    ),
    'strides': (
        'x = np.lib.stride_tricks.as_strided(np.zeros(1), (64,), (8,))\n'
        'got = x.shape == (64,)',
        '',
    ),
    'frombuffer': ('got = np.frombuffer(b"12345678").size', ''),
    'ctypes of an array': ('got = np.zeros(3).ctypes.data', ''),
    'address of an array': (
        'got = np.zeros(3).__array_interface__["data"]',
        '',
    ),
    'view of an array': ('got = np.ones(1).view(np.int64)[0]', ''),
    'writeable flag': ('x = np.zeros(3)\nx.flags.writeable = 0\ngot = 1', ''),
    'base of an array': ('got = np.zeros((2, 2))[0].base is not None', ''),
    'np.set_printoptions': ('np.set_printoptions(precision=3)\ngot = 1', ''),
    # Arrays of arbitrary objects.
    'dtype=object': ('got = np.array([e], dtype=object)[0] is e', ''),
    'dtype O': ('got = np.array([1]).astype("O")[0]', ''),
    'dtype O in a variable': ('t = "O"\ngot = np.array([1]).astype(t)[0]', ''),
    'dtype without a name': ('got = np.array([e], "O")[0] is e', ''),
    'np.dtype': ('got = np.dtype("O")', ''),
    'np.object_': ('got = np.array([e], np.object_)[0] is e', ''),
    # Calls of other functions.
    'np.vectorize': ('got = np.vectorize(abs)(np.ones(2)).sum()', ''),
    'np.frompyfunc': ('got = np.frompyfunc(abs, 1, 1)(1)', ''),
    'an older meaning': ('abs = len\ngot = abs((1,))', ''),
    # Functions, iterators and objects, whose text contains an address.
    'a function in an f-string': ('got = f"{f}"', 'def f(): return 1'),
    'a function by percent': ('got = "%s" % (f,)', 'def f(): return 1'),
    'a function by format': ('got = "{}".format(f)', 'def f(): return 1'),
    'a function in a table as text': (
        'got = str({"a": [f]})',
        'def f(): return 1',
    ),
    'a closure as text': (
        'got = str(make())',
        'def make():\n  def f(): return 1\n  return f',
    ),
    'a default as text': (
        'got = show()',
        'def show(f=len, g=np.mean): return str(g)',
    ),
    'a partial as text': (
        'got = "0x" in str(functools.partial(f))',
        'import functools\ndef f(): return 1',
    ),
    'a function through a loop': (
        'got = [str(g) for g in (f,)]',
        'def f(): return 1',
    ),
    'a function through a star': (
        'got = show(*[f])',
        'def f(): return 1\ndef show(*all_): return str(all_)',
    ),
    'a function through a name': (
        'g = [f]\nh = g[0] if e.max_tokens else None\ngot = str(h)',
        'def f(): return 1',
    ),
    'a function through next': (
        'got = str(next(iter([f])))',
        'def f(): return 1',
    ),
    'a function through an attribute': (
        'c = C(f)\ngot = str(c.f)',
        'def f(): return 1\n'
        'class C:\n  def __init__(self, f):\n    self.f = f',
    ),
    'a function through a list that grows': (
        'x = []\nx.append(f)\ngot = str(x)',
        'def f(): return 1',
    ),
    'a function through an array': (
        'x = np.array([f])\ngot = str(x)',
        'def f(): return 1',
    ),
    'a function through an item': (
        'x = {}\nx["a"] = f\ngot = str(x)',
        'def f(): return 1',
    ),
    'functions in a set': (
        'got = [g() for g in {f, h}]',
        'def f(): return 1\ndef h(): return 2',
    ),
    'types in a set': ('got = [str(t) for t in {int, float, str}]', ''),
    'another definition of a function': (
        'got = g(f)',
        'def f(): return 1\n'
        'def pick():\n'
        '  def g(x): return 1\n'
        '  g = str\n'
        '  return g(f)\n'
        'def g(x): return pick()',
    ),
    'a method as text': ('got = "0x" in str(e.valid.sum)', ''),
    'a method in place of a field': (
        'got = "0x" in str(e.valid.mean)',
        'import dataclasses\n'
        '@dataclasses.dataclass\nclass C:\n  mean: float = 0.0',
    ),
    'an instance as text': (
        'got = "0x" in str(C())',
        'class C:\n  x = 1',
    ),
    'instances in a set': (
        'got = {C(), C()}',
        'class C:\n  x = 1',
    ),
    'an instance through a method': (
        'got = "0x" in C().me()',
        'class C:\n  def me(self): return str(self)',
    ),
    'an error as text': (
        'try:\n  x = {}[f]\nexcept KeyError as error:\n  got = str(error)',
        'def f(): return 1',
    ),
    'a match in a set': (
        'got = list({re.match("a", "a"), re.match("b", "b")})',
        'import re',
    ),
    'matches in a set': ('got = set(re.finditer("a", "aa"))', 'import re'),
    'a group of groupby as text': (
        'got = [str(g) for _, g in itertools.groupby([1])]',
        'import itertools',
    ),
    'an iterator by next': ('got = str(next(iter([]), zip([1])))', ''),
    'an iterator by sum': ('got = str(sum([], zip([1])))', ''),
    'an iterator by reduce': (
        'got = str(functools.reduce(max, [], zip([1])))',
        'import functools',
    ),
    'an iterator by repeat': (
        'got = str(list(itertools.repeat(zip([1]), 1)))',
        'import itertools',
    ),
    'an iterator by a default dict': (
        'x = collections.defaultdict(lambda: 1)\ngot = "0x" in str(x)',
        'import collections',
    ),
    'an iterator by a copy': (
        'got = "0x" in str(copy.copy(iter([1])))',
        'import copy',
    ),
    'an iterator at the top': ('got = list(A)', 'A = iter([1])'),
    'a function by setdefault': (
        'x = {"a": f}\ngot = str(x.setdefault("a"))',
        'def f(): return 1',
    ),
    'a function by items of a class': (
        'got = [str(g) for g, _ in C().items()]',
        'def f(): return 1\n' 'class C:\n  def items(self): return [(f, 1)]',
    ),
    'a function by a method that is named sub': (
        'got = C().sub(f)',
        'def f(): return 1\n' 'class C:\n  def sub(self, g): return str(g)',
    ),
    'an iterator by a method that is named update': (
        'got = C().update(zip([1]))',
        'class C:\n  def update(self, g): return str(g)',
    ),
    'a function behind a comprehension': (
        'x = [f for f in (1, 2)]\ngot = str(f)',
        'f = lambda: 1',
    ),
    'a function behind an inner name': (
        'def g():\n  f = 1\n  return f\ngot = g() and str(f)',
        'f = lambda: 1',
    ),
    'a builtin behind a comprehension': (
        'x = [iter for iter in (1, 2)]\ngot = str(iter([1]))',
        '',
    ),
    'a builtin behind an inner name': (
        'def g(iter): return 1\nh = iter\ngot = g(1) and str(h([1]))',
        '',
    ),
    'getattr behind a comprehension': (
        'x = [getattr for getattr in (1, 2)]\n'
        'got = getattr(e, "__cla" "ss__")',
        '',
    ),
    'getattr under another name': (
        'f = getattr\ngot = f(e, "__cla" "ss__")',
        '',
    ),
    'getattr by reduce': (
        'got = functools.reduce(getattr, ["__cla" "ss__"], e)',
        'import functools',
    ),
    'getattr of a method': ('got = str(getattr("a", "lower"))', ''),
    'an import that is another': (
        'from itertools import cycle as f\ngot = str(f([1]))',
        'from math import sqrt as f',
    ),
    'an iterator under another name': ('f = zip\ngot = str(f([1]))', ''),
    'iterators by map': ('got = str(list(map(iter, [[1]])))', ''),
    'a function that reduce gives back': (
        'got = functools.reduce(f, [1, 2, 3], 0)()',
        'import functools\n' 'def f(a, b):\n  x = str(a)\n  return lambda: x',
    ),
    'a function that key= is given': (
        'got = max([f], key=lambda g: len(str(g)))()',
        'def f(): return 1',
    ),
    'a function that sort is given': (
        'x = [f]\nx.sort(key=lambda g: len(str(g)))\ngot = x[0]()',
        'def f(): return 1',
    ),
    'a match that sub gives': (
        'x = set()\n'
        'def f(m):\n  x.add(m)\n  return "b"\n'
        'got = re.sub("a", f, "aa") and list(x)',
        'import re',
    ),
    'errors of the processor': (
        'with np.errstate(under="raise"):\n  got = 1',
        '',
    ),
    # Escapes from modules and strings.
    'sys of re': ('got = re.enum.sys.path', 'import re'),
    'a lock of functools': ('got = functools.RLock', 'import functools'),
    'sys of statistics': ('got = statistics.sys', 'import statistics'),
    'sys of dataclasses': ('got = dataclasses.sys', 'import dataclasses'),
    'sys by from': ('got = sys', 'from dataclasses import sys'),
    'a compiler by from': ('got = _compiler', 'from re import _compiler'),
    'attrgetter': (
        'got = operator.attrgetter("__class__")(e)',
        'import operator',
    ),
    'methodcaller': (
        'got = operator.methodcaller("keys")({1: 2})',
        'import operator',
    ),
    'get_type_hints': (
        'got = typing.get_type_hints(measure) == {}',
        'import typing',
    ),
    'getattr of a constant': ('got = getattr(e, "__class__")', ''),
    'getattr of a text': ('n = "__cla" "ss__"\ngot = getattr(e, n)', ''),
    'items in a format': ('got = "{0[0]}".format([1])', ''),
    'a format that is computed': (
        'got = ("{0." + "real}").format(1)',
        '',
    ),
    'format of str': ('got = str.format("{0.real}", 1)', ''),
    'a class in an annotation': (
        'got = 1',
        'def g(): pass\ndef f(x: g.__globals__): pass',
    ),
    'frame of a generator': ('got = (i for i in [1]).gi_frame', ''),
    'frame of an error': (
        """
        try:
          1 / 0
        except ZeroDivisionError as error:
          got = error.__traceback__.tb_frame.f_globals
        """,
        '',
    ),
    'notes of an error': (
        """
        try:
          1 / 0
        except ZeroDivisionError as error:
          error.add_note('x')
          got = 1
        """,
        '',
    ),
    'a class with a base': ('got = C({1: 2})', 'class C(dict): pass'),
    'a metaclass': ('got = C', 'class C(metaclass=type): pass'),
    'a decorated class': ('got = C', '@str\nclass C: pass'),
    'a method that is called unseen': (
        'got = C().x',
        'class C:\n  def __getattr__(self, name): return 1',
    ),
    'a class that is changed': (
        'C.x = 2\ngot = C.x',
        'class C:\n  x = 1',
    ),
    'a method of another object': (
        'x = np.zeros(4)\nC.set(x)\ngot = x.shape == (2, 2)',
        'class C:\n  def set(self): self.shape = (2, 2)',
    ),
    'another self': (
        'got = C().set().shape == (2, 2)',
        'class C:\n'
        '  def set(self):\n'
        '    self = np.zeros(4)\n'
        '    self.shape = (2, 2)\n'
        '    return self',
    ),
    'a field that is shared': (
        'C().x.append(1)\ngot = C().x',
        'class C:\n  x = []',
    ),
    # An attribute is known by its name alone, whatever has it.
    'builtins by fields of such names': (
        'got = (i for i in [1]).gi_frame.f_builtins["__import__"]',
        'class C:\n  gi_frame = f_builtins = 1',
    ),
    'builtins by names set in a method': (
        'got = (i for i in [1]).gi_frame.f_builtins["__import__"]',
        'class C:\n'
        '  def __init__(self):\n'
        '    self.gi_frame = self.f_builtins = 1',
    ),
    'builtins by fields of a namedtuple': (
        'got = (i for i in [1]).gi_frame.f_builtins["__import__"]',
        'import collections\n'
        'C = collections.namedtuple("C", "gi_frame f_builtins")',
    ),
    'a frame by getattr of a field': (
        'got = getattr((i for i in [1]), "gi_frame")',
        'class C:\n  gi_frame = 1',
    ),
    'the memory of a column by a field': (
        'got = e.n_tokens.base is not None',
        'class C:\n  base = 1',
    ),
    'an address by a field': (
        'got = "0x" in str(np.zeros(3).data)',
        'class C:\n  data = 1',
    ),
    'a flag by a field': (
        'x = np.zeros(3)\nx.flags["WRITEABLE"] = False\ngot = 1',
        'class C:\n  flags = 1',
    ),
    'the classes of a number by a method': (
        'got = e.valid.dtype.type.mro()',
        'class C:\n  type = 1\n  def mro(self): return 1',
    ),
    'bytes of an array by a method': (
        'got = np.zeros(3).tobytes()',
        'class C:\n  def tobytes(self): return 1',
    ),
    'a function of a partial by a field': (
        'got = str(functools.partial(len).func)',
        'import functools\nclass C:\n  func = 1',
    ),
    'a function of a default dict by a field': (
        'got = str(collections.defaultdict(len).default_factory)',
        'import collections\nclass C:\n  default_factory = 1',
    ),
    # Values that were thought to be plain.
    'an iterator in a format that is empty': (
        'got = "0x" in f"{zip():{str()}}"',
        '',
    ),
    'an iterator as text in a format': ('got = "0x" in f"{zip()!r:>9}"', ''),
    'a decorator as text': (
        'got = "0x" in str(functools.lru_cache(maxsize=3))',
        'import functools',
    ),
    'a field as text': (
        'got = "0x" in str(dataclasses.field(default=1))',
        'import dataclasses',
    ),
    'limits in a set': (
        'got = {np.finfo(np.float32), np.finfo(np.float64)}',
        '',
    ),
    'a default of a lambda': (
        'f = lambda x=[]: x\ngot = f() == []',
        '',
    ),
    # Limits that must not become results.
    'except everything': ('try:\n  x = 1\nexcept: pass\ngot = 1', ''),
    'except BaseException': (
        'try:\n  x = 1\nexcept BaseException: pass\ngot = 1',
        '',
    ),
    'except MemoryError': (
        'try:\n  x = "a" * 10**9 * 9\nexcept MemoryError:\n  got = 1',
        '',
    ),
    'except RecursionError': (
        'try:\n  x = 1\nexcept (ValueError, RecursionError): pass\ngot = 1',
        '',
    ),
    'except what is computed': (
        'try:\n  x = 1\nexcept (lambda: KeyError)(): pass\ngot = 1',
        '',
    ),
    'finally': (
        'got = f()',
        'def f():\n'
        '  for i in (1,):\n'
        '    try:\n      x = "a" * 10**9 * 9\n'
        '    finally:\n      break\n'
        '  return 1',
    ),
    'raise SystemExit': (
        'got = 1\nif not e.max_tokens: raise SystemExit',
        '',
    ),
    # Uninitialised memory, by allowed functions.
    'where= of a partial': (
        'f = functools.partial(np.add, where=e.valid)\nx = f(1, e.valid)\n'
        'got = 1',
        'import functools',
    ),
    'where= with out=None': (
        'o = None\nx = np.add(e.valid, 1, out=o, where=e.valid)\ngot = 1',
        '',
    ),
    'where= with out= that may be None': (
        'o = np.zeros(e.valid.shape)\no = None\n'
        'x = np.add(e.valid, 1, out=o, where=e.valid)\ngot = 1',
        '',
    ),
    'dtype=object of a partial': (
        'f = functools.partial(np.array, dtype=object)\ngot = f([1])[0]',
        'import functools',
    ),
    'np.memmap': ('f = np.memmap\ngot = f', ''),
    'np.errstate that calls': (
        'with np.errstate(all="call"):\n  got = 1',
        '',
    ),
    'another with': ('with np.printoptions(precision=3):\n  got = 1', ''),
    # State.
    'default that remembers': (
        'got = f(1)',
        'def f(x, seen=[]):\n  seen.append(x)\n  return seen',
    ),
    'attribute of a function': ('measure.seen = 1\ngot = measure.seen', ''),
    'global': ('global A\nA = 1\ngot = A', ''),
    'np.seterr': ('got = np.seterr(all="ignore")', ''),
    # Endless work, and memorised answers.
    'recursion': ('got = f(3)', 'def f(n): return f(n - 1) if n else 1'),
    'recursion of two': (
        'got = f(3)',
        'def f(n): return g(n - 1) if n else 1\n'
        'def g(n): return f(n - 1) if n else 1',
    ),
    'a generator function as text': (
        'got = "0x" in str(f())',
        'def f():\n  yield 1',
    ),
    'a function of a generator': (
        'got = [str(g) for g in f()]',
        'def f():\n  yield f',
    ),
    'an iterator of a generator': (
        'got = [str(g) for g in f()]',
        'def f():\n  yield iter([1])',
    ),
    'an iterator of another generator': (
        'got = [str(g) for g in f()]',
        'def f():\n  yield from [iter([1])]',
    ),
    'four loops': (
        'got = [1 for a in (1,) for b in (1,) for c in (1,) for d in (1,)]',
        '',
    ),
    'loops inside loops': (
        'x = (1,)\n'
        'got = [[[[1 for a in x] for b in x] for c in x] for d in x]',
        '',
    ),
    'power of a power': ('got = 2 ** 2 ** 2', ''),
    'shift': ('got = 1 << 70', ''),
    'a huge number': ('got = 10000000000', ''),
    'infinity written down': ('got = 1e400', ''),
    'a table of answers': (f'got = {list(range(65))}', ''),
    'a text of answers': (f'got = {"7" * 201!r}', ''),
    'bytes': ('got = b"answers"', ''),
    'async': ('got = 1', 'async def f(): pass'),
}
WRITTEN = tuple(
    _measure(name, body, before) for name, (body, before) in _WRITTEN.items()
)


def _attack(name, layers, path, body, before=''):
  """body: an expression of `e` for reward.py, else the function's lines."""
  head = f'{before}\n\n'
  if 'np.' in f'{body}{before}':  # A reward imports what it uses.
    head = f'import numpy as np\n{head}'
  if path == 'reward.py':
    body = ' '.join(body.split())
    source = f"{head}def parts(e):\n  return {{'x': {body}}}\n"
  else:
    function = {'keep.py': 'keep(e, state)', 'weight.py': 'weight(e)'}
    lines = textwrap.indent(textwrap.dedent(body).strip(), '  ')
    source = f'{head}def {function.get(path, "measure(e)")}:\n{lines}\n'
  layers = (layers,) if isinstance(layers, str) else layers
  return Attack(name, layers, path, source)


_DIAGNOSTIC = 'diagnostics/x.py'
_TINY = "return {'x': (e.outcome & e.valid).sum() + 1e-9 * tiny}"
# With the language layer off, another process reveals these. Each changes the
# answer by less than rounding, which the other layers tolerate.
_UNSTEADY = {
    'address of a zip': ('tiny = int(str(zip())[-11:-7], 16) % 997', ''),
    'address of a generator': (
        'tiny = int(str(x for x in (1, 2))[-11:-7], 16) % 997',
        '',
    ),
    'address by id': ('tiny = (id(e) // 2**28) % 997', ''),
    'clock': ('tiny = time.perf_counter()', 'import time'),
    'what ran before': (
        'math.seen = getattr(math, "seen", 0) + 1\ntiny = math.seen',
        'import math',
    ),
}
UNSTEADY = tuple(
    _attack(
        name,
        ('language', 'repeat'),
        _DIAGNOSTIC,
        f'{body}\n{_TINY}',
        before,
    )
    for name, (body, before) in _UNSTEADY.items()
)
_SOLVED = '(e.outcome & e.valid)'
_N = 'np.maximum(e.valid.sum(1, keepdims=True), 1)'
ANSWERS = (
    _attack(
        'a part that divides by the spread of a group',
        'answer',
        'reward.py',
        f'(e.outcome - {_SOLVED}.sum(1, keepdims=True) / {_N}) / np.abs('
        f'e.outcome - {_SOLVED}.sum(1, keepdims=True) / {_N})',
    ),
    _attack(
        'a part that is not there for one valid completion',
        'answer',
        'reward.py',
        f'e.outcome / ({_N} - 1)',
    ),
    _attack(
        'a part of another shape',
        'answer',
        'reward.py',
        'np.where(e.valid, e.outcome, 0)[..., None] * 1.0',
    ),
    _attack(
        'a part beyond float32',
        'answer',
        'reward.py',
        'e.outcome * 1e9 * 1e9 * 1e9 * 1e9 * 1e9',
    ),
    _attack(
        'a crash where nothing is valid',
        'answer',
        _DIAGNOSTIC,
        "return {'x': e.n_tokens[e.valid].max()}",
    ),
    _attack(
        'a mean of nothing',
        'answer',
        _DIAGNOSTIC,
        "return {'x': e.n_tokens[e.valid].mean()}",
    ),
    _attack(
        'an array instead of a number',
        'answer',
        _DIAGNOSTIC,
        "return {'x': [(e.outcome & e.valid).sum()]}",
    ),
    _attack(
        'a mask of numbers',
        'answer',
        'keep.py',
        'one = e.outcome[:, :1] * 0 + 1\n'
        'return np.repeat(one, e.valid.shape[1], 1), state',
    ),
    _attack(
        'a state that is too large',
        'answer',
        'keep.py',
        "return e.valid & True, {'n': np.zeros(1025)}",
    ),
    _attack(
        'a state that is no number the second time',
        'answer',
        'keep.py',
        "return e.valid & True, {'n': 1 / (1 - state['n'])}",
        "def init():\n  return {'n': 0.0}\n",
    ),
    _attack(
        'a first state that is too large',
        'answer',
        'keep.py',
        "return e.valid & True, {'n': 0}",
        "def init():\n  return {'n': np.zeros(1025)}\n",
    ),
    _attack(
        'a state of names alone',
        'answer',
        'keep.py',
        "return e.valid & True, {'s' * 50 + str(i): 0 for i in range(90)}",
    ),
    _attack(
        'a state in the shape of nothing',
        'answer',
        'keep.py',
        "return e.valid & True, {'n': np.zeros((0, len(state) + 7))}",
    ),
    _attack(
        'a state that grows',
        'answer',
        'keep.py',
        """
        n = int(np.size(state.get('n', 0)))
        return e.valid & True, {'n': np.zeros(n + 1)}
        """,
    ),
    _attack(
        'a state that is no number in the end',
        'answer',
        'keep.py',
        "return e.valid & True, {'n': 1e4 * state.get('n', np.ones(())) ** 2}",
    ),
)
_PLACE = 'np.arange(e.valid.shape[1])[None]'
_TRAINED = (
    'float(e.valid.shape == (12, 8) and bool((e.mean_logprob != -0.5).any()))'
)
ORDER = (
    _attack(
        'pays the first completion where there are many groups',
        'copies',
        'reward.py',
        f'e.outcome + 0.1 * ({_PLACE} == 0) * (len(e.valid) > 30)',
    ),
    _attack(
        'pays the first completion beside a huge number',
        ('order', 'copies'),
        'reward.py',
        f'e.outcome + 0.1 * ({_PLACE} == 0) + 1e9 * (e.n_tokens == 17)',
    ),
    _attack(
        'pays nothing in a step of training',
        ('padding', 'groups', 'constant'),
        'reward.py',
        'e.outcome * float(e.valid.size != 96)',
    ),
    _attack(
        'pays nothing where a step has as many completions',
        ('groups', 'constant'),
        'reward.py',
        'e.outcome * float((e.valid & True).sum() != 96)',
    ),
    _attack(
        'pays the first completion in a step of training',
        ('order', 'padding', 'groups'),
        'reward.py',
        f'e.outcome + 1.0 * ({_PLACE} == 0) * {_TRAINED}',
    ),
    _attack(
        'pays what all solved in a step of training',
        ('padding', 'groups'),
        'reward.py',
        f'e.outcome - (e.outcome & e.valid).mean() * {_TRAINED}',
    ),
    _attack(
        'counts what is not valid in a step of training',
        ('padding', 'groups'),
        'reward.py',
        f'e.outcome - e.valid.size * {_TRAINED}',
    ),
    _attack(
        'pays the first of the shortest that are solved',
        'order',
        'reward.py',
        """
        np.arange(e.valid.shape[1])[None] == np.argmin(
            np.where(e.outcome & e.valid, e.n_tokens, 10**6), axis=1
        )[:, None]
        """,
    ),
    _attack(
        'ranks, equal ones by place',
        ('order', 'copies'),
        'reward.py',
        """
        np.argsort(
            np.argsort(np.where(e.valid, e.n_tokens, 10**6), 1, 'stable'), 1
        )
        """,
    ),
    _attack(
        'keeps the first of a group in the end',
        'order',
        'keep.py',
        f"""
        n = state.get('n', np.zeros(())) + 1
        return e.valid & (({_PLACE} < 2) | (n < 6)), {{'n': n}}
        """,
    ),
    _attack(
        'says nothing of a step of training',
        ('padding', 'copies', 'constant'),
        _DIAGNOSTIC,
        "return {} if e.valid.shape == (12, 8) else {'x': 1.0 * e.max_tokens}",
    ),
    _attack(
        'pays the first completion',
        ('order', 'copies'),
        'reward.py',
        f'e.outcome + 1.0 * ({_PLACE} == 0)',
    ),
    _attack(
        'pays by place',
        ('order', 'copies'),
        'reward.py',
        f'e.outcome * 1.0 + {_PLACE}',
    ),
    _attack(
        'pays the first group',
        ('order', 'copies'),
        'reward.py',
        'e.outcome + 1.0 * (np.arange(len(e.valid))[:, None] == 0) * e.outcome',
    ),
    _attack(
        'pays for what came before in the group',
        ('order', 'copies'),
        'reward.py',
        'np.cumsum(e.outcome & e.valid, axis=1) * 1.0',
    ),
    _attack(
        'keeps every other group',
        ('order', 'copies'),
        'keep.py',
        """
        even = np.arange(len(e.valid)) % 2 == 0
        return np.repeat(even[:, None], e.valid.shape[1], 1), state
        """,
    ),
    _attack(
        'keeps the first half of the group',
        ('order', 'copies'),
        'keep.py',
        'return e.valid & (np.arange(e.valid.shape[1])[None] < 2), state',
    ),
    _attack(
        'remembers the first group',
        'order',
        'keep.py',
        """
        first = (e.outcome & e.valid)[0].sum() + e.n_tokens[0, 0]
        return e.valid & True, {'n': 1.0 * first}
        """,
    ),
    _attack(
        'weighs by place',
        ('order', 'copies'),
        'weight.py',
        """
        turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
        place = np.arange(e.valid.shape[1])[None, :, None]
        return np.repeat(place + 0.0 * e.outcome[..., None], turns, -1)
        """,
    ),
    _attack(
        'measures the first completion',
        'order',
        _DIAGNOSTIC,
        "return {'x': e.n_tokens[0, 0] * e.valid[0, 0]}",
    ),
    _attack(
        'measures with places as weights',
        'order',
        _DIAGNOSTIC,
        """
        solved = (e.outcome & e.valid).sum(0)
        return {'x': (solved * np.arange(len(solved))).sum()}
        """,
    ),
)
_RATE = f'({_SOLVED}.sum() / max(1, int(e.valid.sum())))'
GROUPS = (
    _attack(
        'centred over all groups',
        'groups',
        'reward.py',
        f'e.outcome - {_RATE}',
    ),
    _attack(
        'paid where others fail',
        'groups',
        'reward.py',
        f'e.outcome * (1 - {_RATE})',
    ),
    _attack(
        'share of all tokens',
        ('groups', 'copies'),
        'reward.py',
        'e.n_tokens / max(1, int((e.n_tokens * e.valid).sum()))',
    ),
    _attack(
        'longest of all',
        'groups',
        'reward.py',
        '1.0 * (e.n_tokens >= (e.n_tokens * e.valid).max(initial=0))',
    ),
    _attack(
        'above the middle of all',
        'groups',
        'reward.py',
        '1.0 * (e.n_tokens > _middle(e))',
        'def _middle(e):\n'
        '  there = e.n_tokens[e.valid]\n'
        '  return np.median(there) if there.size else 0.0\n',
    ),
    _attack(
        'keeps what is harder than the rest',
        'groups',
        'keep.py',
        f"""
        rate = (e.outcome & e.valid).sum(1) / np.maximum(e.valid.sum(1), 1)
        hard = rate <= {_RATE}
        return np.repeat(hard[:, None], e.valid.shape[1], 1), state
        """,
    ),
    _attack(
        'declares another part',
        'groups',
        'keep.py',
        f"""
        rate = (e.outcome & e.valid).sum(1) / np.maximum(e.valid.sum(1), 1)
        hard = rate <= {_RATE}
        return np.repeat(hard[:, None], e.valid.shape[1], 1), state
        """,
        'ACROSS_GROUPS = ()',
    ),
    _attack(
        'weighs by all groups',
        'groups',
        'weight.py',
        f"""
        turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
        return np.repeat((e.outcome + {_RATE})[..., None], turns, -1)
        """,
    ),
)
PADDING = (
    _attack(
        'mean over what is not there',
        'padding',
        'reward.py',
        'e.outcome - e.outcome.mean(1, keepdims=True)',
    ),
    _attack(
        'longest of what is not there',
        'padding',
        'reward.py',
        '1.0 * (e.n_tokens == e.n_tokens.max(1, keepdims=True))',
    ),
    _attack(
        'size of the group as it is padded',
        'padding',
        'reward.py',
        'e.outcome / e.valid.shape[1]',
    ),
    _attack(
        'number of groups as they are padded',
        ('groups', 'padding', 'copies'),
        'reward.py',
        'e.outcome / len(e.valid)',
    ),
    _attack(
        'keeps what something that is not there solves',
        'padding',
        'keep.py',
        'some = e.outcome.any(1)\n'
        'return np.repeat(some[:, None], e.valid.shape[1], 1), state',
    ),
    _attack(
        'remembers what is not there',
        'padding',
        'keep.py',
        "return e.valid & True, {'n': e.n_tokens.mean()}",
    ),
    _attack(
        'measures what is not there',
        'padding',
        _DIAGNOSTIC,
        "return {'x': e.n_tokens.mean()}",
    ),
    _attack(
        'counts what is not there',
        'padding',
        _DIAGNOSTIC,
        "return {'x': e.valid.size, 'y': (e.outcome & e.valid).sum()}",
    ),
)
CONSTANT = (
    _attack('one', 'constant', 'reward.py', 'np.ones(e.valid.shape)'),
    _attack('nothing', 'constant', 'reward.py', '0.0 * e.n_tokens'),
    _attack(
        'an offset of the group',
        'constant',
        'reward.py',
        f'np.repeat({_SOLVED}.sum(1, keepdims=True) / {_N},'
        ' e.valid.shape[1], 1)',
    ),
    _attack(
        'a bonus that everyone gets',
        'constant',
        'reward.py',
        '1.0 * (e.n_tokens < e.max_tokens + 10000)',
    ),
    _attack(
        'one weight',
        'constant',
        'weight.py',
        """
        turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
        return np.full((*e.valid.shape, turns), 2.0)
        """,
    ),
    _attack('no number', 'constant', _DIAGNOSTIC, 'return {}'),
    _attack(
        'keeps nothing', 'constant', 'keep.py', 'return e.valid & False, state'
    ),
)
COST = (
    _attack(
        'pairs in a loop',
        'cost',
        'reward.py',
        'e.outcome + 0.0 * _pairs(e.n_tokens * e.valid)',
        'def _pairs(x):\n'
        '  n = 0\n'
        '  for a in x.ravel():\n'
        '    for b in x.ravel():\n'
        '      n += a > b\n'
        '  return 0.0 * n\n',
    ),
    _attack(
        'counting to the square',
        'cost',
        _DIAGNOSTIC,
        'n = int(e.valid.sum())\n'
        'x = sum(range(n * n * 20)) * 0.0\n'
        "return {'x': x + (e.outcome & e.valid).sum()}",
    ),
    _attack(
        'a cube of memory',
        'cost',
        _DIAGNOSTIC,
        'n = int(e.valid.sum())\n'
        'x = np.ones((n, n, 64)).sum() * 0.0\n'
        "return {'x': x + (e.outcome & e.valid).sum()}",
    ),
    _attack(
        'a list of pairs',
        'cost',
        _DIAGNOSTIC,
        'n = int(e.valid.sum())\n'
        'x = len([a for a in range(n) for b in range(5 * n)]) * 0.0\n'
        "return {'x': x + (e.outcome & e.valid).sum()}",
    ),
    _attack(
        'a text of pairs',
        'cost',
        _DIAGNOSTIC,
        'n = int(e.valid.sum())\n'
        "x = len('a' * (n * n * 60)) * 0.0\n"
        "return {'x': x + (e.outcome & e.valid).sum()}",
    ),
)
ATTACKS = (
    *WRITTEN,
    *UNSTEADY,
    *ANSWERS,
    *ORDER,
    *GROUPS,
    *PADDING,
    *CONSTANT,
    *COST,
)
