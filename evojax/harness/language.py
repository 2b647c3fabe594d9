"""The part of Python that a harness function is written in.

An allow-list: of node types, names, attributes, arguments and what may be
called. What is not on it is refused, with what to write instead. It is read off
the syntax tree; nothing is run.

A function that compares groups with each other says so by name:

    ACROSS_GROUPS = ('rank',)    # Parts of reward.py; 'keep', 'weight'.
"""

import ast
from collections.abc import Collection, Iterator

from evojax.harness import numpy_names as allowed
from evojax.harness import syntax

ACROSS = syntax.ACROSS
MAX_LOOPS = 3  # Inside each other, comprehensions included.
MAX_ITEMS = 64  # Of a table that is written down.
MAX_NUMBER = 10**9
MAX_TEXT = 200  # Characters of a text, docstrings apart.
MAX_REASONS = 8
_IMPORTS = {'numpy': 'np', 'math': 'math'}
_EVIDENCE = frozenset(('codes', 'columns', 'max_tokens', 'valid'))
_STATEMENTS = (
    ast.FunctionDef,
    ast.Return,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.For,
    ast.If,
    ast.Import,
    ast.Expr,
    ast.Pass,
    ast.Break,
    ast.Continue,
)
_EXPRESSIONS = (
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.IfExp,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Compare,
    ast.Call,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Constant,
    ast.Attribute,
    ast.Subscript,
    ast.Starred,
    ast.Name,
    ast.List,
    ast.Tuple,
    ast.Slice,
    ast.Lambda,
)
_PARTS = (
    ast.Module,
    ast.arguments,
    ast.arg,
    ast.alias,
    ast.keyword,
    ast.comprehension,
    ast.expr_context,
    ast.boolop,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
)
_ALLOWED = (*_STATEMENTS, *_EXPRESSIONS, *_PARTS)
_NAMED = ('id', 'attr', 'arg', 'name', 'asname')  # Fields of nodes.
_LOOPS = (ast.For, ast.comprehension)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_TABLES = (ast.List, ast.Tuple, ast.Set, ast.Dict)
# What comes out of these is read once and, as text, shows where it lies in
# memory: it is read where it is made.
_ITERATORS = frozenset(('enumerate', 'reversed', 'zip'))
_READERS = frozenset(
    'all any dict enumerate extend fsum join list max min prod set sorted sum'
    ' tuple union update zip'.split()
)
_DTYPES = frozenset(('bool', 'float', 'int'))  # As NumPy's.
# Of np.pad: 'empty' leaves memory unwritten, and a function would be called.
_PADS = frozenset(
    'constant edge maximum mean median minimum reflect symmetric wrap'.split()
)
_SORTERS = frozenset(('max', 'min', 'sort', 'sorted'))  # They take a key=.
_INSTEAD = {
    ast.While: 'while may never end; use `for ... in range(n)`',
    ast.ClassDef: 'classes; use functions and dicts',
    ast.AsyncFunctionDef: 'async; a function runs alone',
    ast.Await: 'await; a function runs alone',
    ast.With: 'with; there is nothing to open, and evojax silences warnings',
    ast.Try: 'try; test what may fail before it does',
    ast.Raise: 'raise; return {} or zeros where nothing can be said',
    ast.Assert: 'assert; return {} or zeros where nothing can be said',
    ast.Match: 'match; use if and ==',
    ast.NamedExpr: ':=; assign on a line of its own',
    ast.Global: 'global; a function remembers nothing, `keep` returns a state',
    ast.Nonlocal: 'nonlocal; a function remembers nothing',
    ast.Delete: 'del; nothing needs it',
    ast.ImportFrom: 'from ... import; write `import numpy as np`',
    ast.Yield: 'yield; build a list',
    ast.YieldFrom: 'yield from; build a list',
}


def reasons(path: str, source: str, columns: Collection[str]) -> list[str]:
  """Why a source is refused, one line each; nothing if it is not.

  Args:
    path: In the harness, e.g. 'reward.py'.
    source: Python.
    columns: Of the evidence; they are attributes of `e`.
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
  """Reads one module."""

  def __init__(self, columns: Collection[str]):
    self._attributes = (
        frozenset(columns)
        | _EVIDENCE
        | allowed.PROPERTIES
        | allowed.METHODS.keys()
    )
    self._columns = frozenset(columns) | _EVIDENCE | allowed.PROPERTIES
    self._functions: dict[str, ast.FunctionDef] = {}
    self._modules: set[str] = set()
    self._imported: set[str] = set()
    self._parents: dict[ast.AST, ast.AST] = {}

  def read(self, tree: ast.Module) -> _Found:
    """Everything that is refused."""
    nodes = list(ast.walk(tree))
    for node in nodes:
      for child in ast.iter_child_nodes(node):
        # One object stands for every Load(), Add(), ...
        self._parents[child] = node
    skip = set()
    for node in nodes:
      if isinstance(node, ast.FunctionDef):
        for annotation in (node.returns, *(a.annotation for a in _all(node))):
          if annotation is not None:
            yield from _annotation(annotation)
            skip |= set(ast.walk(annotation))
      elif isinstance(node, ast.AnnAssign):
        yield from _annotation(node.annotation)
        skip |= set(ast.walk(node.annotation))
    nodes = [node for node in nodes if node not in skip]
    for statement in tree.body:
      if isinstance(statement, ast.FunctionDef):
        if statement.name in self._functions:
          yield statement.lineno, f'{statement.name} is defined twice'
        self._functions[statement.name] = statement
      elif not isinstance(
          statement, (ast.Import, ast.Assign, ast.AnnAssign, ast.Pass)
      ) and not isinstance(statement, tuple(_INSTEAD)):
        yield statement.lineno, (
            'a file holds imports, constants (NAME = value) and functions;'
            ' compute inside a function'
        )
    bound = self._bound(nodes)
    for node in nodes:
      yield from self._node(node, bound)
    yield from self._recursion()

  def _bound(self, nodes: list[ast.AST]) -> set[str]:
    """Every name that the module binds anywhere."""
    found = set(self._functions)
    for node in nodes:
      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        found.add(node.id)
      elif isinstance(node, ast.arg):
        found.add(node.arg)
      elif isinstance(node, ast.Import):
        for alias in node.names:
          name = alias.asname or alias.name
          if _IMPORTS.get(alias.name) == name:
            self._modules.add(name)
            found.add(name)
    return found

  def _node(self, node: ast.AST, bound: set[str]) -> _Found:
    line = getattr(node, 'lineno', 0)
    kind = type(node)
    if not isinstance(node, _ALLOWED):
      if kind in _INSTEAD:
        yield line, f'no {_INSTEAD[kind]}'
      elif isinstance(self._parents[node], _ALLOWED):
        # What belongs to a statement that is refused goes with it.
        yield line, f'{kind.__name__} is not allowed here'
    for name in (getattr(node, field, None) for field in _NAMED):
      if isinstance(name, str) and not name.isascii():
        yield line, f'{name} is not ASCII; write names in a-z, 0-9 and _'
    check = getattr(self, f'_check_{kind.__name__}', None)
    if check is not None:
      yield from check(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
      yield from self._loaded(node, bound)
    if isinstance(node, _LOOPS):
      depth = self._depth(node)
      if depth > MAX_LOOPS:
        line = line or self._parents[node].lineno  # A comprehension has none.
        yield line, (
            f'{depth} loops inside each other, more than {MAX_LOOPS}; use'
            ' arrays'
        )
    if isinstance(node, _TABLES):
      items = node.keys if isinstance(node, ast.Dict) else node.elts
      if len(items) > MAX_ITEMS:
        yield line, (
            f'a table of {len(items)} items, more than {MAX_ITEMS}; a function'
            ' holds rules, not answers'
        )

  def _depth(self, node: ast.AST) -> int:
    """Loops that a loop is in, itself included, up to the function."""
    depth = 1
    if isinstance(node, ast.comprehension):
      parent = self._parents[node]
      depth, node = 1 + parent.generators.index(node), parent
    while node in self._parents and not isinstance(node, ast.FunctionDef):
      node = self._parents[node]
      if isinstance(node, ast.For):
        depth += 1
      elif isinstance(node, _COMPREHENSIONS):
        depth += len(node.generators)
    return depth

  # --------------------------------------------------------------- statements

  def _check_Import(self, node: ast.Import) -> _Found:
    for alias in node.names:
      name = alias.asname or alias.name
      if _IMPORTS.get(alias.name) != name:
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

  def _is_key(self, node: ast.expr) -> bool:
    """Whether it is the key= of something that calls it and drops it."""
    parent = self._parents[node]
    return (
        isinstance(parent, ast.keyword)
        and parent.arg == 'key'
        and self._called(self._parents[parent]) in _SORTERS
    )

  def _called(self, node: ast.AST) -> str:
    """The builtin, method or function of math that a call is of, or ''."""
    function = getattr(node, 'func', None)
    if isinstance(function, ast.Name) and function.id in allowed.BUILTINS:
      return function.id
    if not isinstance(function, ast.Attribute):
      return ''
    # NumPy makes an array of one object of whatever it does not know.
    return function.attr if self._module(function) in (None, 'math') else ''

  def _check_GeneratorExp(self, node: ast.GeneratorExp) -> _Found:
    yield from self._iterator(node, 'a generator')

  def _iterator(self, node: ast.expr, name: str) -> _Found:
    """Refuses an iterator that is not read where it is made."""
    parent = self._parents[node]
    if isinstance(parent, ast.Starred):
      outer = self._parents[parent]
      read = isinstance(outer, _TABLES) or self._called(outer) == 'zip'
    elif isinstance(parent, ast.Assign):
      read = all(isinstance(t, _TABLES) for t in parent.targets)
    elif isinstance(parent, ast.Call):
      reader = self._called(parent)
      # Of several arguments, max returns one; zip reads them all.
      places = parent.args[: None if reader == 'zip' else 1]
      read = reader in _READERS and any(node is a for a in places)
      read &= reader not in _SORTERS or len(parent.args) == 1
    else:
      read = isinstance(parent, _LOOPS)
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
    if not method and not isinstance(value, tuple(_INSTEAD)):
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
    elif name in allowed.BUILTINS or name in _IMPORTS.values():
      yield line, f'{name} means something already; give yours another name'
    elif name in self._functions and self._functions[name].lineno != line:
      yield line, f'{name} is a function of this file; give yours another name'

  def _loaded(self, node: ast.Name, bound: set[str]) -> _Found:
    name, parent = node.id, self._parents[node]
    called = isinstance(parent, ast.Call) and parent.func is node
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
    """Whether it stands where a dtype does."""
    parent = self._parents[node]
    if isinstance(parent, ast.keyword):
      return parent.arg == 'dtype'
    if isinstance(parent, ast.IfExp):
      return self._is_dtype(parent)
    if isinstance(parent, ast.Call):
      return node in _dtypes(parent)
    parent = self._beyond_tuple(node)
    numbers = isinstance(node, ast.Attribute) or (
        isinstance(node, ast.Name) and node.id in _DTYPES
    )
    return (
        numbers
        and isinstance(parent, ast.Compare)
        and isinstance(parent.left, ast.Attribute)
        and parent.left.attr == 'dtype'
    )

  def _is_type(self, node: ast.expr) -> bool:
    """Whether it is what isinstance compares with: float, (int, float)."""
    parent = self._beyond_tuple(node)
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id == 'isinstance'
    )

  def _beyond_tuple(self, node: ast.expr) -> ast.AST:
    """What holds it, or holds the tuple that does."""
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
    called = isinstance(parent, ast.Call) and parent.func is node
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
      text = f'{_NAME[module]}.{name} is not on the list of what may be used'
      yield line, allowed.INSTEAD.get(name, text) if module == 'np' else text
    elif not called and not (
        name in allowed.BINARY
        and isinstance(parent, ast.Attribute)
        and parent.attr in allowed.UFUNC_METHODS
    ):
      yield line, f'{_NAME[module]}.{name} may only be called'

  def _module(self, node: ast.Attribute) -> str | None:
    """'np', 'math' or 'linalg', if the attribute is one of theirs."""
    value = node.value
    if isinstance(value, ast.Name) and value.id in self._modules:
      return value.id
    if (
        isinstance(value, ast.Attribute)
        and value.attr == 'linalg'
        and self._module(value) == 'np'
    ):
      return 'linalg'
    return None

  def _of_value(self, node: ast.Attribute) -> _Found:
    """An attribute of evidence, an array, a text, a list, a dict."""
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
    parent = self._parents[node]
    called = isinstance(parent, ast.Call) and parent.func is node
    # max(counts, key=counts.get) is what everyone writes.
    called |= name == 'get' and self._is_key(node)
    if not called and name not in self._columns:
      yield node.lineno, f'.{name} may only be called'

  def _check_Call(self, node: ast.Call) -> _Found:
    line = node.lineno
    starred = any(isinstance(a, ast.Starred) for a in node.args)
    # zip(*pairs) is how pairs are parted, and zip takes nothing else.
    if (starred and self._called(node) != 'zip') or any(
        k.arg is None for k in node.keywords
    ):
      yield line, 'arguments with * or ** hide what is passed; name them'
    named = {k.arg for k in node.keywords}
    function = node.func
    if isinstance(function, ast.Name) and function.id in self._functions:
      taken = {a.arg for a in _all(self._functions[function.id])}
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
    elif function.id in _ITERATORS:
      yield from self._iterator(node, f'{function.id}()')
    elif function.id == 'dict':
      return  # Its keywords are its keys.
    for name in sorted(filter(None, named - allowed.KEYWORDS)):
      text = {
          'out': (
              'out= writes into memory that is not its own; assign the result'
          ),
      }.get(name, f'{name}= is not on the list of what may be passed')
      yield line, text

  def _arguments(self, node: ast.Call, module: str | None, name: str) -> _Found:
    """Where out, where and dtype may stand."""
    line, count = node.lineno, len(node.args)
    shown = f'{_NAME[module]}.{name}' if module else f'.{name}'
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
        if not isinstance(mode, ast.Constant) or mode.value not in _PADS:
          yield line, (
              'np.pad takes its mode as a text, one of'
              f' {", ".join(sorted(_PADS))}'
          )
    for value in _dtypes(node):
      yield from _check_dtype(value)

  def _check_Constant(self, node: ast.Constant) -> _Found:
    value = node.value
    if isinstance(value, (complex, bytes)):
      yield node.lineno, f'{type(value).__name__} constants are refused'
    elif isinstance(value, (int, float)) and not abs(value) <= MAX_NUMBER:
      # Infinity is a number too large to write down.
      yield node.lineno, (
          f'a number is larger than {MAX_NUMBER:g}; np.inf is the largest'
      )
    elif isinstance(value, str) and len(value) > MAX_TEXT:
      yield node.lineno, (
          f'a text of {len(value)} characters, more than {MAX_TEXT}; a function'
          ' holds rules, not answers'
      )

  def _check_BinOp(self, node: ast.BinOp) -> _Found:
    text = isinstance(node.left, (ast.JoinedStr,)) or (
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
    """Functions that reach themselves."""
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
    'linalg': allowed.LINALG,
}
_NAME = {'np': 'np', 'math': 'math', 'linalg': 'np.linalg'}


def _all(function: ast.FunctionDef) -> list[ast.arg]:
  a = function.args
  more = [arg for arg in (a.vararg, a.kwarg) if arg is not None]
  return [*a.posonlyargs, *a.args, *a.kwonlyargs, *more]


def _is_plain(node: ast.expr) -> bool:
  """A constant, a negative one, or a tuple of them."""
  if isinstance(node, ast.UnaryOp):
    node = node.operand
  if isinstance(node, ast.Tuple):
    return all(map(_is_plain, node.elts))
  return isinstance(node, ast.Constant)


def _dtypes(call: ast.Call) -> list[ast.expr]:
  """What stands where a dtype does in a call of a function or method."""
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
  """A node in a sentence: `syntax.parse` lets pass what can be written."""
  return ' '.join(ast.unparse(node).split())[:40]


def _check_dtype(node: ast.expr) -> _Found:
  """np.float32, float, 'float32', another array's dtype, or one of two."""
  if isinstance(node, ast.IfExp):
    yield from _check_dtype(node.body)
    yield from _check_dtype(node.orelse)
    return
  if isinstance(node, ast.Constant):
    fine = node.value is None or node.value in allowed.DTYPE_TEXTS
  elif isinstance(node, ast.Attribute):
    fine = node.attr == 'dtype' or node.attr in allowed.DTYPES
  else:
    fine = isinstance(node, ast.Name) and node.id in _DTYPES
  if not fine:
    yield node.lineno, (
        f'{_shown(node)} is no dtype of numbers; use one of'
        f' {", ".join(sorted(allowed.DTYPE_TEXTS))}'
    )


def _annotation(node: ast.expr) -> _Found:
  """An annotation is run: names and brackets only."""
  for part in ast.walk(node):
    plain = isinstance(
        part,
        (ast.Subscript, ast.Tuple, ast.Constant, ast.expr_context, ast.BinOp)
        + (ast.BitOr,),
    )
    if isinstance(part, ast.Name):
      plain = part.id in ('np', *allowed.BUILTINS)
    elif isinstance(part, ast.Attribute):
      plain = isinstance(part.value, ast.Name) and (
          part.attr in allowed.DTYPES | {'ndarray'}
      )
    if not plain:
      yield node.lineno, (f'the annotation {_shown(node)} is run; leave it out')
      return
