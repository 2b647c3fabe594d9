"""Kinds of values in a source: plain ones, functions, iterators or objects.

The text of a function, an iterator or an object, and its position in a set,
show a memory address, which differs from run to run. So such a value may be
called, looped over, named, returned and passed on, but not converted to text,
nor passed to code that could do so. The kinds are found from the tree, without
regard to the order of lines: a name that is bound to a function anywhere within
an outermost function counts as a function everywhere in it.
"""

import ast
from collections.abc import Collection, Iterator

from evojax.harness import module as module_lib
from evojax.harness import numpy_names
from evojax.harness import python_names as names

# Numbers, strings, arrays and containers of these.
PLAIN = 0
# A value that shows an address itself, but holds or yields only plain values:
# an iterator, a match, an instance of a class, a method.
OPAQUE = 1
# A function, or anything that may hold a value that is not plain.
NESTED = 2

# Functions that return functions and types, which cannot change.
MAKERS = frozenset(
    ('collections.namedtuple', 'functools.partial', 'operator.itemgetter')
)
# Functions that return a decorator, or the description of a field.
_DECORATING = frozenset(
    ('dataclasses.dataclass', 'dataclasses.field', 'functools.cache')
    + ('functools.lru_cache',)
)
# Functions that return values that are not plain.
_MAKING = (
    MAKERS
    | names.ITERATORS
    | {f're.{name}' for name in (*names.MATCHES, 'finditer')}
    | {'collections.defaultdict'}
)


class Kinds:
  """The kind of each expression: PLAIN, OPAQUE or NESTED."""

  def __init__(self, module: module_lib.Module, columns: Collection[str]):
    """Determine the kinds of all names and of the functions' results.

    Args:
      module: The module.
      columns: Names of attributes of plain values that are plain, too.
    """
    self._m, self._columns = module, columns
    self.names: dict[module_lib.Key, int] = {}
    self._returns: dict[ast.AST, int] = {}
    self._passed = list(self._find_passed())
    handed = [n for n in module.nodes if not module.is_called(n)]
    handed = [n for n in handed if isinstance(n, ast.Name | ast.Attribute)]
    self._makes = PLAIN
    if any(getattr(n, 'id', '') in module.classes for n in handed):
      self._makes = OPAQUE
    if any(module.full(n) in _MAKING for n in handed):
      self._makes = NESTED
    forth = module.nodes
    while True:
      before = dict(self.names), dict(self._returns)
      self._seen: dict[ast.AST, int] = {}
      for node in forth:
        self._learn(node)
      if before == (self.names, self._returns):
        return
      # A name that is used above its definition needs a pass backwards.
      forth = forth[::-1]

  def _find_passed(self) -> Iterator[ast.AST]:
    """Yield the functions that may be called under another name."""
    m = self._m
    for node in m.nodes:
      match node:
        case ast.Name(ctx=ast.Load()) if not m.is_called(node):
          for key in m.keys(node):
            yield from m.functions.get(key, ())
        case ast.Lambda():
          known = sum(m.functions.values(), [])
          if not any(node is function for function in known):
            yield node
        case ast.FunctionDef():
          if not any(node in f for f in m.functions.values()):
            yield node

  # ------------------------------------------------------------------ learning

  def _learn(self, node: ast.AST) -> None:
    match node:
      case ast.Assign(targets=targets, value=value):
        for target in targets:
          self._bind(target, value)
      case ast.AnnAssign(
          target=target, value=ast.expr() as value
      ) | ast.NamedExpr(target=target, value=value):
        self._bind(target, value)
      case ast.AugAssign(target=ast.Name() as target, value=value):
        self._raise(target, NESTED if self.kind(value) == NESTED else PLAIN)
      case ast.For(target=target, iter=read):
        self._bind_read(target, read)
      case ast.comprehension(target=target, iter=read):
        self._bind_read(target, read)
      case ast.ExceptHandler(name=str(name)):
        self._raise_key((self._m.scope(node), name), OPAQUE)
      case ast.Return(value=ast.expr() as value):
        self._return(self._m.function(node), self.kind(value))
      case ast.Yield(value=value):
        nested = value is not None and self.kind(value)
        self._return(self._m.function(node), NESTED if nested else OPAQUE)
      case ast.YieldFrom(value=value):
        self._return(self._m.function(node), max(OPAQUE, self.kind(value)))
      case ast.Lambda(body=body):
        self._return(node, self.kind(body))
        self._defaults(node)
      case ast.FunctionDef(name=name):
        if not isinstance(self._m.parents[node], ast.ClassDef):
          self._raise_key((self._m.scope(node), name), NESTED)
        self._defaults(node)
      case ast.Call():
        for function in self._m.own(node):
          self._pass(node, function)
        self._pass_match(node)

  def _return(self, function: ast.AST, kind: int) -> None:
    self._returns[function] = max(kind, self._returns.get(function, PLAIN))

  def _raise(self, target: ast.Name, kind: int) -> None:
    self._raise_key(self._m.key(target), kind)

  def _raise_key(self, key: module_lib.Key, kind: int) -> None:
    self.names[key] = max(kind, self.names.get(key, PLAIN))

  def _bind(self, target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Tuple | ast.List):
      if (
          isinstance(value, ast.Tuple | ast.List)
          and len(value.elts) == len(target.elts)
          and not any(
              isinstance(n, ast.Starred) for n in (*value.elts, *target.elts)
          )
      ):
        for one, other in zip(target.elts, value.elts, strict=True):
          self._bind(one, other)
        return
      self._spread(target, _element(self.kind(value)))
    elif isinstance(target, ast.Name):
      self._raise(target, self.kind(value))

  def _spread(self, target: ast.expr, kind: int) -> None:
    """Bind a target to the kind of an element of such a value."""
    match target:
      case ast.Name():
        self._raise(target, kind)
      case ast.Starred(value=value):
        self._spread(value, kind)
      case ast.Tuple(elts=targets) | ast.List(elts=targets):
        for one in targets:
          self._spread(one, kind)

  def _bind_read(self, target: ast.expr, read: ast.expr) -> None:
    """Bind the target of a loop; the first of a pair may be plain."""
    kind = _element(self.kind(read))
    match target, read:
      case ast.Tuple(elts=[first, second]), ast.Call():
        full, method = self._m.full(read.func), getattr(read.func, 'attr', '')
        items = method == 'items' and method not in self._m.methods
        if full == 'enumerate' or not full and items:
          self._spread(first, PLAIN)
          self._spread(second, kind)
          return
        if full == 'itertools.groupby':
          plain = all(self.kind(a) <= OPAQUE for a in read.args[:1])
          self._spread(first, PLAIN if plain else NESTED)
          self._spread(second, OPAQUE if plain else NESTED)
          return
    self._spread(target, kind)

  def _defaults(self, node: ast.FunctionDef | ast.Lambda) -> None:
    a, scope = node.args, self._inner(node)
    plain = [*a.posonlyargs, *a.args]
    named = plain[len(plain) - len(a.defaults) :]
    pairs = zip(
        (*named, *a.kwonlyargs), (*a.defaults, *a.kw_defaults), strict=True
    )
    for argument, value in pairs:
      if value is not None:
        self._raise_key((scope, argument.arg), self.kind(value))
    parent = self._m.parents[node]
    if isinstance(parent, ast.ClassDef) and plain:
      kind = self._instance(parent.name)
      decorated = {getattr(d, 'id', '') for d in node.decorator_list}
      if 'classmethod' in decorated:
        kind = NESTED
      if 'staticmethod' not in decorated:
        self._raise_key((scope, plain[0].arg), kind)

  def _inner(self, node: ast.AST) -> ast.AST:
    return self._m.scope(node) or node

  def _pass_match(self, call: ast.Call) -> None:
    """Give the function that re.sub calls a match as its argument."""
    place = {'sub': 0, 'subn': 0}.get(getattr(call.func, 'attr', ''))
    place = {'re.sub': 1, 're.subn': 1}.get(self._m.full(call.func), place)
    if place is None:
      return
    for value in call.args[place : place + 1]:
      found = [value] if isinstance(value, ast.Lambda) else self._m.meant(value)
      for function in found:
        for parameter in function.args.args[:1]:
          key = self._inner(function), parameter.arg
          self._raise_key(key, OPAQUE)

  def _pass(self, call: ast.Call, function: ast.FunctionDef | ast.Lambda):
    """Give the parameters of a function the kinds of the arguments."""
    a, scope = function.args, self._inner(function)
    plain = [*a.posonlyargs, *a.args]
    rest = (scope, a.vararg.arg) if a.vararg else None
    places = [(scope, p.arg) for p in plain]
    every = [*places, *((scope, p.arg) for p in a.kwonlyargs)]
    for i, value in enumerate(call.args):
      kind = self.kind(value)
      if not kind:
        continue
      if isinstance(value, ast.Starred):
        for key in (*every, *filter(None, [rest])):
          self._raise_key(key, _element(kind))
      elif i < len(places):
        self._raise_key(places[i], kind)
      elif rest:
        self._raise_key(rest, NESTED)
    for keyword in call.keywords:
      kind = self.kind(keyword.value)
      if kind and (scope, keyword.arg) in every:
        self._raise_key((scope, keyword.arg), kind)
      elif kind and a.kwarg:
        self._raise_key((scope, a.kwarg.arg), NESTED)

  # --------------------------------------------------------------------- kinds

  def kind(self, node: ast.expr) -> int:
    """Return the kind of an expression."""
    if node not in self._seen:
      self._seen[node] = PLAIN  # Ends recursion through a cycle of names.
      self._seen[node] = self._kind(node)
    return self._seen[node]

  def _most(self, nodes) -> int:
    return max((self.kind(n) for n in nodes if n is not None), default=PLAIN)

  def _kind(self, node: ast.expr) -> int:
    match node:
      case ast.Name(id=name):
        if name in self._m.classes:
          return NESTED
        if module_lib.is_function(self._m.full(node)):
          return NESTED
        found = (self.names.get(k, PLAIN) for k in self._m.keys(node))
        return max(found, default=PLAIN)
      case ast.Lambda():
        return NESTED
      case ast.Attribute():
        return self._of_attribute(node)
      case ast.Call():
        return self._of_call(node)
      case ast.IfExp(body=body, orelse=other):
        return self._most((body, other))
      case ast.BoolOp(values=values):
        return self._most(values)
      case ast.NamedExpr(value=value) | ast.Starred(value=value):
        return self.kind(value)
      case ast.List(elts=held) | ast.Tuple(elts=held) | ast.Set(elts=held):
        return NESTED if any(map(self.held, held)) else PLAIN
      case ast.Dict(keys=keys, values=held):
        spread = [v for k, v in zip(keys, held, strict=True) if k is None]
        held = [v for k, v in zip(keys, held, strict=True) if k is not None]
        return NESTED if self._most(held) else _element(self._most(spread))
      case ast.ListComp(elt=held) | ast.SetComp(elt=held):
        return NESTED if self.kind(held) else PLAIN
      case ast.DictComp(value=held):
        return NESTED if self.kind(held) else PLAIN
      case ast.GeneratorExp(elt=held):
        return NESTED if self.kind(held) else OPAQUE
      case ast.Subscript(value=value):
        return _element(self.kind(value))
      case ast.BinOp(left=left, right=right):
        return _element(self._most((left, right)))
    return PLAIN

  def held(self, node: ast.expr) -> int:
    """Return the kind of the value that an entry or an argument gives."""
    match node:
      case ast.Starred(
          value=ast.GeneratorExp(elt=held) | ast.ListComp(elt=held)
      ):
        return self.kind(held)
      case ast.Starred(value=value):
        return _element(self.kind(value))
    return self.kind(node)

  def _of_attribute(self, node: ast.Attribute) -> int:
    full, called = self._m.full(node), self._m.is_called(node)
    if full:
      return NESTED if module_lib.is_function(full) else PLAIN
    if called:
      return PLAIN  # `_of_call` handles its result.
    if node.attr in self._columns and not self.kind(node.value):
      return PLAIN
    # A method may be meant instead of a field or a property of the same name.
    least = OPAQUE if node.attr in numpy_names.METHODS else PLAIN
    if node.attr in self._m.methods:
      if not all(map(_is_property, self._m.methods[node.attr])):
        return NESTED
      return max(least, self._own_method(node.attr))
    return least if node.attr in self._m.attributes else least and NESTED

  def _own_method(self, name: str) -> int:
    return max(self._returns.get(m, PLAIN) for m in self._m.methods[name])

  def result(self, function: ast.expr) -> int:
    """Return the kind of the result of a function that is passed on."""
    if isinstance(function, ast.Lambda):
      return self._returns.get(function, PLAIN)
    if isinstance(function, ast.Constant):
      return PLAIN
    if module_lib.is_function(full := self._m.full(function)):
      return NESTED if full in _MAKING else PLAIN
    if known := self._m.meant(function):
      return max(self._returns.get(f, PLAIN) for f in known)
    if (name := getattr(function, 'id', '')) in self._m.classes:
      return self._instance(name)
    return self._unknown()

  def _instance(self, name: str) -> int:
    """Return the kind of a class's instances; records show their fields."""
    return PLAIN if self._m.is_record(name) else OPAQUE

  def _class_of(self, node: ast.expr) -> str:
    """Return the class that `cls` stands for in its methods; '' otherwise."""
    method = self._m.scope(node)
    match method, self._m.parents.get(method), node:
      case (
          ast.FunctionDef(args=ast.arguments(args=[first, *_])),
          ast.ClassDef(name=name),
          ast.Name(id=called),
      ) if (
          called == first.arg and self._m.bound[method, called] == 1
      ):
        decorators = {getattr(d, 'id', '') for d in method.decorator_list}
        return name if 'classmethod' in decorators else ''
    return ''

  def _unknown(self) -> int:
    """Return the kind of the result of a function that could be any one."""
    found = [self._returns.get(f, PLAIN) for f in self._passed]
    return max([*found, self._makes])

  def _of_call(self, node: ast.Call) -> int:
    function, m = node.func, self._m
    if own := m.own(node):
      return max(self._returns.get(f, PLAIN) for f in own)
    if isinstance(function, ast.Name) and function.id in m.classes:
      return self._instance(function.id)
    if name := self._class_of(function):
      return self._instance(name)
    if full := m.full(function):
      return self._of_known(node, full)
    if isinstance(function, ast.Attribute):
      method, kind = function.attr, self.kind(function.value)
      found = self._own_method(method) if method in m.methods else PLAIN
      if method in names.MATCHES or method == 'elements':
        found = max(found, OPAQUE)
      if method == 'finditer' or kind == NESTED and method in names.GETTERS:
        found = NESTED
      return max(found, kind) if method == 'copy' else found
    return self._unknown()

  def _of_known(self, node: ast.Call, full: str) -> int:
    """Return the kind of the result of a function outside the source."""
    place, taken, passed = names.TAKERS.get(full), PLAIN, list(node.args)
    if place is not None and len(passed) > place:
      taken = self.result(passed.pop(place))
    most = max(map(self.held, passed), default=PLAIN)
    module, _, name = full.rpartition('.')
    if module == 're' and name in names.MATCHES:
      return OPAQUE
    if full in MAKERS or full == 're.finditer':
      return NESTED
    if full in _DECORATING:  # The field of a class is no value of the source.
      around = self._m.parents[self._m.parents[node]]
      field = full == 'dataclasses.field' and isinstance(around, ast.ClassDef)
      return PLAIN if field else NESTED
    if full in ('numpy.finfo', 'numpy.iinfo'):
      return OPAQUE
    if full == 'collections.defaultdict':
      types = self._m.full(node.args[0]) if node.args else 'list'
      if taken:
        return NESTED
      return PLAIN if types in ('', *names.BUILTINS) and types else OPAQUE
    if full in names.ITERATORS:
      nested = taken or most == NESTED or full == 'itertools.groupby'
      return NESTED if nested else OPAQUE
    if full == 'getattr' and len(node.args) > 1:
      name = getattr(node.args[1], 'value', '')
      return NESTED if name in numpy_names.METHODS else PLAIN
    if full in ('max', 'min') and len(node.args) > 1:
      return most
    if full == 'next' and len(node.args) > 1:
      return max(_element(self.kind(node.args[0])), self.kind(node.args[1]))
    if full == 'functools.reduce':
      return max(taken, _element(most))
    return NESTED if full in names.PASSING and most == NESTED else PLAIN


def _element(kind: int) -> int:
  """Return the kind of the elements of a value of some kind."""
  return NESTED if kind == NESTED else PLAIN


def _is_property(method: ast.FunctionDef) -> bool:
  return any(getattr(d, 'id', '') == 'property' for d in method.decorator_list)
