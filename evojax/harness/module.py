"""The imports and definitions of a source, found from its syntax tree."""

import ast
import collections
from collections.abc import Collection
import difflib

from evojax.harness import numpy_names
from evojax.harness import python_names as names

_FUNCTIONS = (ast.FunctionDef, ast.Lambda)
Key = tuple[ast.AST | None, str]  # (outermost function or None, name).


class Module:
  """The imports and definitions of a module, and the positions of its nodes.

  Attributes:
    nodes: All nodes except those of annotations.
    parents: Node -> its parent, for all nodes except the module.
    annotations: Types in annotations, including aliases of types.
    aliases: Names of these aliases.
    imports: Name -> full name: 'numpy', 'collections.Counter'.
    clashes: Names that are imported as different things.
    functions: (outermost function, name) -> its definitions, if the name has no
      other meaning; includes lambdas.
    classes: Name -> its definition.
    methods: Name -> the methods of this name.
    attributes: Names of all fields and methods.
    bound: Number of times each name is bound, by outermost function.
    assigned: The values assigned to such a name in lines NAME = value.
  """

  def __init__(self, tree: ast.Module):
    """Collect the imports and definitions of a tree."""
    self.tree = tree
    self.nodes: list[ast.AST] = []
    # Load(), Add() and the like are one shared object each, so their entry is
    # merely the last parent seen, and no check may use it.
    self.parents: dict[ast.AST, ast.AST] = {}
    self.annotations: list[ast.expr] = []
    self.aliases: set[str] = set()
    self.imports: dict[str, str] = {}
    self.clashes: set[str] = set()
    self.functions: dict[Key, list[ast.FunctionDef | ast.Lambda]] = {}
    self.classes = {s.name: s for s in tree.body if isinstance(s, ast.ClassDef)}
    self.methods: dict[str, list[ast.FunctionDef]] = {}
    self.attributes: set[str] = set()
    self.bound: collections.Counter[Key] = collections.Counter()
    self.assigned: dict[Key, list[ast.expr]] = {}
    self._scopes: dict[ast.AST, ast.AST | None] = {tree: None}
    for node in ast.walk(tree):
      self._note_import(node)
    open_ = collections.deque([tree])
    while open_:
      node = open_.popleft()
      self.nodes.append(node)
      scope = self._scopes[node]
      inner = node if scope is None and isinstance(node, _FUNCTIONS) else scope
      types = self._types(node)
      for child in ast.iter_child_nodes(node):
        self.parents[child], self._scopes[child] = node, inner
        if child in types:
          self.annotations.append(child)
        else:
          open_.append(child)
      self._note(node, scope, inner)
    self.functions = {
        key: found
        for key, found in self.functions.items()
        if self.bound[key] == len(found)
    }

  def _types(self, node: ast.AST) -> list[ast.expr | None]:
    """Return the types that a node contains as annotations."""
    match node:
      case ast.Assign(targets=[ast.Name(id=name)], value=value):
        base = value.value if isinstance(value, ast.Subscript) else value
        module, attribute = split(self.full(base))
        top = self.parents[node] is self.tree
        if top and attribute in names.TYPES.get(module, ()):
          self.aliases.add(name)
          return [value]
      case ast.arg(annotation=type_) | ast.AnnAssign(annotation=type_):
        return [type_]
      case ast.FunctionDef(returns=type_):
        return [type_]
    return []

  def _note_import(self, node: ast.AST) -> None:
    found = {}
    match node:
      case ast.Import(names=aliases):
        for alias in aliases:
          whole = alias.name if alias.asname else alias.name.split('.')[0]
          found[alias.asname or whole] = whole
      case ast.ImportFrom(module=str(module), names=aliases):
        for alias in aliases:
          found[alias.asname or alias.name] = f'{module}.{alias.name}'
    for name, whole in found.items():
      if self.imports.setdefault(name, whole) != whole:
        self.clashes.add(name)

  def _note(self, node: ast.AST, scope: ast.AST | None, inner) -> None:
    match node:
      case ast.FunctionDef(name=name):
        if isinstance(self.parents[node], ast.ClassDef):
          self.methods.setdefault(name, []).append(node)
          self.attributes.add(name)
        else:
          self.functions.setdefault((scope, name), []).append(node)
          self.bound[scope, name] += 1
      case ast.ClassDef(name=name):
        self.bound[scope, name] += 1
      case ast.Assign(targets=[ast.Name(id=name)], value=value):
        self.assigned.setdefault((scope, name), []).append(value)
        if isinstance(value, ast.Lambda):
          self.functions.setdefault((scope, name), []).append(value)
      case ast.Name(id=name, ctx=ast.Store()):
        if self.is_field(node):
          self.attributes.add(name)
        else:
          self.bound[scope, name] += 1
      case ast.Attribute(ast.Name('self'), attr=name, ctx=ast.Store()):
        self.attributes.add(name)
      case ast.arg(arg=name):
        self.bound[inner, name] += 1
      case ast.ExceptHandler(name=str(name)):
        self.bound[scope, name] += 1
      case ast.Call(args=[_, fields]) if (
          self.full(node.func) == 'collections.namedtuple'
      ):
        self.attributes |= set(fields_of(fields))

  def is_field(self, node: ast.Name) -> bool:
    """Return whether a name is bound in the body of a class."""
    return isinstance(self.parents[self.parents[node]], ast.ClassDef)

  def key(self, node: ast.Name) -> Key:
    """Return the key of a name in `functions`."""
    key = (self._scopes.get(node), node.id)
    return key if key in self.bound else (None, node.id)

  def scope(self, node: ast.AST) -> ast.AST | None:
    """Return the outermost function around a node; None at the top."""
    return self._scopes[node]

  def full(self, node: ast.AST) -> str:
    """Return the full name of an expression: 'numpy.exp', 'len'; or ''."""
    match node:
      case ast.Name(id=name):
        if name in self.imports:
          return self.imports[name]
        own = self.key(node) in self.bound
        return name if name in names.BUILTINS and not own else ''
      case ast.Attribute(value=ast.Name(id='str' | 'dict' as name), attr=attr):
        return f'{name}.{attr}' if self.full(node.value) else ''
      case ast.Attribute(value=value, attr=attr):
        outer = self.full(value)
        if not outer or outer in names.BUILTINS or is_constant(outer):
          return ''
        return f'{outer}.{attr}'
    return ''

  def function(self, node: ast.AST) -> ast.AST:
    """Return the innermost function around a node, or the module."""
    node = self.parents[node]
    while not isinstance(node, (*_FUNCTIONS, ast.Module)):
      node = self.parents[node]
    return node

  def own(self, call: ast.Call) -> list[ast.FunctionDef | ast.Lambda]:
    """Return the definitions that a call may refer to; [] if unknown."""
    return self.meant(call.func)

  def meant(self, node: ast.expr) -> list[ast.FunctionDef | ast.Lambda]:
    """Return the definitions that a name may refer to; [] if unknown."""
    if not isinstance(node, ast.Name):
      return []
    keys = self.keys(node)
    return self.functions.get(keys[0], []) if len(keys) == 1 else []

  def keys(self, node: ast.Name) -> list[Key]:
    """Return the keys of everything that a name may refer to.

    A name that is bound in an inner function or a comprehension refers to that
    binding there, and to the file's name elsewhere.
    """
    keys = dict.fromkeys([self.key(node), (None, node.id)])
    return [key for key in keys if key in self.bound]

  def is_called(self, node: ast.AST) -> bool:
    """Return whether a node is called."""
    parent = self.parents.get(node)
    return isinstance(parent, ast.Call) and parent.func is node

  def is_record(self, name: str) -> bool:
    """Return whether a class is a dataclass or a NamedTuple."""
    node = self.classes[name]
    return bool(node.bases or node.decorator_list)


def split(full: str) -> tuple[str, str]:
  """Split a full name: ('itertools', 'chain.from_iterable')."""
  parts = full.split('.')
  for i in range(len(parts), 0, -1):
    if '.'.join(parts[:i]) in names.MODULES:
      return '.'.join(parts[:i]), '.'.join(parts[i:])
  return '', full


def is_function(full: str) -> bool:
  """Return whether a full name is a function that may be used."""
  module, name = split(full)
  if not module:
    method = full.removeprefix('str.')
    fine = method in numpy_names.METHODS and hasattr(str, method)
    listed = full == f'str.{method}' and fine and method != 'format'
    return full in names.BUILTINS or full == 'dict.fromkeys' or listed
  if module == 'numpy' and name.count('.') == 1:
    function, _, method = name.partition('.')
    binary = function in numpy_names.BINARY
    return binary and method in numpy_names.UFUNC_METHODS
  listed = name in names.FUNCTIONS.get(module, ())
  return listed and not is_constant(full)


def is_constant(full: str) -> bool:
  """Return whether a full name is a number or a string."""
  module, name = split(full)
  return name in names.CONSTANTS.get(module, ())


def fields_of(node: ast.expr) -> list[str]:
  """Return the fields of a namedtuple; [] if they are not literals."""
  try:
    found = ast.literal_eval(node)
  except (ValueError, TypeError, SyntaxError):
    return []
  if isinstance(found, str):
    found = found.replace(',', ' ').split()
  fine = isinstance(found, list | tuple)
  return list(found) if fine and all(isinstance(n, str) for n in found) else []


def no_module(name: str) -> str:
  """Return why a module is refused."""
  why = names.NOT_IMPORTED.get(name.partition('.')[0], names.OTHERWISE)
  return f'import {name} is refused; {why}'


def no_name(full: str) -> str:
  """Return why a name of a module is refused."""
  module, name = split(full)
  short = 'np' if module == 'numpy' else module
  first = name.partition('.')[0]
  if module == 'numpy' and first in numpy_names.INSTEAD:
    return numpy_names.INSTEAD[first]
  text = f'{short}.{name} is not on the list of what may be used'
  if instead := names.INSTEAD.get(f'{module}.{first}'):
    return f'{text}; {instead}'
  listed = (names.FUNCTIONS, names.CONSTANTS, names.TYPES)
  known = set().union(*(table.get(module, ()) for table in listed))
  return text + (near(first, known) or '; write it with what is')


def near(name: str, known: Collection[str]) -> str:
  """Return known names similar to an unknown one, as the end of a sentence."""
  found = difflib.get_close_matches(name, sorted(known), 3)
  return f'; there is {" and ".join(found)}' if found else ''
