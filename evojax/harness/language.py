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
  found = sorted(set(_Reader(columns).read(tree)))
  lines = [f'{path} line {line}: {text}' for line, text in found]
  if len(lines) > MAX_REASONS:
    rest = len(lines) - MAX_REASONS
    lines = [*lines[:MAX_REASONS], f'{path}: and {rest} more']
  return lines


_Found = Iterator[tuple[int, str]]  # (line, what is wrong and what to do).


class _Reader:
  """Finds everything in one module that is refused."""

  def __init__(self, columns: Collection[str]):
    self._attributes = (
        frozenset(columns)
        | grammar.EVIDENCE
        | allowed.PROPERTIES
        | allowed.METHODS.keys()
    )
    self._columns = frozenset(columns) | grammar.EVIDENCE | allowed.PROPERTIES
    self._functions: dict[str, ast.FunctionDef] = {}
    self._modules: set[str] = set()
    self._imported: set[str] = set()
    self._parents: dict[ast.AST, ast.AST] = {}

  def read(self, tree: ast.Module) -> _Found:
    """Yield everything that is refused."""
    nodes = list(ast.walk(tree))
    for node in nodes:
      for child in ast.iter_child_nodes(node):
        # Load(), Add() and the like are one shared object each, so their
        # parent is the last that was seen: no check may ask for it.
        self._parents[child] = node
    skip = set()
    for node in nodes:
      for field in ('annotation', 'returns'):
        annotation = getattr(node, field, None)
        if annotation is not None:
          yield from _annotation(annotation)
          skip |= set(ast.walk(annotation))
    nodes = [node for node in nodes if node not in skip]
    for statement in tree.body:
      if isinstance(statement, ast.FunctionDef):
        if statement.name in self._functions:
          yield statement.lineno, f'{statement.name} is defined twice'
        self._functions[statement.name] = statement
      elif not isinstance(
          statement, (ast.Import, ast.Assign, ast.AnnAssign, ast.Pass)
      ) and not isinstance(statement, tuple(grammar.INSTEAD)):
        yield statement.lineno, (
            'a file holds imports, constants (NAME = value) and functions;'
            ' compute inside a function'
        )
    bound = self._bound(nodes)
    for node in nodes:
      yield from self._node(node, bound)
    yield from self._recursion()

  def _bound(self, nodes: list[ast.AST]) -> set[str]:
    """Return every name that the module binds anywhere, in any scope."""
    found = set(self._functions)
    for node in nodes:
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        found.add(node.id)
      elif isinstance(node, ast.arg):
        found.add(node.arg)
      elif isinstance(node, ast.Import):
        for alias in node.names:
          name = alias.asname or alias.name
          if grammar.IMPORTS.get(alias.name) == name:
            self._modules.add(name)
            found.add(name)
    return found

  def _node(self, node: ast.AST, bound: set[str]) -> _Found:
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
    check = getattr(self, f'_check_{kind.__name__}', None)
    if check is not None:
      yield from check(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
      yield from self._loaded(node, bound)
    if isinstance(node, grammar.LOOPS):
      depth = self._depth(node)
      if depth > grammar.MAX_LOOPS:
        # The clause of a comprehension has no line of its own.
        line = line or self._parents[node].lineno
        yield line, (
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
      name = alias.asname or alias.name
      if grammar.IMPORTS.get(alias.name) != name:
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
    parent = self._parents[node]
    return (
        isinstance(parent, ast.keyword)
        and parent.arg == 'key'
        and self._called(self._parents[parent]) in grammar.SORTERS
    )

  def _called(self, node: ast.AST) -> str:
    """Return the builtin, method or function of math that is called, or ''."""
    function = getattr(node, 'func', None)
    if isinstance(function, ast.Name) and function.id in allowed.BUILTINS:
      return function.id
    if not isinstance(function, ast.Attribute):
      return ''
    # Not NumPy: it wraps an iterator in an array of one object, unread.
    return function.attr if self._module(function) in (None, 'math') else ''

  def _check_GeneratorExp(self, node: ast.GeneratorExp) -> _Found:
    yield from self._iterator(node, 'a generator')

  def _iterator(self, node: ast.expr, name: str) -> _Found:
    """Refuse an iterator that is not consumed where it is made."""
    parent = self._parents[node]
    if isinstance(parent, ast.Starred):
      outer = self._parents[parent]
      read = isinstance(outer, grammar.TABLES) or self._called(outer) == 'zip'
    elif isinstance(parent, ast.Assign):
      read = all(isinstance(t, grammar.TABLES) for t in parent.targets)
    elif isinstance(parent, ast.Call):
      reader = self._called(parent)
      # zip consumes all of its arguments, the other readers the first.
      places = parent.args[: None if reader == 'zip' else 1]
      read = reader in grammar.READERS and any(node is a for a in places)
      # max(a, b) returns one of several arguments as it is.
      read &= reader not in grammar.SORTERS or len(parent.args) == 1
    else:
      read = isinstance(parent, grammar.LOOPS)
    if not read:
      yield node.lineno, (
          f'{name} may stand in a loop, or alone in list(), sum(), any(), ...;'
          ' make a list of it'
      )

  def _check_Expr(self, node: ast.Expr) -> _Found:
    value = node.value
    if isinstance(value, ast.Constant) and value.value is Ellipsis:
      return
    method = isinstance(value, ast.Call) and isinstance(
        value.func, ast.Attribute
    )
    if not method and not isinstance(value, tuple(grammar.INSTEAD)):
      yield node.lineno, 'this line has no effect; take it out'

  # -------------------------------------------------------------- expressions

  def _check_arg(self, node: ast.arg) -> _Found:
    yield from self._binds(node.arg, node.lineno)

  def _check_Name(self, node: ast.Name) -> _Found:
    if isinstance(node.ctx, ast.Store):
      yield from self._binds(node.id, node.lineno)

  def _binds(self, name: str, line: int) -> _Found:
    if name.startswith('__'):
      yield line, f'{name}: names do not begin with two underscores'
    elif name in allowed.BUILTINS or name in grammar.IMPORTS.values():
      yield line, f'{name} means something already; give yours another name'
    elif name in self._functions and self._functions[name].lineno != line:
      yield line, f'{name} is a function of this file; give yours another name'

  def _loaded(self, node: ast.Name, bound: set[str]) -> _Found:
    name, parent = node.id, self._parents[node]
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
    elif name.startswith('__') or name not in bound:
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
    parent = self._parents[node]
    if isinstance(parent, ast.keyword):
      return parent.arg == 'dtype'
    if isinstance(parent, ast.IfExp):
      return self._is_dtype(parent)
    if isinstance(parent, ast.Call):
      return node in _dtypes(parent)
    parent = self._beyond_tuple(node)
    numbers = isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Name) and node.id in grammar.DTYPES
    )
    return (
        numbers
        and isinstance(parent, ast.Compare)
        and isinstance(parent.left, ast.Attribute)
        and parent.left.attr == 'dtype'
    )

  def _is_type(self, node: ast.expr) -> bool:
    """Return whether a node is a type that isinstance compares with."""
    parent = self._beyond_tuple(node)
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id == 'isinstance'
    )

  def _beyond_tuple(self, node: ast.expr) -> ast.AST:
    """Return the parent, or the parent of the tuple that the node is in."""
    parent = self._parents[node]
    return self._parents[parent] if isinstance(parent, ast.Tuple) else parent

  def _check_Attribute(self, node: ast.Attribute) -> _Found:
    name, line = node.attr, node.lineno
    if not isinstance(node.ctx, ast.Load):
      yield line, f'.{name} is set; evidence and arrays keep their attributes'
      return
    if name.startswith('_'):
      yield line, f'.{name} begins with an underscore; it is not yours'
      return
    module = self._module(node)
    if module is None:
      yield from self._of_value(node)
      return
    parent = self._parents[node]
    called = self._is_called(node)
    if module == 'np' and name == 'linalg':
      if not isinstance(parent, ast.Attribute):
        yield line, 'np.linalg is no value; name what you need of it'
    elif module == 'np' and name in allowed.CONSTANTS:
      pass
    elif module == 'np' and name in allowed.DTYPES:
      if not (called or self._is_dtype(node) or self._is_type(node)):
        yield line, f'np.{name} may be called, or be a dtype'
    elif module == 'np' and name == 'ndarray' and self._is_type(node):
      pass
    elif module == 'math' and name in ('e', 'inf', 'nan', 'pi', 'tau'):
      pass
    elif name not in _OF[module]:
      text = f'{module}.{name} is not on the list of what may be used'
      yield line, allowed.INSTEAD.get(name, text) if module == 'np' else text
    elif not called and not (
        name in allowed.BINARY
        and isinstance(parent, ast.Attribute)
        and parent.attr in allowed.UFUNC_METHODS
    ):
      yield line, f'{module}.{name} may only be called'

  def _module(self, node: ast.Attribute) -> str | None:
    """Return 'np', 'math' or 'np.linalg' if the attribute belongs to one."""
    value = node.value
    if isinstance(value, ast.Name) and value.id in self._modules:
      return value.id
    if (
        isinstance(value, ast.Attribute)
        and value.attr == 'linalg'
        and self._module(value) == 'np'
    ):
      return 'np.linalg'
    return None

  def _of_value(self, node: ast.Attribute) -> _Found:
    """Check an attribute of evidence, an array, a string, a list or a dict."""
    name, value = node.attr, node.value
    if (
        name in allowed.UFUNC_METHODS
        and isinstance(value, ast.Attribute)
        and self._module(value) == 'np'
        and value.attr in allowed.BINARY
    ):
      return
    if name not in self._attributes:
      yield node.lineno, (
          f'.{name} is neither a column of the evidence nor an attribute that a'
          ' function may use'
      )
      return
    called = self._is_called(node)
    # max(counts, key=counts.get) is a common idiom.
    called |= name == 'get' and self._is_key(node)
    if not called and name not in self._columns:
      yield node.lineno, f'.{name} may only be called'

  def _check_Call(self, node: ast.Call) -> _Found:
    line = node.lineno
    starred = any(isinstance(a, ast.Starred) for a in node.args)
    # zip(*pairs) transposes pairs, and zip has no argument to smuggle in.
    if (starred and self._called(node) != 'zip') or any(
        k.arg is None for k in node.keywords
    ):
      yield line, 'arguments with * or ** hide what is passed; name them'
    named = {k.arg for k in node.keywords}
    function = node.func
    if isinstance(function, ast.Name) and function.id in self._functions:
      arguments = self._functions[function.id].args
      taken = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
      for name in sorted(filter(None, named - taken)):
        yield line, f'{function.id} takes no {name}='
      return
    if isinstance(function, ast.Attribute):
      name = function.attr
      module = self._module(function)
      if name in ('format', 'format_map') and module is None:
        yield line, "use an f-string: f'share_{name}'"
      yield from self._arguments(node, module, name)
    elif not isinstance(function, ast.Name):
      yield line, 'only functions that have a name may be called'
    elif function.id in grammar.ITERATORS:
      yield from self._iterator(node, f'{function.id}()')
    elif function.id == 'dict':
      return  # The keywords of dict() are its keys.
    for name in sorted(filter(None, named - allowed.KEYWORDS)):
      yield line, (
          'out= writes into memory that is not its own; assign the result'
          if name == 'out'
          else f'{name}= is not on the list of what may be passed'
      )

  def _arguments(self, node: ast.Call, module: str | None, name: str) -> _Found:
    """Check positional arguments, `where`, the mode of a pad, and dtypes."""
    line, count = node.lineno, len(node.args)
    shown = f'{module or ""}.{name}'
    if module == 'np' and name in allowed.FUNCTIONS:
      most, _ = allowed.positional(name)
    elif module is None and name in allowed.UFUNC_METHODS:
      most = 2
    elif module is None:
      most = allowed.METHODS.get(name, count)
    else:
      most = count
    if count > most:
      yield line, f'{shown} takes {most} arguments without a name, not {count}'
    for keyword in node.keywords:
      if keyword.arg == 'where' and name not in allowed.REDUCTIONS:
        yield line, (
            f'{shown} with where= leaves the rest uninitialised; use np.where'
        )
    if module == 'np' and name == 'pad':
      modes = [k.value for k in node.keywords if k.arg == 'mode']
      for mode in (*node.args[2:3], *modes):
        if not isinstance(mode, ast.Constant) or mode.value not in grammar.PADS:
          yield line, (
              'np.pad takes its mode as a text, one of'
              f' {", ".join(sorted(grammar.PADS))}'
          )
    for value in _dtypes(node):
      yield from _check_dtype(value)

  def _check_Constant(self, node: ast.Constant) -> _Found:
    value = node.value
    if isinstance(value, (complex, bytes)):
      yield node.lineno, f'{type(value).__name__} constants are refused'
    elif (
        isinstance(value, (int, float)) and not abs(value) <= grammar.MAX_NUMBER
    ):
      # A literal such as 1e999 is infinite, and NaN compares as false.
      yield node.lineno, (
          f'a number is larger than {grammar.MAX_NUMBER:g}; np.inf is the'
          ' largest'
      )
    elif isinstance(value, str) and len(value) > grammar.MAX_TEXT:
      yield node.lineno, (
          f'a text of {len(value)} characters, more than {grammar.MAX_TEXT}; a'
          ' function holds rules, not answers'
      )

  def _check_BinOp(self, node: ast.BinOp) -> _Found:
    text = isinstance(node.left, ast.JoinedStr) or (
        isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    )
    if isinstance(node.op, ast.Mod) and text:
      yield node.lineno, "use an f-string: f'share_{name}'"
    elif isinstance(node.op, ast.Pow):
      for side in (node.left, node.right):
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Pow):
          yield node.lineno, 'a power of a power; multiply the exponents'
    elif isinstance(node.op, ast.LShift):
      yield node.lineno, '<< makes numbers of any size; multiply'

  def _check_FormattedValue(self, node: ast.FormattedValue) -> _Found:
    if node.format_spec is not None:
      yield node.lineno, 'formats in f-strings are refused; round the number'
    if node.conversion not in (-1, ord('s')):
      yield node.lineno, '!r and !a are refused; write the value alone'

  # ---------------------------------------------------------------- recursion

  def _recursion(self) -> _Found:
    """Refuse functions that reach themselves: they may never return."""
    calls = {
        name: {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and node.id in self._functions
        }
        for name, function in self._functions.items()
    }
    for name, function in self._functions.items():
      reached, open_ = set(), list(calls[name])
      while open_:
        other = open_.pop()
        if other not in reached:
          reached.add(other)
          open_ += calls[other]
      if name in reached:
        yield function.lineno, (
            f'{name} calls itself; use `for ... in range(n)`'
        )


_OF = {
    'np': allowed.FUNCTIONS,
    'math': allowed.MATH,
    'np.linalg': allowed.LINALG,
}


def _is_plain(node: ast.expr) -> bool:
  """Return whether it is a constant, a negative one, or a tuple of them."""
  if isinstance(node, ast.UnaryOp):
    node = node.operand
  if isinstance(node, ast.Tuple):
    return all(map(_is_plain, node.elts))
  return isinstance(node, ast.Constant)


def _dtypes(call: ast.Call) -> list[ast.expr]:
  """Return the arguments of a call that stand where a dtype is expected."""
  found = [k.value for k in call.keywords if k.arg == 'dtype']
  if not isinstance(call.func, ast.Attribute):
    return found
  name, value = call.func.attr, call.func.value
  if isinstance(value, ast.Name) and value.id == 'np':
    if name not in allowed.FUNCTIONS:
      return found
    index = allowed.positional(name)[1]
  else:
    index = {'astype': 0, 'sum': 1, 'mean': 1, 'std': 1, 'var': 1}.get(name)
  if index is not None and index < len(call.args):
    found.append(call.args[index])
  return found


def _shown(node: ast.expr) -> str:
  """Return a node as text; `syntax.parse` refuses what has none."""
  return ' '.join(ast.unparse(node).split())[:40]


def _check_dtype(node: ast.expr) -> _Found:
  """Allow np.float32, float, 'float32', an array's dtype, or one of two."""
  if isinstance(node, ast.IfExp):
    yield from _check_dtype(node.body)
    yield from _check_dtype(node.orelse)
    return
  if isinstance(node, ast.Constant):
    fine = node.value is None or node.value in allowed.DTYPE_TEXTS
  elif isinstance(node, ast.Attribute):
    fine = node.attr == 'dtype' or node.attr in allowed.DTYPES
  else:
    fine = isinstance(node, ast.Name) and node.id in grammar.DTYPES
  if not fine:
    yield node.lineno, (
        f'{_shown(node)} is no dtype of numbers; use one of'
        f' {", ".join(sorted(allowed.DTYPE_TEXTS))}'
    )


def _annotation(node: ast.expr) -> _Found:
  """Allow names and brackets only: Python evaluates annotations."""
  for part in ast.walk(node):
    plain = isinstance(part, grammar.ANNOTATIONS)
    if isinstance(part, ast.Name):
      plain = part.id in ('np', *allowed.BUILTINS)
    elif isinstance(part, ast.Attribute):
      plain = isinstance(part.value, ast.Name) and (
          part.attr in allowed.DTYPES | {'ndarray'}
      )
    if not plain:
      yield node.lineno, (f'the annotation {_shown(node)} is run; leave it out')
      return
