"""Bugs: small changes of a function, by operators on its syntax tree.

An operator finds places in a function and gives replacement text for each, so
that the rest of the file stays exactly as it was written.
"""

import ast
from collections.abc import Callable, Iterator
import dataclasses
import re
from typing import Any
import warnings

from evojax.runtime import python_source

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SIGNS = {
    ast.Add: '+', ast.Sub: '-', ast.Mult: '*', ast.Div: '/',
    ast.FloorDiv: '//', ast.Mod: '%', ast.Pow: '**', ast.And: 'and',
    ast.Or: 'or', ast.Lt: '<', ast.LtE: '<=', ast.Gt: '>', ast.GtE: '>=',
    ast.Eq: '==', ast.NotEq: '!=', ast.In: 'in', ast.NotIn: 'not in',
    ast.Is: 'is', ast.IsNot: 'is not',
}  # fmt: skip
_BOUNDARY = {'<': '<=', '<=': '<', '>': '>=', '>=': '>'}
_OPPOSITE = {
    '==': '!=', '!=': '==', 'in': 'not in', 'not in': 'in', 'is': 'is not',
    'is not': 'is',
}  # fmt: skip
_OTHER = {'and': 'or', 'or': 'and'}
_ARITHMETIC = {'+': '-', '-': '+', '*': '/', '/': '*', '//': '/', '%': '//'}
_NOT_COMMUTATIVE = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


@dataclasses.dataclass(frozen=True)
class _Sign:
  """The text between two nodes, which contains their operator."""

  left: ast.expr
  right: ast.expr
  kind: type

  @property
  def text(self) -> str:
    return _SIGNS.get(self.kind, '')

  @property
  def place(self) -> tuple[int, int, int, int]:
    start = self.left.end_lineno, self.left.end_col_offset
    return *start, self.right.lineno, self.right.col_offset


# A node or a sign, and the text that replaces it: one candidate.
_Change = tuple[ast.AST | _Sign, str]


@dataclasses.dataclass(frozen=True)
class Bug:
  """One change of one file."""

  path: str
  function: str  # The function's name, with its class: 'Ring.push'.
  operator: str  # Key of OPERATORS.
  start: int  # Start of the replaced characters: text[start:end].
  end: int
  new: str

  def apply(self, text: str) -> str:
    """Return the text of the file with the bug."""
    return text[: self.start] + self.new + text[self.end :]


def bugs(path: str, text: str) -> list[Bug]:
  """Return all bugs of a file that are valid Python, each text once.

  Raises:
    SyntaxError: If the file is not valid Python.
  """
  starts = _line_starts(text)
  found, seen = [], set()
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # They concern third-party source.
    tree = python_source.parse(text)
  for top in tree.body:
    # Files may be long, so only the changed top-level statement is compiled.
    low, high = starts[top.lineno - 1], starts[top.end_lineno]
    seen.add(text[low:high])
    for name, function in _functions(ast.Module([top], [])):
      for operator, changes in OPERATORS.items():
        for node, new in changes(function):
          start, end = _span(text, starts, node)
          changed = text[low:start] + new + text[end:high]
          if changed not in seen and _is_python(changed):
            seen.add(changed)
            found.append(Bug(path, name, operator, start, end, new))
  return found


def _functions(
    node: ast.AST, above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ast.AST]]:
  """Yield functions and methods by name, except nested functions."""
  for child in ast.iter_child_nodes(node):
    if isinstance(child, _FUNCTIONS):
      yield '.'.join((*above, child.name)), child
    elif isinstance(child, ast.ClassDef):
      yield from _functions(child, (*above, child.name))


def _line_starts(text: str) -> list[int]:
  # A carriage return ends a line, too.
  ends = (match.end() for match in re.finditer(r'\r\n?|\n', text))
  return [0, *ends, len(text) + 1]


def _span(
    text: str, starts: list[int], what: ast.AST | _Sign
) -> tuple[int, int]:
  """Return the range of characters of a node or a sign."""

  def index(line: int, column: int) -> int:  # ast counts columns in UTF-8.
    first, last = starts[line - 1 : line + 1]
    return first + len(text[first:last].encode()[:column].decode())

  if not isinstance(what, _Sign):
    start = index(what.lineno, what.col_offset)
    return start, index(what.end_lineno, what.end_col_offset)
  first, column, last, end = what.place
  low, high = index(first, column), index(last, end)
  words = map(re.escape, what.text.split())
  found = re.search(r'\s+'.join(words), text[low:high])
  return low + found.start(), low + found.end()


def _is_python(text: str) -> bool:
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # Code with bugs may look strange.
      compile(text, 'candidate', 'exec')
  except (SyntaxError, ValueError):
    return False
  return True


def _walk(function: ast.AST, kind: type | tuple[type, ...]) -> list[Any]:
  """Return the nodes of a kind in a function's body, in order."""
  found = [
      node
      for statement in function.body
      for node in ast.walk(statement)
      if isinstance(node, kind)
  ]
  return sorted(
      found,
      key=lambda n: (n.lineno, n.col_offset, -n.end_lineno, -n.end_col_offset),
  )


def _text(node: ast.AST) -> str:
  """Return source for a node, in parentheses if it is composite."""
  text = ast.unparse(node)
  whole = (
      ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.List,
      ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.ListComp,
  )  # fmt: skip
  return text if isinstance(node, whole) else f'({text})'


def _off_by_one(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.Constant):
    if type(node.value) is int:
      yield node, str(node.value + 1)
      if node.value > 0:
        yield node, str(node.value - 1)


def _signs(function: ast.AST) -> Iterator[_Sign]:
  """Yield the signs between operands, in order."""
  for node in _walk(function, (ast.Compare, ast.BinOp, ast.BoolOp)):
    if isinstance(node, ast.Compare):
      parts = [node.left, *node.comparators]
      kinds = node.ops
    elif isinstance(node, ast.BoolOp):
      parts, kinds = node.values, [node.op] * (len(node.values) - 1)
    else:
      parts, kinds = [node.left, node.right], [node.op]
    for left, right, op in zip(parts, parts[1:], kinds, strict=False):
      yield _Sign(left, right, type(op))


def _wrong_comparison(function: ast.AST) -> Iterator[_Change]:
  for sign in _signs(function):
    if sign.text in _BOUNDARY:
      yield sign, _BOUNDARY[sign.text]


def _inverted_condition(function: ast.AST) -> Iterator[_Change]:
  for sign in _signs(function):
    if sign.text in _OPPOSITE:
      yield sign, _OPPOSITE[sign.text]
  for node in _walk(function, (ast.If, ast.While, ast.IfExp)):
    if isinstance(node.test, ast.UnaryOp):
      if isinstance(node.test.op, ast.Not):
        yield node.test, _text(node.test.operand)
    elif not isinstance(node.test, ast.Compare):
      yield node.test, f'not {_text(node.test)}'


def _wrong_operator(function: ast.AST) -> Iterator[_Change]:
  for sign in _signs(function):
    for table in (_ARITHMETIC, _OTHER):
      if sign.text in table:
        yield sign, table[sign.text]


def _swapped_operands(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.BinOp):
    if isinstance(node.op, _NOT_COMMUTATIVE):
      swapped = ast.BinOp(node.right, node.op, node.left)
      yield node, ast.unparse(swapped)


def _dropped_call(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.Call):
    if isinstance(node.func, ast.Name) and node.args:
      if not isinstance(node.args[0], ast.GeneratorExp | ast.Starred):
        yield node, _text(node.args[0])
    elif isinstance(node.func, ast.Attribute) and not node.args:
      yield node, _text(node.func.value)


def _wrong_default(function: ast.AST) -> Iterator[_Change]:
  given = function.args
  for node in filter(None, (*given.defaults, *given.kw_defaults)):
    match node:
      case ast.Constant(value=bool(value)):
        yield node, str(not value)
      case ast.Constant(value=int(value) | float(value)):
        yield node, repr(value + 1)
        yield node, repr(value * 2)
      case ast.Constant(value=str(value)):
        yield node, repr(value[:-1] if value else ' ')
      case ast.Constant(value=None):
        yield node, '0'


def _removed_return(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.Return):
    if node.value is not None:
      yield node, ast.unparse(node.value)


def _boundary_slice(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.Slice):
    low, high, step = (
        ast.unparse(part) if part else ''
        for part in (node.lower, node.upper, node.step)
    )
    end = f':{step}' if step else ''
    if low:
      yield node, f'{low} + 1:{high}{end}'
      yield node, f':{high}{end}'
    if high:
      yield node, f'{low}:{high} - 1{end}'
      yield node, f'{low}:{end}'
    elif not step:
      yield node, f'{low}:-1'


def _wrong_variable(function: ast.AST) -> Iterator[_Change]:
  given = function.args
  names = [a.arg for a in (*given.args, *given.kwonlyargs) if a.arg != 'self']
  stored = [n for n in _walk(function, ast.Name) if type(n.ctx) is ast.Store]
  names = list(dict.fromkeys([*names, *(n.id for n in stored)]))
  for node in _walk(function, ast.Name):
    if type(node.ctx) is ast.Load and node.id in names and len(names) > 1:
      place = names.index(node.id)
      yield node, names[(place + 1) % len(names)]


def _swapped_arguments(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.Call):
    if len(node.args) >= 2 and not any(
        isinstance(a, ast.Starred | ast.GeneratorExp) for a in node.args
    ):
      first, second, *more = node.args
      swapped = ast.Call(node.func, [second, first, *more], node.keywords)
      yield node, ast.unparse(swapped)


def _dropped_statement(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise)):
    is_text = isinstance(node, ast.Expr) and isinstance(
        node.value, ast.Constant
    )
    if not is_text:
      yield node, 'pass'


def _wrong_assignment(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.AugAssign):
    target, value = ast.unparse(node.target), ast.unparse(node.value)
    if sign := _ARITHMETIC.get(_SIGNS.get(type(node.op))):
      yield node, f'{target} {sign}= {value}'
    yield node, f'{target} = {value}'


def _lost_sign(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, ast.UnaryOp):
    if isinstance(node.op, ast.USub):
      yield node, _text(node.operand)


def _wrong_jump(function: ast.AST) -> Iterator[_Change]:
  for node in _walk(function, (ast.Break, ast.Continue)):
    yield node, 'continue' if isinstance(node, ast.Break) else 'break'
    yield node, 'pass'


OPERATORS: dict[str, Callable[[ast.AST], Iterator[_Change]]] = {
    'off_by_one': _off_by_one,
    'wrong_comparison': _wrong_comparison,
    'inverted_condition': _inverted_condition,
    'wrong_operator': _wrong_operator,
    'swapped_operands': _swapped_operands,
    'dropped_call': _dropped_call,
    'wrong_default': _wrong_default,
    'removed_return': _removed_return,
    'boundary_slice': _boundary_slice,
    'wrong_variable': _wrong_variable,
    'swapped_arguments': _swapped_arguments,
    'dropped_statement': _dropped_statement,
    'wrong_assignment': _wrong_assignment,
    'lost_sign': _lost_sign,
    'wrong_jump': _wrong_jump,
}
