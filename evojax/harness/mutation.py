"""Statements of a source that change a value in place.

Parts of a reward share the values that `parts` names. If one part could change
such a value, changing this part would change another one, too.
"""

import ast
from collections.abc import Iterable, Iterator

from evojax.harness import numpy_names

# Methods that change their object in place.
METHODS = frozenset(
    'add append appendleft clear discard extend extendleft fill insert'
    ' move_to_end partition pop popitem popleft remove reverse rotate'
    ' setdefault sort subtract update'.split()
)
_UFUNCS = numpy_names.UNARY | numpy_names.BINARY


def found(
    tree: ast.Module, roots: Iterable[ast.AST]
) -> Iterator[tuple[ast.AST, str]]:
  """Yield nodes that change a value in place, each with a description."""
  modules, ufuncs = {'np'}, set()
  for node in ast.walk(tree):
    match node:
      case ast.Import(names=names):
        modules |= {a.asname or a.name for a in names if a.name == 'numpy'}
      case ast.ImportFrom(module='numpy', names=names):
        ufuncs |= {a.asname or a.name for a in names if a.name in _UFUNCS}
  nodes = [node for root in roots for node in ast.walk(root)]
  called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
  called |= {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
  making = {
      id(child)
      for node in nodes
      if getattr(node, 'name', '') in ('__init__', '__post_init__')
      for child in ast.walk(node)
  }
  for node in nodes:
    match node:
      case ast.Attribute(ctx=ast.Store()) if id(node) in making:
        pass
      case ast.Subscript(ctx=ast.Store()) | ast.AugAssign():
        yield node, 'an assignment'
      case ast.Attribute(ctx=ast.Store()):
        yield node, 'an assignment'
      case ast.Subscript(ctx=ast.Del()):
        yield node, 'del'
      case ast.Nonlocal():
        yield node, 'nonlocal'
      case ast.Call(func=ast.Attribute(value=value, attr=name)) if (
          name in METHODS and ast.unparse(value) not in modules
      ):
        yield node, f'.{name}()'
      case ast.keyword(arg='copy'):
        yield node, 'copy='
      case ast.keyword(arg='out', value=ast.Name()):
        yield node, 'out='
      case ast.Call(
          func=ast.Attribute(value=value, attr=name)
      ) if name in _UFUNCS and any(
          isinstance(a, ast.Starred) for a in node.args
      ):
        yield node, 'a third argument'
      # A function that receives it as an argument could pass `out` to it.
      case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
          name in modules and attribute in _UFUNCS and id(node) not in called
      ):
        yield node, 'a function of NumPy that is handed on'
      case ast.Name(id=name) if name in ufuncs and id(node) not in called:
        yield node, 'a function of NumPy that is handed on'


def defaults(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
  """Yield every mention of defaultdict, with a description of reading one."""
  for node in ast.walk(tree):
    match node:
      case (
          ast.Name(id='defaultdict')
          | ast.Attribute(attr='defaultdict')
          | ast.alias(name='defaultdict')
      ):
        yield node, 'reading a defaultdict'
