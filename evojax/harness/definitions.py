"""The functions and classes that a source may define, and their names."""

import ast
from collections.abc import Iterator

from evojax.harness import grammar
from evojax.harness import module as module_lib
from evojax.harness import numpy_names as allowed
from evojax.harness import python_names as names
from evojax.harness import syntax

_Found = Iterator[tuple[int, str]]  # (line, what is wrong and the remedy).


class Reader:
  """Finds the definitions of one module that are refused."""

  def __init__(self, tree: ast.Module, module: module_lib.Module):
    """Record which constants of the module cannot change."""
    self._tree, self._m = tree, module
    # Top-level name -> whether its value cannot change. A line may use the
    # lines above it, so each is read once, in order.
    self._constants: dict[str, bool] = {}
    for statement in tree.body:
      for target in syntax.targets(statement):
        if isinstance(target, ast.Name):
          plain = self._is_plain(statement.value)
          plain = plain and self._constants.get(target.id, True)
          self._constants[target.id] = plain

  def recursion(self) -> _Found:
    """Refuse functions that call themselves: they may never return."""
    found = [n for n in self._m.nodes if isinstance(n, ast.FunctionDef)]
    functions, uses = {}, {}
    for node in found:
      in_class = isinstance(self._m.parents[node], ast.ClassDef)
      functions[f'self.{node.name}' if in_class else node.name] = node
    for name, function in functions.items():
      uses[name] = functions.keys() & {
          f'{"self." if isinstance(n, ast.Attribute) else ""}{called}'
          for n in ast.walk(function)
          if (called := _own_name(n))
      }
    for name, function in functions.items():
      if name in syntax.reached(uses[name], uses):
        text = f'{name} calls itself; use a loop'
        yield function.lineno, text

  def check_function(self, node: ast.FunctionDef) -> _Found:
    """Yield what is refused in a function's name, decorators and defaults."""
    parent = self._m.parents[node]
    in_class = isinstance(parent, ast.ClassDef)
    for decorator in node.decorator_list:
      whole = decorator.func if isinstance(decorator, ast.Call) else decorator
      if in_class and getattr(decorator, 'id', '') in names.DECORATORS:
        continue
      if self._m.full(whole) not in ('functools.cache', 'functools.lru_cache'):
        yield node.lineno, (
            f'{node.name} has a decorator that is not allowed: a function may'
            ' have @functools.cache or lru_cache, and a method @property,'
            ' @staticmethod and @classmethod as well; or call what you need in'
            ' it'
        )
    if not in_class:
      yield from self.binds(node.name, node.lineno)
    elif node.name in allowed.OF_ARRAYS:
      text = f'arrays have a method {node.name}; give yours another name'
      yield node.lineno, text
    elif node.name[:2] == '__' and node.name not in names.SPECIAL_METHODS:
      listed = ', '.join(sorted(names.SPECIAL_METHODS))
      yield node.lineno, (
          f'{node.name} would be called implicitly; of such methods, only these'
          f' are allowed: {listed}'
      )
    for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
      if not self._is_plain(default):
        yield default.lineno, (
            f'a default of {node.name} is made once and could keep a state;'
            ' give a number, a text or None, and make the rest in the function'
        )

  def check_lambda(self, node: ast.Lambda) -> _Found:
    """Yield defaults that could keep a state between calls."""
    for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
      if not self._is_plain(default):
        text = 'a default of a lambda is made once; name it above'
        yield default.lineno, text

  def check_class(self, node: ast.ClassDef) -> _Found:
    """Yield what is refused in a class and its fields."""
    line = node.lineno
    yield from self.binds(node.name, line)
    if not isinstance(self._m.parents[node], ast.Module):
      yield line, f'class {node.name} must be at the top level of the file'
    bases = [self._m.full(base) for base in node.bases]
    if bases not in ([], ['typing.NamedTuple']) or node.keywords:
      text = 'may have no base but NamedTuple; write functions, or a dataclass'
      yield line, f'class {node.name} {text}'
    for decorator in node.decorator_list:
      whole = decorator.func if isinstance(decorator, ast.Call) else decorator
      if self._m.full(whole) != 'dataclasses.dataclass':
        yield line, f'class {node.name}: the only decorator is @dataclass'
    for statement in node.body:
      value = getattr(statement, 'value', None)
      if not isinstance(statement, grammar.IN_CLASS):
        yield statement.lineno, (
            'a class holds fields (name: type = value) and methods'
        )
      elif value is not None and not self._is_plain(value):
        if self._m.full(getattr(value, 'func', value)) != 'dataclasses.field':
          yield statement.lineno, (
              'the value of a field is shared by all; give a number, a text or'
              ' a tuple of them, or field(default_factory=list)'
          )

  def binds(self, name: str, line: int) -> _Found:
    """Yield a reason if a name must not be bound."""
    top = [s for s in self._tree.body if getattr(s, 'name', '') == name]
    if name.startswith('__'):
      yield line, f'{name}: names do not begin with two underscores'
    elif name in (*allowed.BUILTINS, 'np', 'math', *names.EXCEPTIONS):
      yield line, f'{name} means something already; give yours another name'
    elif name in ('Exception', 'self', *names.ONLY_CALLED, *self._m.imports):
      yield line, f'{name} means something already; give yours another name'
    elif top and top[0].lineno != line:
      yield line, f'{name} is a function of this file; give yours another name'

  def _is_plain(self, node: ast.expr) -> bool:
    """Return whether a value made once cannot change: a number, a name."""
    match node:
      case ast.UnaryOp(operand=operand):
        return self._is_plain(operand)
      case ast.Tuple(elts=elements):
        return all(map(self._is_plain, elements))
      case ast.Constant():
        return True
      case ast.Name(id=name):
        if self._m.full(node):
          return True
        function = (None, name) in self._m.functions
        return self._constants.get(name, function)
      case ast.Attribute():
        return bool(self._m.full(node))
      case ast.BinOp(left=left, right=right):
        return self._is_plain(left) and self._is_plain(right)
    return False


def _own_name(node: ast.AST) -> str:
  """Return the name that a node reads, including attributes of self."""
  match node:
    case ast.Name(id=name) | ast.Attribute(ast.Name('self'), attr=name):
      return name
  return ''
