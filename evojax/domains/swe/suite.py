"""Tests as data: calls run in the box, expected values stay outside.

A test of a shipped package is a function of plain asserts:

    def test_last():
      made = ring.Ring(3)
      assert made.last() == 4
      with pytest.raises(IndexError):
        made.last(3)

Each assert is a check. The program for the box only holds the left sides, all
in one form, so that nothing in the box reveals expected values, or which calls
should raise. The results are compared here.
"""

import ast
import builtins
from collections.abc import Iterable, Mapping
import dataclasses
import functools
import json
from typing import Any

from evojax.domains.swe import values
from evojax.runtime import python_source

_CHECK = '_check'
_LITERAL = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set,
    ast.UnaryOp, ast.USub, ast.BinOp, ast.Div, ast.Load,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Check:
  """One call, and its expected value or exception."""

  call: str  # The left side of an assert, as source.
  expected: Any  # A plain value, or the name of an exception if `raises`.
  raises: bool = False
  exact: bool = False  # `is`: True is not 1.
  before: str = ''  # Code that it needs from the file and the test before it.
  modules: tuple[str, ...] = ()  # Names of modules that the file imports.

  def passes(self, found: Any) -> bool:
    """Return whether a decoded value is the expected one."""
    if self.raises:
      return isinstance(found, values.Raised) and found.is_a(self.expected)
    if isinstance(found, (values.Raised, values.Foreign)):
      return False
    if self.exact:
      return found is self.expected
    return bool(found == self.expected)


@dataclasses.dataclass(frozen=True)
class Test:
  """One test function."""

  name: str  # 'tests/test_ring.py::test_last'
  checks: tuple[Check, ...]


@dataclasses.dataclass(frozen=True)
class Suite:
  """All tests of a package."""

  tests: tuple[Test, ...]
  programs: Mapping[str, str]  # Path of a test file -> program for the box.

  @property
  def names(self) -> tuple[str, ...]:
    """Return the names of the tests."""
    return tuple(test.name for test in self.tests)

  def failures(self, found: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the failing tests, with their failing checks.

    Args:
      found: 'test name#check' -> decoded value; a missing one fails.
    """
    failed = {}
    for test in self.tests:
      wrong = [
          number
          for number, check in enumerate(test.checks)
          if not check.passes(
              found.get(f'{test.name}#{number}', values.Foreign('nothing'))
          )
      ]
      if wrong:
        failed[test.name] = wrong
    return failed


def parse(files: Mapping[str, bytes]) -> Suite:
  """Return the tests in test files.

  Raises:
    ValueError: If a test is written in another form.
  """
  return _parse(tuple(sorted(files.items())))


@functools.lru_cache(maxsize=64)  # All tasks of a package have the same tests.
def _parse(files: tuple[tuple[str, bytes], ...]) -> Suite:
  tests, programs = [], {}
  for path, data in files:
    tree = python_source.parse(data.decode(), path)
    helpers, modules = _helpers(tree), _modules(tree)
    for node in tree.body:
      if isinstance(node, ast.FunctionDef) and node.name.startswith('test_'):
        visitor = _Checks(f'{path}::{node.name}', helpers, modules)
        node.body = visitor.statements(node.body)
        if not visitor.checks:
          raise ValueError(f'{path}: {node.name} checks nothing')
        tests.append(Test(visitor.name, tuple(visitor.checks)))
    tree.body = [node for node in tree.body if not _imports_pytest(node)]
    programs[path] = ast.unparse(ast.fix_missing_locations(tree))
  return Suite(tuple(tests), programs)


def read(output: bytes) -> dict[str, Any]:
  """Return the values of checks, from the output of the box.

  Other lines are ignored, as any code in the box may write some.
  """
  found = {}
  for line in output.split(b'\n'):
    try:
      name, text = json.loads(line)
      found.setdefault(str(name), values.decode(text))
    except (ValueError, TypeError, RecursionError):
      continue
  return found


class _Checks:
  """Turns the asserts of a test into calls that report."""

  def __init__(
      self, name: str, helpers: Mapping[str, str], modules: tuple[str, ...]
  ):
    self.name, self._helpers, self._modules = name, helpers, modules
    self.checks: list[Check] = []
    self._before: list[str] = []

  def statements(self, body: Iterable[ast.stmt]) -> list[ast.stmt]:
    return [self._statement(node) for node in body]

  def _statement(self, node: ast.stmt) -> ast.stmt:
    match node:
      case ast.Assert(test=ast.Compare(left, [ast.Eq()], [right])):
        return self._add(left, _literal(right))
      case ast.Assert(
          test=ast.Compare(left, [ast.Is()], [ast.Constant(value)])
      ) if value is None or isinstance(value, bool):
        return self._add(left, value, exact=True)
      case ast.With(
          items=[ast.withitem(context_expr=ast.Call(args=[ast.Name(kind)]))],
          body=[ast.Expr(left)],
      ) if isinstance(getattr(builtins, kind, None), type):
        return self._add(left, kind, raises=True)
      case ast.Assert() | ast.With():
        raise ValueError(
            f'{self.name}: {ast.unparse(node)!r} is neither'
            ' `assert call == literal`, `assert call is None` (or True, or'
            ' False) nor one call `with pytest.raises(kind)`'
        )
    self._before.append(ast.unparse(node))
    return node

  def _add(self, left: ast.expr, expected: Any, **how: bool) -> ast.stmt:
    name = f'{self.name}#{len(self.checks)}'
    used = {n.id for n in ast.walk(left) if isinstance(n, ast.Name)}
    for text in self._before:
      used |= _names(text)
    # Helpers may need helpers above them.
    for helper in reversed(self._helpers):
      if helper in used:
        used |= _names(self._helpers[helper])
    parts = [text for name, text in self._helpers.items() if name in used]
    before = '\n'.join((*parts, *self._before))
    check = Check(ast.unparse(left), expected, before=before, **how)
    self.checks.append(dataclasses.replace(check, modules=self._modules))
    call = python_source.parse(f'{_CHECK}({name!r}, lambda: 0)').body[0]
    call.value.args[1].body = left
    return call


def _helpers(tree: ast.Module) -> dict[str, str]:
  """Return the source of a test file's definitions other than tests."""
  found = {}
  for node in tree.body:
    if isinstance(node, ast.FunctionDef) and not node.name.startswith('test'):
      found[node.name] = ast.unparse(node)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      found[node.targets[0].id] = ast.unparse(node)
  return found


def _modules(tree: ast.Module) -> tuple[str, ...]:
  return tuple(
      alias.asname or alias.name
      for node in tree.body
      if isinstance(node, (ast.Import, ast.ImportFrom))
      for alias in node.names
  )


def _names(text: str) -> set[str]:
  """Return the names that a source reads or binds."""
  nodes = ast.walk(python_source.parse(text))
  return {node.id for node in nodes if isinstance(node, ast.Name)}


def _literal(node: ast.expr) -> Any:
  """Return the value of a literal, which may be a quotient.

  Raises:
    ValueError: If it is not a literal.
  """
  expression = ast.Expression(node)
  if not all(isinstance(part, _LITERAL) for part in ast.walk(expression)):
    raise ValueError(f'{ast.unparse(node)!r} is not a literal')
  code = compile(ast.fix_missing_locations(expression), 'expected', 'eval')
  return eval(code, {'__builtins__': {}})


def _imports_pytest(node: ast.stmt) -> bool:
  return isinstance(node, ast.Import) and node.names[0].name == 'pytest'
