"""The arguments that harness functions may pass in calls."""

import ast
from collections.abc import Collection, Iterator
import string

from evojax.harness import grammar
from evojax.harness import module as module_lib
from evojax.harness import numpy_names as allowed
from evojax.harness import python_names as names

# Methods that take a dtype -> position of that argument.
_DTYPE_OF = {'astype': 0, 'sum': 1, 'mean': 1, 'std': 1, 'var': 1}

# Functions that return a new array, to which nothing else refers.
_MAKERS = frozenset(
    f'numpy.{name}'
    for name in (
        'array copy full full_like ones ones_like zeros zeros_like'.split()
    )
)

_Found = Iterator[tuple[int, str]]  # (line, what is wrong and the remedy).


class Reader:
  """Finds the calls of one module that are refused.

  Attributes:
    dtypes: All expressions in places where a dtype is expected.
  """

  def __init__(self, module: module_lib.Module, columns: Collection[str]):
    """Record the arguments that the module's functions take.

    Args:
      module: The module.
      columns: Names of all attributes of evidence and arrays.
    """
    self._m, self._columns = module, columns
    self._taken = {
        a.arg
        for node in module.nodes
        if isinstance(node, ast.arguments)
        for a in (*node.posonlyargs, *node.args, *node.kwonlyargs)
    }
    self.dtypes = {
        value
        for node in module.nodes
        if isinstance(node, ast.Call)
        for value in self._dtypes_of(node)
    }

  def check(self, node: ast.Call) -> _Found:
    line, full = node.lineno, self._m.full(node.func)
    module, name = module_lib.split(full)
    named = {k.arg for k in node.keywords}
    # np.subtract(*np.percentile(x, [75, 25])) has no third argument to hide.
    starred = any(
        isinstance(a, ast.Starred)
        and not self._m.full(getattr(a.value, 'func', a)).startswith('numpy.')
        for a in node.args
    )
    match node.func:
      case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call():
        pass
      case ast.Lambda():
        pass
      case _:
        yield line, 'only functions that have a name may be called'
    if own := self._m.own(node):
      yield from self._own_call(node, own, named)
      return
    called = getattr(node.func, 'id', '')
    if called in self._m.classes or full in ('dict', 'collections.Counter'):
      return  # The keywords are fields, or keys.
    method = ''
    if not full and isinstance(node.func, ast.Attribute):
      method = node.func.attr
      own = self._m.methods.get(method, [])
      named -= {a.arg for m in own for a in (*m.args.args, *m.args.kwonlyargs)}
    array = module.startswith('numpy') or method in allowed.OF_ARRAYS
    if starred and array and self._most(node, full, method) < 9:
      yield line, 'arguments with * hide what is passed; name them'
    if None in named and (full or method) and method not in self._m.methods:
      yield line, 'arguments with ** hide what is passed; name them'
    if method in ('format', 'format_map'):
      yield from _check_format(node)
      return
    count, most = len(node.args), self._most(node, full, method)
    if count > most and method not in self._m.methods:
      text = f'takes {most} arguments without a name, not {count}'
      shown = f'np.{name}' if module == 'numpy' else f'.{method}'
      yield line, f'{shown} {text}'
    yield from self._keywords(node, full, method, named - {None})
    if full == 'numpy.pad':
      yield from _check_pad(node)
    if full in ('getattr', 'hasattr'):
      yield from self._check_getattr(node)
    for value in self._dtypes_of(node):
      yield from self._check_dtype(value)

  def _own_call(self, node: ast.Call, own, named) -> _Found:
    called = node.func.id
    if any(function.args.kwarg for function in own):
      return
    taken = {
        a.arg
        for f in own
        for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)
    }
    for other in sorted(named - taken - {None}):
      yield node.lineno, f'{called} takes no {other}='

  def _most(self, node: ast.Call, full: str, method: str) -> int:
    """Return how many arguments may be passed by position."""
    module, name = module_lib.split(full)
    if module == 'numpy' and '.' in name:
      return 2  # np.maximum.reduce(x, 1)
    if module == 'numpy' and name in allowed.FUNCTIONS:
      return allowed.positional(name)[0]
    return allowed.METHODS.get(method, 99)

  def _keywords(
      self, node: ast.Call, full: str, method: str, named: set[str]
  ) -> _Found:
    line, (module, name) = node.lineno, module_lib.split(full)
    ufunc = module == 'numpy' and name in allowed.UNARY | allowed.BINARY
    reduces = (method or name) in allowed.REDUCTIONS
    shown = f'np.{name}' if module == 'numpy' else full or f'.{method}'
    if ufunc and 'out' in named:
      out = next(k.value for k in node.keywords if k.arg == 'out')
      if self._is_new(out):
        named -= {'out', 'where'}
    if 'where' in named and not reduces and (full or method):
      yield line, (
          f'{shown} with where= leaves the rest uninitialised; use np.where, or'
          ' give out=np.zeros_like(...) as well'
      )
    known = allowed.KEYWORDS
    if full == 'numpy.errstate':
      known = grammar.FLOAT_ERRORS
      for keyword in node.keywords:
        value = getattr(keyword.value, 'value', None)
        if value not in grammar.FLOAT_REACTIONS:
          yield line, f"np.errstate takes {keyword.arg}='ignore' or 'warn'"
    elif full == 'dataclasses.replace':
      known = self._m.attributes
    elif full == 'functools.partial' or not (full or method):
      # The callee is unknown, so each accepted keyword is allowed.
      known = grammar.OF_ANY | self._taken | self._m.attributes
      known -= grammar.RISKY
    for other in sorted(named - known):
      yield line, (
          'out= writes into memory that is not its own; assign the result'
          if other == 'out'
          else f'{other}= is not on the list of what may be passed'
      )

  def _is_new(self, node: ast.expr) -> bool:
    """Return whether it is an array made by this function, and never None."""
    match node:
      case ast.Name():
        key = self._m.key(node)
        made = self._m.assigned.get(key, [])
        return len(made) == self._m.bound[key] > 0 and all(
            map(self._is_made, made)
        )
    return self._is_made(node)

  def _is_made(self, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
      return False
    method = getattr(node.func, 'attr', '')
    full = self._m.full(node.func)
    return full in _MAKERS or not full and method in ('astype', 'copy')

  def _check_getattr(self, node: ast.Call) -> _Found:
    match node.args:
      case [_, ast.Constant(value=str(name)), *_] if (
          not name.startswith('_')
          and name.isascii()
          and (
              name in self._columns
              or name
              in self._m.attributes - self._m.methods.keys() - names.LEADING
          )
      ):
        return
      case [_, ast.Constant(value=str(name)), *_]:
        text = f'{name} is neither a column of the evidence nor your attribute'
        yield node.lineno, text
      case _:
        yield node.lineno, (
            f'{node.func.id} takes the name as a text; e[name] reads a column'
            ' whose name is computed'
        )

  def _dtypes_of(self, call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call in places where a dtype is expected."""
    found = [k.value for k in call.keywords if k.arg == 'dtype']
    module, name = module_lib.split(self._m.full(call.func))
    index = None
    if module == 'numpy' and name in ('finfo', 'iinfo'):
      index = 0
    elif module == 'numpy' and name in allowed.FUNCTIONS:
      index = allowed.positional(name)[1]
    elif not module and isinstance(call.func, ast.Attribute):
      index = _DTYPE_OF.get(call.func.attr)
    found += [] if index is None else call.args[index : index + 1]
    # The list grows while it is read, as both branches of a choice are dtypes.
    for node in found:
      if isinstance(node, ast.IfExp):
        found += [node.body, node.orelse]
    return found

  def _check_dtype(self, node: ast.expr) -> _Found:
    """Allow np.float32, float, 'float32', an array's dtype, or a choice."""
    match node:
      case ast.IfExp():
        return  # Its branches are checked separately.
      case ast.Constant(value=value):
        fine = value is None or value in allowed.DTYPE_TEXTS
      case _:
        module, name = module_lib.split(self._m.full(node))
        fine = (
            name in allowed.DTYPES
            if module == 'numpy'
            else (
                name in grammar.DTYPES or getattr(node, 'attr', '') == 'dtype'
            )
        )
    if not fine:
      listed = ', '.join(sorted(allowed.DTYPE_TEXTS))
      text = f'{shown(node)} is not a dtype of numbers; use one of {listed}'
      yield node.lineno, text


def _check_format(call: ast.Call) -> _Found:
  """Allow '{:.2f} {name}'.format(x, name=y): no attributes, no items."""
  value = getattr(call.func.value, 'value', None)
  fine = isinstance(value, str) and call.func.attr == 'format'
  try:
    parsed = list(string.Formatter().parse(value)) if fine else []
  except ValueError:
    fine, parsed = False, []
  for _, field, spec, conversion in parsed:
    plain = field is None or field == '' or field.isalnum()
    fine = fine and plain and not conversion and '{' not in (spec or '')
  if not fine:
    yield call.lineno, "use an f-string: f'share_{name}'"


def _check_pad(call: ast.Call) -> _Found:
  modes = [k.value for k in call.keywords if k.arg == 'mode']
  for mode in (*call.args[2:3], *modes):
    if not isinstance(mode, ast.Constant) or mode.value not in grammar.PADS:
      listed = ', '.join(sorted(grammar.PADS))
      yield call.lineno, f'np.pad takes its mode as a text, one of {listed}'


def shown(node: ast.expr) -> str:
  """Return a node as text; `syntax.parse` has refused nodes without one."""
  return ' '.join(ast.unparse(node).split())[:40]
