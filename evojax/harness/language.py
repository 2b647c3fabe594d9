"""The part of Python that a harness function is written in.

This is an allow-list of node types (`grammar`), names, attributes, arguments
and functions (`numpy_names`). Anything else is refused with what to write
instead. The source is only parsed; nothing is run.

A function that compares groups with each other says so by name:

    ACROSS_GROUPS = ('rank',)    # Parts of reward.py; 'keep', 'weight'.
"""

import ast
from collections.abc import Collection, Iterator

from evojax.harness import grammar
from evojax.harness import numpy_names as allowed
from evojax.harness import syntax

ACROSS = syntax.ACROSS
MAX_REASONS = 8  # Lines about one source; a proposer reads no more.


def reasons(path: str, source: str, columns: Collection[str]) -> list[str]:
  """Return why a source is refused, one line each; nothing if it is not.

  Args:
    path: Path of the file in the harness, e.g. 'reward.py'.
    source: Text of the file.
    columns: Names of the evidence's columns, which are attributes of `e`.
  """
  try:
    tree = syntax.parse(path, source)
  except syntax.SourceError as error:
    return [str(error)]
  found = sorted(set(_Reader(tree, columns).read()))
  lines = [f'{path} line {line}: {text}' for line, text in found]
  if (rest := len(lines) - MAX_REASONS) > 0:
    lines[MAX_REASONS:] = [f'{path}: and {rest} more']
  return lines


_Found = Iterator[tuple[int, str]]  # (line, what is wrong and what to do).


class _Reader:
  """Finds everything in one module that is refused."""

  def __init__(self, tree: ast.Module, columns: Collection[str]):
    """Note what the module defines, imports and binds."""
    self._tree = tree
    self._columns = frozenset(columns) | grammar.EVIDENCE | allowed.PROPERTIES
    # Load(), Add() and the like are one shared object each, so their parent is
    # the last that was seen: no check may ask for it.
    self._parents = {
        child: node
        for node in ast.walk(tree)
        for child in ast.iter_child_nodes(node)
    }
    self._annotations = [
        annotation
        for node in ast.walk(tree)
        for field in ('annotation', 'returns')
        if (annotation := getattr(node, field, None)) is not None
    ]
    skip = {part for note in self._annotations for part in ast.walk(note)}
    self._nodes = [node for node in ast.walk(tree) if node not in skip]
    self._functions = {
        s.name: s for s in tree.body if isinstance(s, ast.FunctionDef)
    }
    self._modules: set[str] = set()
    self._bound = set(self._functions)  # Every name, in any scope.
    for node in self._nodes:
      match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
          self._bound.add(name)
        case ast.Import(names=names):
          self._modules.update(filter(None, map(_imported, names)))

  def read(self) -> _Found:
    """Yield everything that is refused."""
    for annotation in self._annotations:
      if not all(map(_is_harmless, ast.walk(annotation))):
        text = f'the annotation {_shown(annotation)} is run; leave it out'
        yield annotation.lineno, text
    defined = set()
    for statement in self._tree.body:
      if isinstance(statement, ast.FunctionDef):
        if statement.name in defined:
          yield statement.lineno, f'{statement.name} is defined twice'
        defined.add(statement.name)
      elif not isinstance(statement, (*grammar.TOP, *grammar.INSTEAD)):
        yield statement.lineno, (
            'a file holds imports, constants (NAME = value) and functions;'
            ' compute inside a function'
        )
    for node in self._nodes:
      yield from self._node(node)
    # Functions that reach themselves may never return.
    uses = syntax.uses(self._functions)
    for name, function in self._functions.items():
      if name in syntax.reached(uses[name], uses):
        text = f'{name} calls itself; use `for ... in range(n)`'
        yield function.lineno, text

  def _node(self, node: ast.AST) -> _Found:
    line = getattr(node, 'lineno', 0)
    kind = type(node)
    if not isinstance(node, grammar.ALLOWED):
      if kind in grammar.INSTEAD:
        yield line, f'no {grammar.INSTEAD[kind]}'
      elif isinstance(self._parents[node], grammar.ALLOWED):
        # Parts of a refused statement are not refused once more.
        yield line, f'{kind.__name__} is not allowed here'
    for name in (getattr(node, field, None) for field in grammar.NAMED):
      if isinstance(name, str) and not name.isascii():
        yield line, f'{name} is not ASCII; write names in a-z, 0-9 and _'
    if check := getattr(self, f'_check_{kind.__name__}', None):
      yield from check(node)
    if isinstance(node, grammar.LOOPS) and (
        (depth := self._depth(node)) > grammar.MAX_LOOPS
    ):
      # The clause of a comprehension has no line of its own.
      yield line or self._parents[node].lineno, (
          f'{depth} loops inside each other, more than {grammar.MAX_LOOPS};'
          ' use arrays'
      )
    if isinstance(node, grammar.TABLES):
      items = node.keys if isinstance(node, ast.Dict) else node.elts
      if len(items) > grammar.MAX_ITEMS:
        yield line, (
            f'a table of {len(items)} items, more than {grammar.MAX_ITEMS}; a'
            ' function holds rules, not answers'
        )

  def _depth(self, node: ast.AST) -> int:
    """Count the loops around a loop, itself included, up to the function."""
    depth = 1
    if isinstance(node, ast.comprehension):
      parent = self._parents[node]
      depth, node = 1 + parent.generators.index(node), parent
    while node in self._parents and not isinstance(node, ast.FunctionDef):
      node = self._parents[node]
      if isinstance(node, ast.For):
        depth += 1
      elif isinstance(node, grammar.COMPREHENSIONS):
        depth += len(node.generators)
    return depth

  # --------------------------------------------------------------- statements

  def _check_Import(self, node: ast.Import) -> _Found:
    for alias in node.names:
      if not _imported(alias):
        yield node.lineno, (
            f'import {alias.name} is refused; a function may `import numpy as'
            ' np` and `import math`'
        )
    if not isinstance(self._parents[node], ast.Module):
      yield node.lineno, 'imports stand at the top of the file'

  def _check_FunctionDef(self, node: ast.FunctionDef) -> _Found:
    if node.decorator_list:
      yield node.lineno, f'{node.name} is decorated; call what you need in it'
    if not isinstance(self._parents[node], ast.Module):
      yield node.lineno, (
          f'{node.name} stands inside another function; put it at the top of'
          ' the file'
      )
    yield from self._binds(node.name, node.lineno)
    a = node.args
    if a.vararg or a.kwarg:
      yield node.lineno, f'{node.name} takes * or **; name its arguments'
    for default in (*a.defaults, *filter(None, a.kw_defaults)):
      if not _is_plain(default):
        yield default.lineno, (
            f'a default of {node.name} is made once and could remember; give a'
            ' number, a text or None'
        )

  def _check_Lambda(self, node: ast.Lambda) -> _Found:
    if not self._is_key(node):
      yield node.lineno, (
          'a lambda may only be the key= of sorted, min or max; define a'
          ' function'
      )

  def _is_called(self, node: ast.expr) -> bool:
    parent = self._parents[node]
    return isinstance(parent, ast.Call) and parent.func is node

  def _is_key(self, node: ast.expr) -> bool:
    """Return whether it is the key= of a call that does not keep it."""
    match self._parents[node]:
      case ast.keyword(arg='key') as parent:
        return self._called(self._parents[parent]) in grammar.SORTERS
    return False

  def _called(self, node: ast.AST) -> str:
    """Return the builtin, method or function of math that is called, or ''."""
    match node:
      case ast.Call(func=ast.Name(id=name)):
        return name if name in allowed.BUILTINS else ''
      case ast.Call(func=ast.Attribute(attr=name) as function):
        # Not NumPy: it wraps an iterator in an array of one object, unread.
        return name if self._module(function) in (None, 'math') else ''
    return ''

  def _check_GeneratorExp(self, node: ast.GeneratorExp) -> _Found:
    yield from self._iterator(node, 'a generator')

  def _iterator(self, node: ast.expr, name: str) -> _Found:
    """Refuse an iterator that is not consumed where it is made."""
    match self._parents[node]:
      case ast.Starred() as parent:
        outer = self._parents[parent]
        read = isinstance(outer, grammar.TABLES) or self._called(outer) == 'zip'
      case ast.Assign(targets=targets):
        read = all(isinstance(t, grammar.TABLES) for t in targets)
      case ast.Call(args=args) as parent:
        reader = self._called(parent)
        # zip consumes all of its arguments, the other readers the first.
        places = args if reader == 'zip' else args[:1]
        read = reader in grammar.READERS and node in places
        # max(a, b) returns one of several arguments as it is.
        read &= reader not in grammar.SORTERS or len(args) == 1
      case parent:
        read = isinstance(parent, grammar.LOOPS)
    if not read:
      yield node.lineno, (
          f'{name} may stand in a loop, or alone in list(), sum(), any(), ...;'
          ' make a list of it'
      )

  def _check_Expr(self, node: ast.Expr) -> _Found:
    match node.value:
      case ast.Call(func=ast.Attribute()):
        return  # A method may change a list or an array.
      case ast.Constant(value=value) if value is Ellipsis:
        return
    if not isinstance(node.value, tuple(grammar.INSTEAD)):
      yield node.lineno, 'this line has no effect; take it out'

  # -------------------------------------------------------------- expressions

  def _check_arg(self, node: ast.arg) -> _Found:
    yield from self._binds(node.arg, node.lineno)

  def _binds(self, name: str, line: int) -> _Found:
    if name.startswith('__'):
      yield line, f'{name}: names do not begin with two underscores'
    elif name in allowed.BUILTINS or name in grammar.IMPORTS.values():
      yield line, f'{name} means something already; give yours another name'
    elif name in self._functions and self._functions[name].lineno != line:
      yield line, f'{name} is a function of this file; give yours another name'

  def _check_Name(self, node: ast.Name) -> _Found:
    name, parent = node.id, self._parents[node]
    if not isinstance(node.ctx, ast.Load):
      yield from self._binds(name, node.lineno)
      return
    called = self._is_called(node)
    key = self._is_key(node)
    if name in allowed.BUILTINS:
      if not (called or key or self._is_dtype(node) or self._is_type(node)):
        yield node.lineno, f'{name} may only be called'
    elif name in self._modules:
      if not isinstance(parent, ast.Attribute):
        yield node.lineno, f'{name} is no value; name what you need of it'
    elif name in self._functions:
      if not (called or key):
        yield node.lineno, f'{name} is a function; it may only be called'
    elif name.startswith('__') or name not in self._bound:
      yield node.lineno, (
          f'there is no {name}; a function may use np, math, its arguments,'
          f' what it defines, and {", ".join(sorted(allowed.BUILTINS))}'
      )
    elif called:
      yield node.lineno, (
          f'{name} is called, but is no function of this file; call functions'
          ' by their names'
      )

  def _is_dtype(self, node: ast.expr) -> bool:
    """Return whether a node stands where a dtype is expected."""
    match self._parents[node]:
      case ast.keyword(arg=name):
        return name == 'dtype'
      case ast.IfExp() as parent:
        return self._is_dtype(parent)
      case ast.Call() as parent:
        return node in _dtypes(parent)
    match self._beyond_tuple(node), node:
      case ast.Compare(left=ast.Attribute(attr='dtype')), ast.Attribute():
        return True
      case ast.Compare(left=ast.Attribute(attr='dtype')), ast.Name(id=name):
        return name in grammar.DTYPES
    return False

  def _is_type(self, node: ast.expr) -> bool:
    """Return whether a node is a type that isinstance compares with."""
    match self._beyond_tuple(node):
      case ast.Call(func=ast.Name(id='isinstance')):
        return True
    return False

  def _beyond_tuple(self, node: ast.expr) -> ast.AST:
    """Return the parent, or the parent of the tuple that the node is in."""
    parent = self._parents[node]
    return self._parents[parent] if isinstance(parent, ast.Tuple) else parent

  def _check_Attribute(self, node: ast.Attribute) -> _Found:
    name, line, module = node.attr, node.lineno, self._module(node)
    parent, called = self._parents[node], self._is_called(node)
    typed = self._is_type(node)
    if not isinstance(node.ctx, ast.Load):
      yield line, f'.{name} is set; evidence and arrays keep their attributes'
    elif name.startswith('_'):
      yield line, f'.{name} begins with an underscore; it is not yours'
    elif module is None:
      # An attribute of evidence, an array, a string, a list or a dict.
      # max(counts, key=counts.get) is a common idiom.
      used = called or name == 'get' and self._is_key(node)
      if name in self._columns or self._is_reduction(node):
        return
      if name not in allowed.METHODS:
        yield line, (
            f'.{name} is neither a column of the evidence nor an attribute that'
            ' a function may use'
        )
      elif not used:
        yield line, f'.{name} may only be called'
    elif module == 'np' and name == 'linalg':
      if not isinstance(parent, ast.Attribute):
        yield line, 'np.linalg is no value; name what you need of it'
    elif name in _CONSTANTS.get(module, ()):
      return
    elif module == 'np' and name in allowed.DTYPES:
      if not (called or typed or self._is_dtype(node)):
        yield line, f'np.{name} may be called, or be a dtype'
    elif name not in _FUNCTIONS[module]:
      if not (typed and module == 'np' and name == 'ndarray'):
        text = f'{module}.{name} is not on the list of what may be used'
        yield line, allowed.INSTEAD.get(name, text) if module == 'np' else text
    elif not (called or self._is_reduction(parent)):
      yield line, f'{module}.{name} may only be called'

  def _module(self, node: ast.Attribute) -> str | None:
    """Return 'np', 'math' or 'np.linalg' if the attribute belongs to one."""
    match node.value:
      case ast.Name(id=name) if name in self._modules:
        return name
      case ast.Attribute(attr='linalg') as v if self._module(v) == 'np':
        return 'np.linalg'
    return None

  def _is_reduction(self, node: ast.AST) -> bool:
    """Return whether it is np.maximum.reduce or the like."""
    match node:
      case ast.Attribute(ast.Attribute(attr=name) as function, attr=method):
        known = name in allowed.BINARY and method in allowed.UFUNC_METHODS
        return known and self._module(function) == 'np'
    return False

  def _check_Call(self, node: ast.Call) -> _Found:
    line, count = node.lineno, len(node.args)
    named = {k.arg for k in node.keywords}
    starred = any(isinstance(a, ast.Starred) for a in node.args)
    # zip(*pairs) transposes pairs, and zip has no argument to smuggle in.
    if (starred and self._called(node) != 'zip') or None in named:
      yield line, 'arguments with * or ** hide what is passed; name them'
    match node.func:
      case ast.Name(id=name) if name in self._functions:
        own = self._functions[name].args
        taken = {a.arg for a in (*own.args, *own.kwonlyargs)}
        for other in sorted(named - taken - {None}):
          yield line, f'{name} takes no {other}='
        return
      case ast.Name(id='dict'):
        return  # The keywords of dict() are its keys.
      case ast.Name(id=name):
        if name in grammar.ITERATORS:
          yield from self._iterator(node, f'{name}()')
      case ast.Attribute(attr=name) as function:
        module = self._module(function)
        shown = f'{module or ""}.{name}'
        if name in ('format', 'format_map') and module is None:
          yield line, _USE_F_STRING
        most = count
        if module is None:
          most = _POSITIONAL.get(name, count)
        elif module == 'np' and name in allowed.FUNCTIONS:
          most, _ = allowed.positional(name)
        if count > most:
          text = f'takes {most} arguments without a name, not {count}'
          yield line, f'{shown} {text}'
        if 'where' in named and name not in allowed.REDUCTIONS:
          text = 'with where= leaves the rest uninitialised; use np.where'
          yield line, f'{shown} {text}'
        if shown == 'np.pad':
          yield from _check_pad(node)
        for value in _dtypes(node):
          yield from _check_dtype(value)
      case _:
        yield line, 'only functions that have a name may be called'
    for name in sorted(named - allowed.KEYWORDS - {None}):
      yield line, (
          'out= writes into memory that is not its own; assign the result'
          if name == 'out'
          else f'{name}= is not on the list of what may be passed'
      )

  def _check_Constant(self, node: ast.Constant) -> _Found:
    match node.value:
      case complex() | bytes() as value:
        yield node.lineno, f'{type(value).__name__} constants are refused'
      # A literal such as 1e999 is infinite, and NaN compares as false.
      case int() | float() as value if not abs(value) <= grammar.MAX_NUMBER:
        yield node.lineno, (
            f'a number is larger than {grammar.MAX_NUMBER:g}; np.inf is the'
            ' largest'
        )
      case str(text) if len(text) > grammar.MAX_TEXT:
        yield node.lineno, (
            f'a text of {len(text)} characters, more than {grammar.MAX_TEXT}; a'
            ' function holds rules, not answers'
        )

  def _check_BinOp(self, node: ast.BinOp) -> _Found:
    match node.left, node.op, node.right:
      case ast.JoinedStr() | ast.Constant(value=str()), ast.Mod(), _:
        yield node.lineno, _USE_F_STRING
      case left, ast.Pow(), right:
        operators = (getattr(side, 'op', None) for side in (left, right))
        if any(isinstance(op, ast.Pow) for op in operators):
          yield node.lineno, 'a power of a power; multiply the exponents'
      case _, ast.LShift(), _:
        yield node.lineno, '<< makes numbers of any size; multiply'

  def _check_FormattedValue(self, node: ast.FormattedValue) -> _Found:
    if node.format_spec is not None:
      yield node.lineno, 'formats in f-strings are refused; round the number'
    if node.conversion not in (-1, ord('s')):
      yield node.lineno, '!r and !a are refused; write the value alone'


_USE_F_STRING = "use an f-string: f'share_{name}'"
_CONSTANTS = {'np': allowed.CONSTANTS, 'math': allowed.MATH_CONSTANTS}
_FUNCTIONS = {
    'np': allowed.FUNCTIONS,
    'math': allowed.MATH,
    'np.linalg': allowed.LINALG,
}
# Methods -> arguments that may stand without a name.
_POSITIONAL = allowed.METHODS | dict.fromkeys(allowed.UFUNC_METHODS, 2)
# Methods that take a dtype -> its place.
_DTYPE_OF = {'astype': 0, 'sum': 1, 'mean': 1, 'std': 1, 'var': 1}


def _imported(alias: ast.alias) -> str | None:
  """Return the name that an allowed import binds, None for any other."""
  name = alias.asname or alias.name
  return name if grammar.IMPORTS.get(alias.name) == name else None


def _is_plain(node: ast.expr) -> bool:
  """Return whether it is a constant, a negative one, or a tuple of them."""
  if isinstance(node, ast.UnaryOp):
    node = node.operand
  if isinstance(node, ast.Tuple):
    return all(map(_is_plain, node.elts))
  return isinstance(node, ast.Constant)


def _check_pad(call: ast.Call) -> _Found:
  modes = [k.value for k in call.keywords if k.arg == 'mode']
  for mode in (*call.args[2:3], *modes):
    if not isinstance(mode, ast.Constant) or mode.value not in grammar.PADS:
      listed = ', '.join(sorted(grammar.PADS))
      yield call.lineno, f'np.pad takes its mode as a text, one of {listed}'


def _dtypes(call: ast.Call) -> list[ast.expr]:
  """Return the arguments of a call that stand where a dtype is expected."""
  found = [k.value for k in call.keywords if k.arg == 'dtype']
  index = None
  match call.func:
    case ast.Attribute(value=ast.Name(id='np'), attr=name):
      if name in allowed.FUNCTIONS:
        index = allowed.positional(name)[1]
    case ast.Attribute(attr=name):
      index = _DTYPE_OF.get(name)
  return found if index is None else found + call.args[index : index + 1]


def _shown(node: ast.expr) -> str:
  """Return a node as text; `syntax.parse` refuses what has none."""
  return ' '.join(ast.unparse(node).split())[:40]


def _check_dtype(node: ast.expr) -> _Found:
  """Allow np.float32, float, 'float32', an array's dtype, or one of two."""
  match node:
    case ast.IfExp(body=body, orelse=other):
      yield from _check_dtype(body)
      yield from _check_dtype(other)
      return
    case ast.Constant(value=value):
      fine = value is None or value in allowed.DTYPE_TEXTS
    case ast.Attribute(attr=name):
      fine = name == 'dtype' or name in allowed.DTYPES
    case _:
      fine = isinstance(node, ast.Name) and node.id in grammar.DTYPES
  if not fine:
    listed = ', '.join(sorted(allowed.DTYPE_TEXTS))
    text = f'{_shown(node)} is no dtype of numbers; use one of {listed}'
    yield node.lineno, text


def _is_harmless(node: ast.AST) -> bool:
  """Allow names and brackets in annotations: Python evaluates them."""
  match node:
    case ast.Name(id=name):
      return name in ('np', *allowed.BUILTINS)
    case ast.Attribute(value=ast.Name(), attr=name):
      return name in allowed.DTYPES | {'ndarray'}
  return isinstance(node, grammar.ANNOTATIONS)
