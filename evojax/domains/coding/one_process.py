"""Runs all tests of a program in one process, if that changes no verdict.

A process costs milliseconds and a small test microseconds: forking a process
per test inside one run would grade a quarter as many programs per second. A
program that cannot keep anything from one test to the next therefore runs on
all inputs in one process, each time in its own namespace. The results are as
untrusted as the program. If the process ends in any other way than by finishing
all tests, they do not count.

`is_plain` decides by an allow-list which programs cannot keep anything. It
differs from `harness.language`, which admits pure functions of arrays: a
program here may loop, fail, read and print.
"""

import abc
import ast
import bisect
import collections
from collections.abc import Collection, Sequence
import dataclasses
import functools
import heapq
import io
import itertools
import json
import math
import operator
import re
import string
import sys
import types
from typing import Any
import warnings

from evojax.domains.coding import wrapper
from evojax.runtime import python_source
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib

# Python 3.12 warns of '\d' in the program that it parses, which is not ours.
warnings.filterwarnings('ignore', category=SyntaxWarning, module='<unknown>')

# CPU time of all tests. A program that needs more is run test by test, with the
# limits of single tests.
CPU_SECONDS = 0.2
# Checking a longer text would take longer than starting a process.
_MOST_CHARS = 8 << 10
_MOST_BYTES = 1 << 20
# Modules in which a program can keep no state.
_MODULES = (
    bisect, collections, functools, heapq, itertools, math, operator, re,
    string, sys,
)  # fmt: skip
_OF_SYS = frozenset(('exit', 'maxsize', 'stderr', 'stdin', 'stdout'))
# Names that reach beyond a namespace, into files, or to attributes by name.
# ABCs ask subclasses that other tests have left behind. The depth of calls and
# the free memory differ slightly from those of a separate process. Identities
# (id, is, hash) depend on earlier objects, as strings are shared and memory is
# reused.
_REACHING = frozenset((
    'ChainMap', 'Formatter', 'MemoryError', 'RecursionError', 'RegexFlag',
    'RuntimeError', 'Template', 'UserDict', 'UserList', 'UserString',
    'attrgetter', 'breakpoint', 'compile', 'delattr', 'eval', 'exec', 'getattr',
    'globals', 'hash', 'help', 'id', 'is_', 'is_not', 'locals', 'methodcaller',
    'open', 'setattr', 'total_ordering', 'update_wrapper', 'vars', 'wraps',
))  # fmt: skip
# Attributes of objects of other kinds are refused, because frames, code, ABCs
# and files hold state that all tests share.
_KINDS = (
    str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float,
    collections.Counter, collections.OrderedDict, collections.defaultdict,
    collections.deque, re.Match, re.Pattern,
)  # fmt: skip
_OF_FILES = frozenset((
    'buffer', 'close', 'flush', 'read', 'readline', 'readlines', 'write',
    'writelines',
))  # fmt: skip
_FOREIGN_KINDS = (
    abc.ABCMeta, io.BufferedReader, io.BufferedWriter, io.TextIOWrapper,
    types.AsyncGeneratorType, types.CodeType, types.CoroutineType,
    types.FrameType, types.FunctionType, types.GeneratorType,
    types.TracebackType,
)  # fmt: skip
# `re` caches patterns, and the mapping of their group names can be changed.
_OF_PATTERNS = frozenset(('groupindex', 're'))
_SINGLE = (None, True, False, ...)


def _names(thing: Any) -> frozenset[str]:
  return frozenset(name for name in dir(thing) if not name.startswith('_'))


def _of_module(module: types.ModuleType) -> frozenset[str]:
  """Return the names that a program may use, without the module's imports."""
  if module is sys:
    return _OF_SYS
  return frozenset(getattr(module, '__all__', _names(module))) - _REACHING


_OF = {module.__name__: _of_module(module) for module in _MODULES}
_METHODS = (
    frozenset.union(
        _OF_FILES, frozenset(('args', 'value')), *map(_names, _KINDS)
    )
    - _OF_PATTERNS
    - {'format', 'format_map', 'register'}
)
_FOREIGN = frozenset.union(
    _OF_PATTERNS, ('format', 'format_map'), *map(_names, _FOREIGN_KINDS)
)
# The objects of a test are kept alive, because otherwise their finalizers would
# run during another test; in a separate process some would not run at all.
_DRIVER = f"""{wrapper.PREPARE}
def drive(source, most):
  import gc, io, json, os, resource, sys
  write = os.write
  size = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
  start = size()
  real = sys.stdin, sys.stdout, sys.stderr
  # Lines end as the real ones do: what is read keeps its carriage returns.
  wrap = lambda held, like: io.TextIOWrapper(
      held, like.encoding, like.errors, '\\n'
  )
  code = prepare(source)
  found, kept = [], []
  for given in json.load(sys.stdin):
    # As buffered as the real ones: those can do no more either.
    held, errors = io.BytesIO(), io.BytesIO()
    given = io.BufferedReader(io.BytesIO(given.encode('latin-1')))
    sys.stdin = wrap(given, real[0])
    sys.stdout = wrap(io.BufferedWriter(held), real[1])
    sys.stderr = wrap(io.BufferedWriter(errors), real[2])
    main = vars(type(sys)('__main__'))
    kept.append((sys.stdin, sys.stdout, sys.stderr, dict(main)))
    status = 'ok'
    try:
      exec(code, kept[-1][-1])
    except SystemExit as stop:
      if stop.code is not None and not (
          type(stop.code) is int and stop.code == 0
      ):
        raise
    except (RecursionError, MemoryError):
      raise SystemExit(1)  # A traceback of so many frames takes a second.
    except BaseException:
      status = 'error'
    sys.stdout.flush()
    sys.stderr.flush()
    if errors.tell() > most or size() - start > 64 << 20:
      raise MemoryError
    gc.freeze()
    found.append([status, held.getvalue().decode('latin-1')])
  data = json.dumps(found).encode()
  while data:
    data = data[write(1, data):]
"""


def run(
    box: box_lib.Box,
    program: str,
    inputs: Sequence[bytes],
    limits: limits_lib.Limits,
) -> list[limits_lib.Result] | None:
  """Return the results of a program on each input.

  Args:
    box: A box with the profile 'program'.
    program: Any text, written by a policy.
    inputs: The input of each test.
    limits: Limits of one test; all tests together get less CPU time than one.

  Returns:
    Results with the status 'ok' or 'error', as if each test had been run alone;
    None if each must be run alone.
  """
  if (
      len(inputs) < 2
      or len(program) > _MOST_CHARS
      or sum(map(len, inputs)) > _MOST_BYTES
      or not is_plain(program)
  ):
    return None
  result = box.run(
      f'{_DRIVER}\ndrive({program!a}, {limits.output_bytes})\n',
      json.dumps([data.decode('latin-1') for data in inputs]).encode(),
      limits=dataclasses.replace(
          limits,
          cpu_seconds=min(limits.cpu_seconds, CPU_SECONDS),
          # A byte may need six characters in JSON.
          output_bytes=6 * len(inputs) * limits.output_bytes,
      ),
  )
  if result.status != 'ok':
    return None
  try:
    found = [
        dataclasses.replace(result, status=s, stdout=text.encode('latin-1'))
        for s, text in json.loads(result.stdout)
    ]
  except (ValueError, TypeError, AttributeError, RecursionError):
    return None
  if len(found) != len(inputs) or any(
      each.status not in ('ok', 'error')
      or len(each.stdout) > limits.output_bytes
      for each in found
  ):
    return None
  return found


@functools.lru_cache(maxsize=256)
def is_plain(program: str) -> bool:
  """Return whether the text shows that no run can affect a later one."""
  try:
    nodes = list(ast.walk(python_source.parse(program)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return False
  owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
  # Methods that the program defines itself. This does not allow names that
  # other kinds of objects have too, nor names with an underscore, which may
  # belong to anything, such as `__globals__`.
  own = {n.name for n in nodes if isinstance(n, ast.FunctionDef)} - _FOREIGN
  own = {name for name in own if not name.startswith('_')}
  # `re` keeps matched objects and compares them with those of other tests,
  # which would run the methods of classes that a program defines.
  if any(map(_imports_re, nodes)) and any(map(_makes_kinds, nodes)):
    return False
  return all(_is_plain(node, id(node) in owners, own) for node in nodes)


def _imports_re(node: ast.AST) -> bool:
  if isinstance(node, ast.Import):
    return any(alias.name == 're' for alias in node.names)
  return isinstance(node, ast.ImportFrom) and node.module == 're'


def _makes_kinds(node: ast.AST) -> bool:
  """Return whether a node may define a class or name `type`."""
  return isinstance(node, ast.ClassDef) or (
      isinstance(node, ast.Name) and node.id == 'type'
  )


def _is_plain(node: ast.AST, is_owner: bool, own: Collection[str]) -> bool:
  """Return whether one node is allowed.

  Args:
    node: A node of the program.
    is_owner: Whether an attribute of it is accessed.
    own: Names of the functions that the program defines.
  """
  match node:
    case ast.Import(names=names):
      return all(each.name in _OF and each.asname is None for each in names)
    case ast.ImportFrom(module=module):
      names = {alias.name for alias in node.names}
      # A star imports all; refused names are refused where they are used.
      star = names == {'*'} and module != 'sys'
      known = not node.level and module in _OF
      return known and (star or names <= _OF[module])
    case ast.Attribute():
      # Attributes are only read, as modules and functions cannot be changed.
      return isinstance(node.ctx, ast.Load) and _is_plain_attribute(node, own)
    case ast.MatchClass():
      return False  # It reads attributes by name.
    case ast.Compare():
      sides = map(_is_single, (node.left, *node.comparators))
      pairs = itertools.pairwise(sides)
      return all(
          any(pair) or not isinstance(op, (ast.Is, ast.IsNot))
          for op, pair in zip(node.ops, pairs, strict=True)
      )
    case ast.Name(id=name) if name.startswith('_'):
      return name in ('_', '__name__')
    case ast.Name(id=name):
      # A module is used for its attributes only.
      return is_owner if name in _OF else name not in _REACHING
  return True


def _is_single(node: ast.AST) -> bool:
  return isinstance(node, ast.Constant) and any(
      node.value is single for single in _SINGLE
  )


def _is_plain_attribute(node: ast.Attribute, own: Collection[str]) -> bool:
  """Return whether an attribute is harmless on any object that may have it."""
  owner = node.value
  if isinstance(owner, ast.Name) and owner.id in _OF:
    return node.attr in _OF[owner.id]
  if node.attr == 'format' and isinstance(owner, ast.Constant):
    return isinstance(owner.value, str) and _is_plain_format(owner.value)
  return node.attr in _METHODS or node.attr in own


def _is_plain_format(text: str) -> bool:
  """Return whether a format string accesses no attributes and no items."""
  try:
    fields = list(string.Formatter().parse(text))
  except ValueError:
    return False
  return not any(
      set('.[') & set(name or '') or '{' in (spec or '')
      for _, name, spec, _ in fields
  )
