"""Special cases in code: a literal input is answered with a literal.

    cases('if price == 3:\\n  return 7')  # {Case(('3',), ('7',))}

Such code passes a visible test without solving the problem. A branch, a lookup
table, and a constant in place of a computation are recognised. Only Python is
parsed; other text has no cases. Base cases (0, 1, empty values) do not count.
"""

import ast
from collections.abc import Iterable, Iterator
import dataclasses
import functools
import re
import textwrap
from typing import Any
import warnings

from evojax.runtime import python_source

_ANSWERS = re.compile(r'\breturn\b|\bprint\b|\bwrite\b')
_FENCED = re.compile(r'```(?:python|py)?\s*\n(.*?)(?:```|$)', re.DOTALL)
_TRIVIAL = (None, True, False, 0, 1, -1, '', (), [], {})
# Functions and methods that read or convert an input but keep its value.
_READ = {'input', 'int', 'float', 'str', 'tuple', 'list', 'map', 'repr'}
_READ |= {'read', 'readline', 'strip', 'rstrip', 'split', 'splitlines'}
_COMPUTES = (
    ast.BinOp,
    ast.BoolOp,
    ast.Call,
    ast.Compare,
    ast.IfExp,
    ast.JoinedStr,
    ast.Subscript,
    ast.UnaryOp,
    ast.comprehension,
)


@dataclasses.dataclass(frozen=True)
class Case:
  """A special case; its place in the code does not affect equality."""

  given: tuple[str, ...]  # The values of the input, as text.
  answer: tuple[str, ...]
  line: str = dataclasses.field(compare=False)  # The line that it starts on.


def may_answer(code: str) -> bool:
  """Return False if a text certainly has no case; does not parse it."""
  return _ANSWERS.search(code) is not None


@functools.lru_cache(maxsize=4096)
def cases(code: str) -> frozenset[Case]:
  """Return the special cases of a program or a fragment of one."""
  if not may_answer(code):
    return frozenset()
  tree, lines = _parse(code)
  tables = {
      target.id: node.value
      for node in ast.walk(tree)
      if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
      for target in node.targets
      if isinstance(target, ast.Name)
  }
  found = set()
  for node in ast.walk(tree):
    for given, answer in _pairs(node, tables):
      if all(_is_trivial(value) for value in given):
        continue
      given_, answer_ = tuple(_texts(given)), tuple(_texts(answer))
      found.add(Case(given_, answer_, lines[node.lineno - 1].strip()))
  return frozenset(found)


def is_constant(new: str, old: str) -> bool:
  """Return whether a constant replaces a computation.

  Args:
    new: The text that an edit writes.
    old: The text that it replaces.
  """
  if not may_answer(new):
    return False
  value = _only_return(_parse(new)[0])
  if value is None or (isinstance(value, ast.Constant) and value.value is None):
    return False
  before, _ = _parse(old)
  if _only_return(before) is not None:
    return False
  return any(isinstance(node, _COMPUTES) for node in ast.walk(before))


def knows_examples(completion: str, prompt: str) -> bool:
  """Return whether a program has a special case for an example in its prompt.

  Args:
    completion: A program, alone or in fenced blocks.
    prompt: The problem, with examples of inputs and outputs.
  """
  programs = _FENCED.findall(completion) or [completion]
  shown = _spaced(prompt)
  return any(
      all(_stands(text, shown) for text in (*case.given, *case.answer))
      for program in programs
      for case in cases(program)
  )


def is_program(completion: str) -> bool:
  """Return whether a completion seems to hold a program that prints."""
  return 'print(' in completion or 'stdout.write(' in completion


def printed(completion: str) -> list[str] | None:
  """Return the words that a program prints, if it only prints literals."""
  programs = _FENCED.findall(completion) or [completion]
  words: list[str] = []
  body = _parse(programs[-1])[0].body
  for statement in body:
    call = getattr(statement, 'value', None)
    if (
        not isinstance(call, ast.Call)
        or _name(call.func) != 'print'
        or call.keywords
        or not all(map(_is_literal, call.args))
    ):
      return None
    for value in call.args:
      words += str(ast.literal_eval(value)).split()
  return words or None


# --------------------------------------------------------------------- parsing


def _parse(code: str) -> tuple[ast.Module, list[str]]:
  """Return the syntax tree and the lines of a fragment, completed if necessary.

  If the text cannot be parsed, the tree has no nodes.
  """
  lines = code.expandtabs(8).strip('\n').splitlines() or ['']
  text = textwrap.dedent('\n'.join(lines))
  # The text of an edit may start in the middle of a line.
  rest = textwrap.dedent('\n'.join(lines[1:]))
  opens = lines[0].rstrip().endswith(':') and not rest.startswith(' ')
  inner = '  ' if opens else ''
  shifted = f'{lines[0].strip()}\n{textwrap.indent(rest, inner)}'
  for body in (text, shifted):
    last = body.splitlines()[-1] if body else ''
    indent = ' ' * (len(last) - len(last.lstrip()))
    end = f'\n{indent}  pass' if last.rstrip().endswith(':') else ''
    for head in ('', 'if 0:\n  pass\n'):  # Before an elif or an else.
      whole = head + body + end
      try:
        with warnings.catch_warnings(action='ignore'):
          return python_source.parse(whole), whole.splitlines()
      except (SyntaxError, ValueError, RecursionError, MemoryError):
        continue
  return ast.Module([], []), []


def _only_return(tree: ast.Module) -> ast.expr | None:
  """Return the literal that a fragment returns, if it does nothing else."""
  body = tree.body
  if len(body) == 1 and isinstance(body[0], ast.FunctionDef):
    body = body[0].body
    if len(body) > 1 and isinstance(body[0], ast.Expr):  # A docstring.
      body = body[1:]
  if len(body) == 1 and isinstance(body[0], ast.Return):
    value = body[0].value
    return value if value is not None and _is_literal(value) else None
  return None


# --------------------------------------------------------------------- finding

_Pair = tuple[list[Any], list[Any]]


def _pairs(node: ast.AST, tables: dict[str, ast.Dict]) -> Iterator[_Pair]:
  """Yield the inputs and answers of one node."""
  if isinstance(node, ast.If):
    answer = _answer(node.body[0])
    if answer is not None:
      yield from ((given, answer) for given in _given(node.test))
  elif isinstance(node, ast.Match) and _is_input(node.subject):
    for case in node.cases:
      value = getattr(case.pattern, 'value', None)
      answer = _answer(case.body[0])
      if value is not None and answer is not None and _is_literal(value):
        yield [ast.literal_eval(value)], answer
  for value in _said(node):
    if isinstance(value, ast.IfExp) and _is_literal(value.body):
      answer = [ast.literal_eval(value.body)]
      yield from ((given, answer) for given in _given(value.test))
    yield from _looked_up(value, tables)


def _said(node: ast.AST) -> list[ast.expr]:
  """Return the values that a statement returns or prints."""
  if isinstance(node, ast.Return) and node.value is not None:
    return [node.value]
  if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
    name = _name(node.value.func)
    return node.value.args if name in ('print', 'write') else []
  return []


def _answer(node: ast.stmt) -> list[Any] | None:
  """Return what a statement returns or prints; None unless all are literals."""
  said = _said(node)
  if not said or not all(map(_is_literal, said)):
    return None
  return [ast.literal_eval(value) for value in said]


def _given(test: ast.expr) -> list[list[Any]]:
  """Return the inputs for which a condition holds, if they are literals."""
  if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
    each = [_given(value) for value in test.values]
    if all(len(given) == 1 for given in each):
      return [[value for (given,) in each for value in given]]
    return []
  if not isinstance(test, ast.Compare) or len(test.ops) != 1:
    return []
  left, right = test.left, test.comparators[0]
  if isinstance(test.ops[0], ast.Eq):
    if _is_literal(left):
      left, right = right, left
    if _is_input(left) and _is_literal(right):
      return [[ast.literal_eval(right)]]
  elif isinstance(test.ops[0], ast.In) and _is_literal(right):
    many = ast.literal_eval(right)
    if _is_input(left) and isinstance(many, (tuple, list, set)):
      return [[value] for value in many]
  return []


def _looked_up(value: ast.expr, tables: dict[str, ast.Dict]) -> Iterator[_Pair]:
  """Yield the entries of a table of literals, if an input is its key."""
  table, key = None, None
  if isinstance(value, ast.Subscript):
    table, key = value.value, value.slice
  elif isinstance(value, ast.Call) and _name(value.func) == 'get':
    table = getattr(value.func, 'value', None)
    key = value.args[0] if value.args else None
  if isinstance(table, ast.Name):
    table = tables.get(table.id)
  if isinstance(table, ast.Dict) and key is not None and _is_input(key):
    if _is_literal(table):
      found = ast.literal_eval(table)
      yield from (([given], [answer]) for given, answer in found.items())


def _name(function: ast.expr) -> str:
  return getattr(function, 'attr', getattr(function, 'id', ''))


def _is_input(node: ast.expr) -> bool:
  """Return whether an expression is an unchanged input, or a part of one."""
  if isinstance(node, (ast.Name, ast.Attribute)):
    return True
  if isinstance(node, ast.Subscript):
    return _is_input(node.value) and _is_literal(node.slice)
  if isinstance(node, (ast.Tuple, ast.List)):
    return bool(node.elts) and all(map(_is_input, node.elts))
  if isinstance(node, ast.Call) and _name(node.func) in _READ:
    of = getattr(node.func, 'value', None)
    return all(map(_is_input, node.args)) and (of is None or _is_input(of))
  return False


def _is_literal(node: ast.expr) -> bool:
  try:
    ast.literal_eval(node)
  except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
    return False
  return True


def _is_trivial(value: Any) -> bool:
  return any(value == t and type(value) is type(t) for t in _TRIVIAL)


def _texts(values: Iterable[Any]) -> Iterator[str]:
  """Yield the texts of all values, and of those in containers."""
  for value in values:
    if isinstance(value, dict):
      value = [*value.keys(), *value.values()]
    if isinstance(value, (tuple, list, set)):
      yield from _texts(value)
    else:
      yield _spaced(str(value))


def _spaced(text: str) -> str:
  return ' '.join(text.split())


def _stands(text: str, prompt: str) -> bool:
  return bool(re.search(rf'(?<!\w){re.escape(text)}(?!\w)', prompt))
