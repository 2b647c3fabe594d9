"""The part of Python that a harness function is written in.

This is an allow-list of node types (`grammar`), names, attributes, arguments
and functions (`python_names`, `numpy_names`), and of the places where
functions, iterators and objects may occur (`standing`). Anything else is
refused with a remedy. The source is only parsed, never run.

Faults that the box contains anyway (endless loops, wrong answers, crashes) are
not looked for. Refused is what would make an answer differ from run to run, and
what would give access from a value to the interpreter around it.

A function that compares groups with each other has to declare it by name:

    ACROSS_GROUPS = ('rank',)    # Parts of reward.py; 'keep', 'weight'.
"""

import ast
from collections.abc import Collection, Iterator

from evojax.harness import arguments
from evojax.harness import definitions
from evojax.harness import grammar
from evojax.harness import module as module_lib
from evojax.harness import numpy_names as allowed
from evojax.harness import parts as parts_lib
from evojax.harness import python_names as names
from evojax.harness import standing
from evojax.harness import syntax

ACROSS = parts_lib.ACROSS
MAX_REASONS = 8  # Lines about one source; more would not be read.


def reasons(path: str, source: str, columns: Collection[str]) -> list[str]:
  """Return the reasons to refuse a source, one line each; [] if there are none.

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


_Found = Iterator[tuple[int, str]]  # (line, what is wrong and the remedy).


class _Reader:
  """Finds everything in one module that is refused."""

  def __init__(self, tree: ast.Module, columns: Collection[str]):
    """Record the definitions, imports and bindings of the module."""
    self._tree = tree
    self._m = module_lib.Module(tree)
    self._parents = self._m.parents
    self._columns = frozenset(columns) | grammar.EVIDENCE | allowed.PROPERTIES
    self._bound = {name for _, name in self._m.bound} | {'self'}
    self._arguments = arguments.Reader(self._m, self._columns)
    self._definitions = definitions.Reader(tree, self._m)
    self._binds = self._definitions.binds
    self._check_FunctionDef = self._definitions.check_function
    self._check_Lambda = self._definitions.check_lambda
    self._check_ClassDef = self._definitions.check_class
    self._check_Call = self._arguments.check

  def read(self) -> _Found:
    """Yield everything that is refused."""
    found = [*self._statements(), *self._definitions.recursion()]
    for node in self._m.nodes:
      found += self._node(node)
    yield from found
    if found:  # The values of refused nodes cannot be analysed.
      return
    reader = standing.Reader(self._m, self._columns)
    for node, why in reader.refused(self._arguments.dtypes):
      yield node.lineno, f'{arguments.shown(node)} {why}'
    for statement in self._tree.body:
      if getattr(statement, 'name', '') == 'parts':
        for node in reader.shared(statement):
          yield node.lineno, (
              f'{node.id} may be read once, and parts share it; make a list of'
              ' it, or name it in a function above'
          )

  def _statements(self) -> _Found:
    """Yield what is refused at the top level of the file and in annotations."""
    for annotation in self._m.annotations:
      if not all(map(self._is_harmless, ast.walk(annotation))):
        text = f'the annotation {arguments.shown(annotation)} is run'
        yield annotation.lineno, f'{text}; leave it out'
    defined = set()
    for statement in self._tree.body:
      if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        if statement.name in defined:
          yield statement.lineno, f'{statement.name} is defined twice'
        defined.add(statement.name)
      elif not isinstance(statement, (*grammar.TOP, *grammar.INSTEAD)):
        yield statement.lineno, (
            'a file holds imports, constants (NAME = value), functions and'
            ' classes; compute inside a function'
        )

  def _node(self, node: ast.AST) -> _Found:
    line = getattr(node, 'lineno', 0)
    kind = type(node)
    if not isinstance(node, grammar.ALLOWED):
      if kind in grammar.INSTEAD:
        yield line, f'no {grammar.INSTEAD[kind]}'
      elif isinstance(self._parents[node], grammar.ALLOWED):
        # The parts of a refused statement are not reported again.
        yield line, f'{kind.__name__} is not allowed here'
    for name in (getattr(node, field, None) for field in grammar.NAMED):
      if isinstance(name, str) and not name.isascii():
        yield line, f'{name} is not ASCII; write names in a-z, 0-9 and _'
    if check := getattr(self, f'_check_{kind.__name__}', None):
      yield from check(node)
    if isinstance(node, grammar.LOOPS) and (
        (depth := self._depth(node)) > grammar.MAX_LOOPS
    ):
      # The clause of a comprehension has no line number of its own.
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
    """Count the loops around a loop, including itself, up to the function."""
    depth = 1
    if isinstance(node, ast.comprehension):
      parent = self._parents[node]
      depth, node = 1 + parent.generators.index(node), parent
    while node in self._parents and not isinstance(node, ast.FunctionDef):
      node = self._parents[node]
      if isinstance(node, ast.For | ast.While):
        depth += 1
      elif isinstance(node, grammar.COMPREHENSIONS):
        depth += len(node.generators)
    return depth

  # --------------------------------------------------------------- statements

  def _check_Import(self, node: ast.Import) -> _Found:
    for alias in node.names:
      name = alias.asname or alias.name.split('.')[0]
      if alias.name in names.MODULES - {'__future__'}:
        yield from self._imports(name, alias.name, node.lineno)
      else:
        yield node.lineno, module_lib.no_module(alias.name)

  def _check_ImportFrom(self, node: ast.ImportFrom) -> _Found:
    module = node.module or '.'
    if module not in names.MODULES:
      shown = '.' * node.level + (node.module or '')
      yield node.lineno, module_lib.no_module(shown)
      return
    for alias in node.names:
      full = f'{module}.{alias.name}'
      if alias.name == '*':
        text = f'from {module} import * hides what is used; name it'
        yield node.lineno, text
      elif self._is_listed(full) or full in names.MODULES:
        yield from self._imports(alias.asname or alias.name, full, node.lineno)
      else:
        yield node.lineno, module_lib.no_name(full)

  def _imports(self, name: str, full: str, line: int) -> _Found:
    usual = {'np': 'numpy', 'math': 'math'}
    if (
        name in self._bound
        or name in self._m.clashes
        or usual.get(name, full) != full
    ):
      yield line, f'{name} means something else, too; import it as another name'

  def _is_listed(self, full: str) -> bool:
    module, name = module_lib.split(full)
    listed = (names.FUNCTIONS, names.CONSTANTS, names.TYPES)
    return (
        any(name in table.get(module, ()) for table in listed)
        or full in names.ERRORS
        or module == 'numpy'
        and name in allowed.DTYPES
    )

  def _check_Try(self, node: ast.Try) -> _Found:
    if node.finalbody:
      yield node.finalbody[0].lineno, (
          'finally is not allowed, since it may hide a lack of memory; code'
          ' after a try runs anyway'
      )

  def _check_ExceptHandler(self, node: ast.ExceptHandler) -> _Found:
    listed = 'except ZeroDivisionError, ValueError, KeyError, ... or Exception'
    if node.name:
      yield from self._binds(node.name, node.lineno)
    if node.type is None:
      text = 'except: also catches a lack of memory; write'
      yield node.lineno, f'{text} {listed}'
      return
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    for kind in kinds:
      name = getattr(kind, 'id', '')
      full = self._m.full(kind)
      alone = name == 'Exception' and kind is node.type
      if not (alone or name in names.EXCEPTIONS or full in names.ERRORS):
        text = f'{arguments.shown(kind)} may not be caught; write {listed}'
        yield kind.lineno, text

  def _check_Raise(self, node: ast.Raise) -> _Found:
    match node.exc:
      case None | ast.Name() | ast.Call(func=ast.Name()):
        name = getattr(getattr(node.exc, 'func', node.exc), 'id', '')
        if name in self._bound or name in (*names.RAISED, ''):
          return
    text = f'{arguments.shown(node.exc)} may not be raised; use ValueError'
    yield node.lineno, text

  def _check_With(self, node: ast.With) -> _Found:
    for item in node.items:
      call = item.context_expr
      fine = isinstance(call, ast.Call) and not call.args
      if not fine or self._m.full(call.func) != 'numpy.errstate':
        text = "no with but np.errstate(divide='ignore'); nothing is opened"
        yield node.lineno, text

  def _check_Expr(self, node: ast.Expr) -> _Found:
    match node.value:
      case ast.Call() | ast.Yield() | ast.YieldFrom():
        return  # Such a call may change a list or an array.
      case ast.Constant(value=value) if value is Ellipsis:
        return
    if not isinstance(node.value, tuple(grammar.INSTEAD)):
      yield node.lineno, 'this line has no effect; take it out'

  # -------------------------------------------------------------- expressions

  def _check_Yield(self, node: ast.Yield | ast.YieldFrom) -> _Found:
    if not isinstance(self._m.function(node), ast.FunctionDef):
      yield node.lineno, 'yield is only allowed in a function with a name'

  _check_YieldFrom = _check_Yield

  def _check_arg(self, node: ast.arg) -> _Found:
    function = self._parents[self._parents[node]]
    if node.arg == 'self' and isinstance(function, ast.FunctionDef):
      first = (*function.args.posonlyargs, *function.args.args)[:1]
      method = isinstance(self._parents[function], ast.ClassDef)
      if node in first and method:
        return
    yield from self._binds(node.arg, node.lineno)

  def _check_Name(self, node: ast.Name) -> _Found:
    name, line, parent = node.id, node.lineno, self._parents[node]
    if not isinstance(node.ctx, ast.Load):
      if not self._m.is_field(node):
        yield from self._binds(name, line)
      elif name.startswith('__'):
        yield line, f'{name}: names do not begin with two underscores'
      return
    if name in self._m.imports:
      full = self._m.full(node)
      if not isinstance(parent, ast.Attribute):
        yield from self._uses(node, full)
      return
    if name in names.ONLY_CALLED and not self._m.is_called(node):
      yield line, f'{name} may only be called'
    elif name in _SHADOWED and name in self._bound and not self._m.full(node):
      value = isinstance(parent, grammar.HANDED_ON)
      if isinstance(parent, ast.Call):
        value = not self._m.full(parent.func).startswith('numpy.')
      if value and (None, name) not in self._m.bound:
        yield line, f'{name} means something already; give yours another name'
    if name in self._bound or name in names.BUILTINS:
      if name in self._m.classes and isinstance(parent, ast.Attribute):
        if not all(map(_is_of_class, self._m.methods.get(parent.attr, ()))):
          yield line, (
              f'{name}.{parent.attr} needs an instance of {name}, or'
              ' @classmethod or @staticmethod above the method'
          )
      return
    if name in self._m.aliases:
      yield line, f'{name} is a type; use it only in annotations'
    elif name in names.DECORATORS and node in getattr(
        parent, 'decorator_list', ()
    ):
      return
    elif name in (*names.RAISED, 'Exception'):
      around = self._beyond_tuple(node)
      raised = isinstance(around, ast.Raise)
      raised |= isinstance(self._parents[parent], ast.Raise)
      if not isinstance(around, ast.ExceptHandler) and not raised:
        yield line, f'{name} is only allowed after except and raise'
    elif isinstance(self._beyond_tuple(node), ast.ExceptHandler | ast.Raise):
      return  # The statement itself is refused.
    elif name in names.NOT_BUILTIN:
      yield line, f'no {name}: {names.NOT_BUILTIN[name]}'
    else:
      yield line, (
          f'there is no {name}; a function may use what it imports, its'
          ' arguments, what it defines, and'
          f' {", ".join(sorted(names.BUILTINS))}'
      )

  def _beyond_tuple(self, node: ast.expr) -> ast.AST:
    """Return the parent, or the parent of the tuple that the node is in."""
    parent = self._parents[node]
    return self._parents[parent] if isinstance(parent, ast.Tuple) else parent

  def _uses(self, node: ast.expr, full: str) -> _Found:
    """Check the use of a name from a module."""
    line, (module, name) = node.lineno, module_lib.split(full)
    called = self._m.is_called(node)
    around = self._beyond_tuple(node)
    isinstance_ = (
        isinstance(around, ast.Call)
        and self._m.full(around.func) == 'isinstance'
    )
    compared = isinstance(around, ast.Compare)
    base = isinstance(around, ast.ClassDef) and node in around.bases
    if not module:  # Any other import is refused elsewhere.
      method = full.partition('.')[2]
      if method and not module_lib.is_function(full):
        if full.partition('.')[0] in names.BUILTINS:
          yield line, f'{full} may not be used; write x.{method}(...)'
      return
    if full in names.MODULES:
      text = f'{arguments.shown(node)} is a module; name what you need of it'
      yield line, text
    elif module_lib.is_constant(full):
      return
    elif full in names.ERRORS:
      if not isinstance(around, ast.ExceptHandler):
        yield line, f'{full} may only be caught'
    elif module == 'numpy' and name in allowed.DTYPES:
      passed = isinstance(around, ast.Call) and self._is_taken(node, around)
      if not (called or isinstance_ or compared or passed or self._typed(node)):
        yield line, f'np.{name} may be called, or be a dtype'
    elif full == 'numpy.errstate':
      if not isinstance(self._parents[self._parents[node]], ast.withitem):
        yield line, allowed.INSTEAD['errstate']
    elif module_lib.is_function(full):
      if module == 'numpy' and not called and name not in allowed.PASSED:
        if '.' not in name:
          yield line, (
              f'np.{name} may only be called; write lambda x: np.{name}(x)'
          )
    elif name in names.TYPES.get(module, ()):
      if not (base or isinstance_):
        text = allowed.INSTEAD.get(name) if module == 'numpy' else None
        yield line, text or f'{name} is only allowed in annotations'
    else:
      yield line, module_lib.no_name(full)

  def _is_taken(self, node: ast.expr, call: ast.Call) -> bool:
    place = names.TAKERS.get(self._m.full(call.func))
    return place is not None and node in call.args[place : place + 1]

  def _typed(self, node: ast.expr) -> bool:
    """Return whether a node is in a place where a dtype is expected."""
    parent = self._parents[node]
    if isinstance(parent, ast.IfExp):
      return self._typed(parent)
    return node in self._arguments.dtypes

  def _check_Attribute(self, node: ast.Attribute) -> _Found:
    name, line, full = node.attr, node.lineno, self._m.full(node)
    parent, called = self._parents[node], self._m.is_called(node)
    own = name in self._m.attributes
    if not isinstance(node.ctx, ast.Load):
      if not isinstance(node.value, ast.Name) or node.value.id != 'self':
        yield line, f'.{name} is set; evidence and arrays keep their attributes'
      elif name.startswith('__'):
        yield line, f'.{name} means something already; take another name'
    elif name.startswith('_') and (
        name.startswith('__') or not own and name not in grammar.OF_NAMEDTUPLES
    ):
      yield line, f'.{name} begins with an underscore; it is not yours'
    elif full:
      outer = self._m.full(node.value)
      if outer not in names.MODULES and not module_lib.is_function(outer):
        return  # The inner node's own check refuses it.
      inner = isinstance(parent, ast.Attribute) and self._m.full(parent)
      if inner and (full in names.MODULES or module_lib.is_function(inner)):
        return  # The outer node is checked when it is visited.
      yield from self._uses(node, full)
    elif name in self._columns:
      return
    elif own and name in names.LEADING:
      yield line, (
          f'.{name} is an attribute of Python or NumPy as well; give yours'
          ' another name'
      )
    elif own or self._is_limit(node):
      return
    elif name not in allowed.METHODS and name not in grammar.OF_NAMEDTUPLES:
      near = module_lib.near(name, self._columns | set(allowed.METHODS))
      yield line, (
          f'.{name} is neither a column of the evidence nor an attribute that'
          f' a function may use{near}'
      )
    elif not called and not self._is_passed(node):
      yield line, f'.{name} may only be called'

  def _is_limit(self, node: ast.Attribute) -> bool:
    """Return whether it is a limit such as np.finfo(dtype).eps."""
    fine = node.attr in ('eps', 'max', 'min', 'tiny')
    limits = ('numpy.finfo', 'numpy.iinfo')
    return fine and self._m.full(getattr(node.value, 'func', node)) in limits

  def _is_passed(self, node: ast.Attribute) -> bool:
    """Return whether it is passed as key=, as in max(x, key=x.get)."""
    match self._parents[node]:
      case ast.keyword(arg='key'):
        return node.attr == 'get'
    return False

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
      case left, ast.Pow(), right:
        operators = (getattr(side, 'op', None) for side in (left, right))
        if any(isinstance(op, ast.Pow) for op in operators):
          yield node.lineno, 'a power of a power; multiply the exponents'
      case _, ast.LShift(), _:
        yield node.lineno, '<< makes numbers of any size; multiply'

  def _is_harmless(self, node: ast.AST) -> bool:
    """Allow names and brackets in annotations, which Python evaluates."""
    match node:
      case ast.Name(id=name):
        if name in self._m.imports:
          return True
        own = name in self._m.aliases or name in self._m.classes
        return own or name in names.BUILTINS
      case ast.Attribute():
        full = self._m.full(node)
        return full in names.MODULES or self._is_listed(full)
    return isinstance(node, grammar.ANNOTATIONS)


# Builtins whose names an older source may bind to values of its own.
_SHADOWED = frozenset(('filter', 'iter', 'map'))


def _is_of_class(method: ast.FunctionDef) -> bool:
  """Return whether a method needs no instance."""
  decorators = {getattr(d, 'id', '') for d in method.decorator_list}
  return bool(decorators & {'classmethod', 'staticmethod'})
