"""The places in a source where functions, iterators and objects may occur.

Each may be called, looped over, named, returned and passed on, but not
converted to text, nor passed to code that could do so; see `values`.
"""

import ast
from collections.abc import Collection, Iterator

from evojax.harness import module as module_lib
from evojax.harness import python_names as names
from evojax.harness import values

OPAQUE, NESTED = values.OPAQUE, values.NESTED
_FIXED = (ast.Lambda, ast.Name, ast.Attribute, ast.List, ast.Tuple, ast.Dict)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)


class Reader:
  """Finds values in places of a module where they are not allowed."""

  def __init__(self, module: module_lib.Module, columns: Collection[str]):
    """Determine the kinds of all values; see `values.Kinds`."""
    self._m, self._kinds = module, values.Kinds(module, columns)

  def refused(
      self, dtypes: Collection[ast.expr]
  ) -> Iterator[tuple[ast.expr, str]]:
    """Yield (node, reason) for values that could be converted to text.

    Args:
      dtypes: Expressions in places where a dtype is expected.
    """
    for node in self._m.nodes:
      if not isinstance(node, ast.expr) or isinstance(node, ast.Starred):
        continue
      if node in dtypes:
        continue
      if isinstance(getattr(node, 'ctx', None), ast.Store | ast.Del):
        continue
      kind = self._kinds.kind(node)
      if kind and not self._may_stand(node, self._m.parents[node], kind):
        yield node, self._remedy(node, kind)

  def shared(self, function: ast.FunctionDef) -> Iterator[ast.Name]:
    """Yield names in `parts` of iterators that one part could use up."""
    m = self._m
    for node in m.nodes:
      if not isinstance(node, ast.Name) or m.scope(node) is not function:
        continue
      key = m.key(node)
      if key[0] is not function or not self._kinds.names.get(key):
        continue
      made = m.assigned.get(key, [])
      fixed = len(made) == m.bound[key] and all(map(self._stays, made))
      if key not in m.functions and not fixed:
        yield node

  def _stays(self, value: ast.expr) -> bool:
    """Return whether a value is a function or an instance of a class."""
    m = self._m
    if not isinstance(value, ast.Call):
      return isinstance(value, ast.Lambda | ast.Name)
    name = getattr(value.func, 'id', '')
    if name in m.classes or m.full(value.func) in values.MAKERS:
      return True
    returned = [
        n.value
        for function in m.own(value)
        for n in ast.walk(function)
        if isinstance(n, ast.Return) and m.parents[n] is function
    ]
    return bool(returned) and all(
        isinstance(v, ast.Lambda)
        or isinstance(v, ast.Name)
        and m.key(v) in m.functions
        for v in returned
    )

  def _remedy(self, node: ast.expr, kind: int) -> str:
    made = getattr(self._m.parents[node], 'arg', '') == 'default_factory'
    if made or self._is_field(node):
      return (
          'would be shown by the text of an instance; a field holds numbers and'
          ' texts, and a method calls a function by its name'
      )
    if self._m.scope(node) is None and not isinstance(node, ast.Lambda):
      return 'is made once and shared by all calls; make it in the function'
    if isinstance(node, ast.Attribute) and kind == OPAQUE:
      return (
          'may be a method of an array, whose text differs from run to run;'
          ' give the field another name'
      )
    function = isinstance(node, ast.Lambda) or (
        isinstance(node, ast.Name | ast.Attribute)
        and (module_lib.is_function(self._m.full(node)) or kind == NESTED)
    )
    if function:
      return (
          'is a function, whose text differs from run to run; it may be called,'
          ' be named, and be handed to map, key= or a function of yours'
      )
    if kind == NESTED:
      return (
          'may hold a function or an iterator, whose text differs from run to'
          ' run; call it, loop over it, or name what you need of it'
      )
    return (
        'is an iterator or an object, whose text differs from run to run; loop'
        ' over it, make a list of it, or name what you need of it'
    )

  def _is_field(self, node: ast.expr) -> bool:
    """Return whether it is the value of a field in the body of a class."""
    parent = self._m.parents[node]
    return isinstance(parent, ast.Assign | ast.AnnAssign) and isinstance(
        self._m.parents[parent], ast.ClassDef
    )

  def _may_stand(self, node: ast.expr, parent: ast.AST, kind: int) -> bool:
    """Return whether a value that is not plain is allowed in its place."""
    if self._is_field(node):
      return False
    if isinstance(parent, ast.Starred):
      node, parent = parent, self._m.parents[parent]
      kind = self._kinds.held(node)
      if not kind:
        return True
    if self._m.scope(node) is None and not self._is_fixed(node):
      decorates = isinstance(parent, ast.FunctionDef | ast.ClassDef)
      if not decorates and not self._m.is_called(node):
        return isinstance(parent, ast.Attribute | ast.Call | ast.keyword)
    match parent:
      case ast.Call():
        return parent.func is node or self._may_pass(parent, node, kind)
      case ast.keyword(arg=name):
        call = self._m.parents[parent]
        if not isinstance(call, ast.Call):
          return False
        if name in ('func', 'default_factory') and self._kinds.result(node):
          return False  # Its result would be used unchecked.
        return name is not None and bool(
            self._m.own(call)
            or self._m.full(call.func) in names.TAKEN.get(name, ())
            or name == 'key'
            and getattr(call.func, 'attr', '') == 'sort'
        )
      case ast.Assign(targets=targets):
        return all(_is_named(t, kind) for t in targets)
      case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
        return _is_named(target, kind)
      case ast.Dict(values=held):
        return any(v is node for v in held)
      case ast.DictComp(value=value):
        return value is node
      case ast.BinOp(op=op):
        fine = isinstance(op, _ARITHMETIC)
        joined = isinstance(op, ast.Add | ast.Mult)
        return fine and (kind == OPAQUE or joined)
      case ast.UnaryOp(op=op):
        return kind == OPAQUE or isinstance(op, ast.Not)
      case ast.FormattedValue(conversion=-1, format_spec=ast.JoinedStr() as s):
        # Such a value supports no format, so a format makes it fail. One that
        # is computed may be empty.
        written = any(isinstance(v, ast.Constant) and v.value for v in s.values)
        return kind == OPAQUE and written
      case ast.Subscript(value=value):
        return value is node
      case ast.Lambda() | ast.arguments():
        return True
      case ast.Attribute(attr='sort'):
        return kind == OPAQUE  # Its key= would receive functions.
    return isinstance(
        parent,
        ast.Attribute | ast.For | ast.comprehension | ast.NamedExpr | ast.Return
        | ast.IfExp | ast.BoolOp | ast.If | ast.While | ast.Assert | ast.Compare
        | ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp | ast.Expr
        | ast.ExceptHandler | ast.Raise | ast.FunctionDef | ast.ClassDef
        | ast.Yield | ast.YieldFrom,
    )  # fmt: skip

  def _is_fixed(self, node: ast.expr) -> bool:
    """Return whether a value at the top level of a file cannot change."""
    if isinstance(node, ast.Call):
      full = self._m.full(node.func)
      return full in values.MAKERS
    return isinstance(node, _FIXED)

  def _may_pass(self, call: ast.Call, node: ast.expr, kind: int) -> bool:
    """Return whether an argument of a call may be a value that is not plain."""
    if self._m.own(call):
      return True
    full = self._m.full(call.func)
    place = next(i for i, a in enumerate(call.args) if a is node)
    if not full:
      method = getattr(call.func, 'attr', '')
      if method in self._m.methods:
        return False
      if kind == NESTED:
        return method in ('sub', 'subn') and place == 0
      return method in names.READING_METHODS
    if names.TAKERS.get(full) == place:
      # The function receives its own results.
      again = full in ('functools.reduce', 'itertools.accumulate')
      return not (again and self._kinds.result(node))
    if kind == OPAQUE and full in names.SAFE and place == 0:
      return True
    if kind == NESTED and any(k.arg in names.TAKEN for k in call.keywords):
      return False  # The function in key= would receive functions.
    fine = kind == OPAQUE or full in names.PASSING
    if full not in names.READERS or not fine:
      return False
    places = names.READERS[full]
    return places is None or place in places


def _is_named(target: ast.expr, kind: int) -> bool:
  """Return whether a target is names, or extracts plain values from others."""
  match target:
    case ast.Tuple(elts=targets) | ast.List(elts=targets):
      return kind == OPAQUE or all(_is_named(t, kind) for t in targets)
    case ast.Starred(value=value):
      return _is_named(value, kind)
  return isinstance(target, ast.Name)
