"""Sources of a harness as syntax trees: parsed with limits, compared, shown.

Changes of comments, docstrings and formatting do not count.
"""

import ast
from collections.abc import Iterable, Mapping
import functools
import hashlib
from typing import Any
import warnings

from evojax.harness import grammar
from evojax.runtime import python_source

# Python 3.12 warns of '\d' in a source that it parses. The warning is for the
# author of the source, not for the user of a run.
warnings.filterwarnings('ignore', category=SyntaxWarning, module='<unknown>')

_WITH_DOCSTRING = (
    ast.Module,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
MAX_DEPTH = 60  # Levels of a tree, since recursive readers use stack for each.
MAX_NODES = 4000
# Python prints no integer of more than 4300 digits, and one beyond this limit
# may not convert to a float or a string.
MAX_INT = 2**63


class SourceError(ValueError):
  """A source does not have the form its file needs; names the line."""


def names_in(node: ast.AST) -> set[str]:
  """Return all names that occur in a tree."""
  return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def uses(nodes: Mapping[str, ast.AST]) -> dict[str, set[str]]:
  """Return, for each named node, the names of other such nodes that it uses."""
  return {name: names_in(node) & nodes.keys() for name, node in nodes.items()}


def reached(names: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
  """Return the names of nodes among `names`, and all that they lead to."""
  found, open_ = set(), list(names)
  while open_:
    name = open_.pop()
    if name in uses and name not in found:
      found.add(name)
      open_ += uses[name]
  return found


def parse(name: str, source: str) -> ast.Module:
  """Return the tree of a source without docstrings.

  The tree is safe to walk and to convert to text again.

  Raises:
    SourceError: If it is not valid Python, too deep or too long, or holds a
      name that is too long or a constant that cannot be shown.
  """
  try:
    tree = python_source.parse(source)
  except (SyntaxError, RecursionError, MemoryError, ValueError) as fault:
    line = getattr(fault, 'lineno', None) or 1
    message = getattr(fault, 'msg', None) or str(fault)
    if isinstance(fault, RecursionError | MemoryError):
      message = 'an expression is too deep to be parsed; name what is in it'
    raise SourceError(f'{name} line {line}: {message}') from fault
  refuse = functools.partial(error, name=name)
  level, depth = [tree], 0
  while level:
    level = [c for node in level for c in ast.iter_child_nodes(node)]
    depth += 1
    if depth > MAX_DEPTH and level:
      deep = next((n for n in level if hasattr(n, 'lineno')), None)
      message = (
          f'nested deeper than {MAX_DEPTH} levels; name what is in between'
      )
      raise refuse(deep, message)
  for node in ast.walk(tree):
    documented = isinstance(node, _WITH_DOCSTRING)
    if documented and ast.get_docstring(node, clean=False) is not None:
      node.body = node.body[1:] or [ast.Pass()]
  nodes = list(ast.walk(tree))
  if len(nodes) > MAX_NODES:
    raise SourceError(
        f'{name} line 1: {len(nodes)} syntax nodes, more than {MAX_NODES};'
        ' shorten the file'
    )
  for node in nodes:
    for field in grammar.NAMED:
      word = getattr(node, field, None)
      if isinstance(word, str) and len(word) > grammar.MAX_TEXT:
        message = (
            f'a name of {len(word)} characters, more than {grammar.MAX_TEXT};'
            ' shorten it'
        )
        raise refuse(node, message)
    match node:
      case ast.Constant(value=int(value)) if value > MAX_INT:
        raise refuse(
            node, 'a number is larger than 2**63; np.inf is the largest'
        )
      case ast.Constant(value=str(text)):
        for c in text:
          if not (c.isprintable() or c in '\n\r\t'):
            code = f'U+{ord(c):04X}'
            message = f'a text holds {code}, which does not print; leave it out'
            raise refuse(node, message)
  for node in nodes:
    if isinstance(node, ast.JoinedStr):
      text_of(node, name)
  return tree


def text_of(node: ast.AST, name: str = 'reward.py') -> str:
  """Return a node as Python text in normal form.

  Raises:
    SourceError: If it cannot be written: before 3.12, the braces of an f-string
      may not contain a backslash.
  """
  try:
    return ast.unparse(node)
  except (ValueError, RecursionError, MemoryError) as error:
    line = getattr(node, 'lineno', 1)
    raise SourceError(
        f'{name} line {line}: {error}; give what stands in the braces of the'
        ' f-string a name above it'
    ) from error


def digest(*texts: str) -> str:
  """Return the hash of texts, 64 hex digits."""
  return hashlib.sha256('\n'.join(texts).encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def fingerprint(name: str, source: str) -> str:
  """Return the hash of what a source computes, 64 hex digits.

  Raises:
    SourceError: If it is not valid Python.
  """
  return digest(text_of(parse(name, source), name))


def error(node: Any, message: str, name: str = 'reward.py') -> SourceError:
  """Return an error that names the line of a node."""
  return SourceError(f'{name} line {getattr(node, "lineno", 0)}: {message}')


def targets(statement: ast.stmt) -> list[ast.expr]:
  """Return the targets of an assignment; [] for any other statement."""
  match statement:
    case ast.Assign(targets=targets):
      return targets
    case ast.AnnAssign(target=target, value=ast.expr()):
      return [target]
  return []
