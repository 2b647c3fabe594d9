"""Split a reward.py into its parts, and combine parts into a reward.py.

`parts` holds lines `NAME = value`, each name bound once, and returns a dict. A
part is its value in this dict, with every name, bound there or at the top
level, that the value depends on. If `parts` holds other statements, they form
one block, which belongs to each part that uses a name from it.
"""

import ast
from collections.abc import Iterator, Mapping
import dataclasses
import functools
import io
import itertools
import re
import textwrap

from evojax.harness import mutation
from evojax.harness import numpy_names
from evojax.harness import syntax
from evojax.runtime import python_source

# Name of the constant that lists parts which compare groups, see `language`.
ACROSS = 'ACROSS_GROUPS'
# With these functions a part could reach names that its tree does not show.
_DYNAMIC = frozenset(
    ('compile', 'eval', 'exec', 'globals', 'locals', 'vars', '__import__')
)
_IMPORTS = (ast.Import, ast.ImportFrom)
MAX_PARTS = 64
PART = re.compile('[a-z][a-z0-9_]{0,63}')


@dataclasses.dataclass(frozen=True)
class Reward:
  """A reward.py split into its parts."""

  values: Mapping[str, ast.expr]  # Part -> its value in the returned dict.
  names: Mapping[str, ast.AST]  # Name -> the statement that binds it.
  local: frozenset[str]  # Names bound in `parts`; the others are top-level.
  across: tuple[str, ...]  # Parts that compare groups with each other.

  def reached(self, part: str) -> list[str]:
    """Return the names that a part depends on, sorted."""
    names = syntax.names_in(self.values[part])
    return sorted(syntax.reached(names, self._uses))

  @functools.cached_property
  def _uses(self) -> dict[str, set[str]]:
    # Cached for all parts. Top-level functions see no names local to `parts`.
    return {
        name: used if name in self.local else used - self.local
        for name, used in syntax.uses(self.names).items()
    }


@functools.lru_cache(maxsize=256)
def hashes(source: str) -> Mapping[str, str]:
  """Return the parts of a reward.py, each with a hash of its computation.

  Raises:
    syntax.SourceError: See `take_apart`.
  """
  reward = take_apart(source)
  texts = {name: syntax.text_of(node) for name, node in reward.names.items()}
  return {
      part: syntax.digest(
          syntax.text_of(value), *(texts[n] for n in reward.reached(part))
      )
      for part, value in reward.values.items()
  }


def take_apart(source: str) -> Reward:
  """Read a reward.py: imports, constants, functions, and `parts`.

  Raises:
    syntax.SourceError: If it holds anything else; if `parts` does not end in
      its only `return`, of a dict with literal names; or if one part could
      change a value of another.
  """
  tree = syntax.parse('reward.py', source)
  bound: dict[str, ast.AST] = {}
  for statement in tree.body:
    found = _bound(statement)
    if found is None:
      raise syntax.error(
          statement,
          'only imports, constants (NAME = value), functions and classes can be'
          ' told apart by part',
      )
    for name, binding in found.items():
      if name in bound and name != ACROSS:
        raise syntax.error(statement, f'{name} is bound twice')
      bound[name] = binding
  across = bound.pop(ACROSS, None)
  function = bound.pop('parts', None)
  if not isinstance(function, ast.FunctionDef):
    raise syntax.SourceError(
        'reward.py: there is no function parts(e), which returns {name: [P,'
        ' G]}; see "A harness" in docs/your_own.md'
    )
  for node in ast.walk(tree):
    match node:
      case ast.Global():
        raise syntax.error(node, 'global is not allowed: a part keeps no state')
      case ast.Name(id=name) if name in _DYNAMIC:
        raise syntax.error(node, f'{name} hides the names that a part uses')
      case ast.Name(id='parts'):
        raise syntax.error(node, 'only evojax may call parts')
  *lines, returned = _with_dict(function.body)
  values = _returned(function, returned)
  local = _local(tree, lines, values, bound)
  listed = _across('reward.py', across, tuple(values))
  reward = Reward(values, bound | local, frozenset(local), listed)
  # Types of the signature, and imports, belong to no part or to all.
  used = syntax.names_in(function.args).union(*map(reward.reached, values))
  used |= syntax.names_in(function.returns) if function.returns else set()
  for name, binding in reward.names.items():
    if name not in used and not isinstance(binding, _IMPORTS):
      raise syntax.error(binding, f'{name} is used by no part; take it out')
  return reward


def _with_dict(body: list[ast.stmt]) -> list[ast.stmt]:
  """Return the body of `parts`, changed to end in the dict it returns."""
  match body:
    case [
        *lines,
        ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value),
        ast.Return(value=ast.Name(id=returned)) as end,
    ] if (
        name == returned
    ):
      return [*lines, ast.copy_location(ast.Return(value), end)]
  return body


def _local(
    tree: ast.Module,
    lines: list[ast.stmt],
    values: Mapping[str, ast.expr],
    bound: Mapping[str, ast.AST],
) -> dict[str, ast.AST]:
  """Return the names that the lines of `parts` bind, each with its statement.

  Raises:
    syntax.SourceError: If one part could change a value of another.
  """
  changes = (*mutation.found(tree, [tree]), *mutation.defaults(tree))
  found = [_bound(s) if syntax.targets(s) else None for s in lines]
  names = [name for line in found for name in line or ()]
  walrus = any(isinstance(n, ast.NamedExpr) for s in lines for n in ast.walk(s))
  if None not in found and len(set(names)) == len(names):
    if not (names and changes or walrus):
      local = {name: s for line in found for name, s in line.items()}
      for name in local.keys() & bound.keys():
        raise syntax.error(local[name], f'{name} is bound twice')
      return local
  # The statements cannot be separated, so they form one block.
  block = ast.Module(lines, [])
  local = dict.fromkeys(sorted(_stored(block)), block)
  for statement in lines:
    for node in _outside_functions(statement):
      if isinstance(node, ast.Return):
        raise syntax.error(node, _WHOLE)
  for statement in lines:
    for name in sorted(_stored(ast.Module([statement], []))):
      if name in bound:
        raise syntax.error(statement, f'{name} is bound twice')
  _refuse_in_place(tree, block, values, bound, local)
  return local


def _stored(tree: ast.AST) -> set[str]:
  """Return the names that statements bind, including inner functions'."""
  found = set()
  for node in ast.walk(tree):
    match node:
      case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
        found.add(name)
      case ast.ExceptHandler(name=str(name)):
        found.add(name)
      case ast.Import() | ast.ImportFrom():
        found |= set(_bound(node))
  return found


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
  yield node
  if not isinstance(node, ast.FunctionDef | ast.Lambda):
    for child in ast.iter_child_nodes(node):
      yield from _outside_functions(child)


def across(name: str, source: str) -> tuple[str, ...]:
  """Return the names that a source declares to compare groups.

  Args:
    name: Name of the file.
    source: Its text; `ACROSS_GROUPS = ('rank',)` names parts of a reward,
      'keep' or 'weight'.

  Raises:
    syntax.SourceError: If the declaration names anything else.
  """
  if name == 'reward.py':
    return take_apart(source).across
  bound = {}
  for statement in syntax.parse(name, source).body:
    bound |= _bound(statement) or {}
  known = {'keep.py': ('keep',), 'weight.py': ('weight',)}.get(name, ())
  return _across(name, bound.get(ACROSS), known)


def _across(
    name: str, statement: ast.stmt | None, known: tuple[str, ...]
) -> tuple[str, ...]:
  """Return the value of ACROSS_GROUPS; () without a statement."""
  if statement is None:
    return ()
  try:
    value = ast.literal_eval(statement.value)
  except (AttributeError, TypeError, ValueError):
    value = None
  if not isinstance(value, tuple) or any(v not in known for v in value):
    message = f'{ACROSS} is a tuple of texts out of {known}'
    raise syntax.error(statement, message, name)
  return value


def _bound(statement: ast.stmt) -> dict[str, ast.stmt] | None:
  """Return the names that a top-level statement binds; None if not allowed."""
  if isinstance(statement, ast.FunctionDef | ast.ClassDef):
    return {statement.name: statement}
  if getattr(statement, 'module', None) == '__future__':
    return {}  # It only concerns annotations, which compute nothing.
  if isinstance(statement, _IMPORTS):
    # One entry per name, since another import on the same line is another
    # factor.
    return {
        (alias.asname or alias.name).split('.')[0]: type(statement)(
            **{**vars(statement), 'names': [alias]}
        )
        for alias in statement.names
    }
  found = syntax.targets(statement)
  if found and all(isinstance(target, ast.Name) for target in found):
    return {target.id: statement for target in found}
  return None


_WHOLE = (
    '`parts` ends in one `return {name: value, ...}` and has no other return;'
    ' move other returns into functions above it'
)


def _refuse_walrus(node: ast.AST) -> None:
  if any(isinstance(child, ast.NamedExpr) for child in ast.walk(node)):
    raise syntax.error(node, ':= would carry a value from part to part')


def _refuse_in_place(
    tree: ast.Module,
    block: ast.Module,
    values: Mapping[str, ast.expr],
    bound: Mapping[str, ast.AST],
    local: Mapping[str, ast.AST],
) -> None:
  """Refuse in-place changes of values while the parts are returned.

  Raises:
    syntax.SourceError: If one part could change a value of another.
  """
  roots = list(values.values())
  reached_ = set().union(*(syntax.names_in(v) for v in roots))
  if any(_calls_local(n, local) for v in roots for n in ast.walk(v)):
    # A function or an object made in the block may make such a change.
    functions = ast.FunctionDef | ast.Lambda
    roots += [n for n in ast.walk(block) if isinstance(n, functions)]
    reached_ |= syntax.names_in(block)
  outer = syntax.reached(reached_ - set(local), syntax.uses(bound))
  roots += [bound[name] for name in outer]
  found = mutation.found(tree, roots)
  if any(_hands_on(n, local) for v in values.values() for n in ast.walk(v)):
    # Reading a defaultdict changes it, wherever it was made.
    found = itertools.chain(found, mutation.defaults(tree))
  for node, what in found:
    raise syntax.error(
        node,
        f'{what} changes a value in place while `parts` returns its dict, so'
        ' that one part could change another; make a new value with np.where,'
        ' or compute it in a line above the return',
    )


def _hands_on(node: ast.AST, local: Mapping[str, ast.AST]) -> bool:
  """Return whether a node reads or passes on an item bound in `parts`."""
  match node:
    case ast.Subscript(value=ast.Name(id=name)):
      return name in local
    case ast.Call(func=ast.Name(), args=args):
      return any(getattr(a, 'id', '') in local for a in args)
  return False


def _calls_local(node: ast.AST, local: Mapping[str, ast.AST]) -> bool:
  """Return whether a node calls a name of `parts`, except array methods."""
  if not isinstance(node, ast.Call):
    return False
  root = node.func
  if isinstance(root, ast.Attribute) and root.attr in numpy_names.METHODS:
    return root.attr in mutation.METHODS
  while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
    root = root.func if isinstance(root, ast.Call) else root.value
  return isinstance(root, ast.Name) and root.id in local


def _returned(
    function: ast.FunctionDef, returned: ast.stmt
) -> dict[str, ast.expr]:
  """Return the dict that `parts(e)` returns, by part.

  Args:
    function: The function `parts`.
    returned: Its last statement.

  Raises:
    syntax.SourceError: If the signature or the return value is another one.
  """
  a = function.args
  plain = not (a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg)
  if not plain or [arg.arg for arg in a.args] != ['e'] or a.defaults:
    raise syntax.error(function, 'the signature must be parts(e)')
  if function.decorator_list:
    raise syntax.error(function, 'parts must have no decorators')
  match returned:
    case ast.Return(value=ast.Dict(keys=keys, values=found)):
      pass
    case ast.Return(
        value=ast.Call(func=ast.Name('dict'), args=[], keywords=pairs)
    ):
      # dict(a=x) is {'a': x}.
      keys = [ast.Constant(pair.arg) for pair in pairs]
      found = [pair.value for pair in pairs]
    case _:
      raise syntax.error(returned, _WHOLE)
  if len(keys) > MAX_PARTS:
    text = f'{len(keys)} parts; a reward has <= {MAX_PARTS}'
    raise syntax.error(function, text)
  values: dict[str, ast.expr] = {}
  for key, value in zip(keys, found, strict=True):
    part = getattr(key, 'value', None)  # A string if the key is a literal one.
    if not isinstance(part, str):
      raise syntax.error(value, 'the name of a part must be a literal string')
    if not PART.fullmatch(part):
      raise syntax.error(
          value,
          f'{part!r:.80} is not a valid name of a part; use at most 64 of a-z,'
          ' 0-9 and _, a letter first',
      )
    if part in values:
      raise syntax.error(value, f'the part {part!r} occurs twice')
    _refuse_walrus(value)
    values[part] = value
  return values


_ONE_A_LINE = 'bind one name per line, so that each can be removed alone'


def add(source: str, part_source: str) -> str:
  """Add the parts of a reward.py to another, replacing parts of equal names.

  Names that the new parts need are added; names that only replaced parts used
  are removed. Other comments and docstrings are left unchanged.

  Raises:
    syntax.SourceError: If either has the wrong form, or if both bind a name to
      different things.
  """
  old, new = take_apart(source), take_apart(part_source)
  kept = [part for part in old.values if part not in new.values]
  needed = set().union(*(old.reached(part) for part in kept))
  for name, binding in new.names.items():
    own = old.names.get(name, binding)
    if name in needed and syntax.text_of(own) != syntax.text_of(binding):
      raise syntax.error(binding, f'{name} is something else in the reward')
  imports, others, lines, texts = [], [], [], {}
  for text, unwanted, tree in (
      (source, set(old.names) - needed, old),
      (part_source, needed, new),
  ):
    for statement, block in _blocks(text):
      bound = set(_bound(statement) or {})
      if ACROSS in bound or (bound and bound <= unwanted):
        continue
      if bound & unwanted:
        raise syntax.error(statement, _ONE_A_LINE)
      is_import = isinstance(statement, _IMPORTS)
      if 'parts' not in bound and (bound or tree is old):
        # The docstring stays above the imports.
        (imports if is_import or not bound else others).append(block)
    for statement, block in _header(text)[-1]:
      bound = set(_bound(statement) or {})
      if isinstance(statement, ast.Return) or tree.local <= unwanted:
        continue
      if bound and (bound <= unwanted or not bound & tree.local):
        continue
      if bound & unwanted:
        raise syntax.error(statement, _ONE_A_LINE)
      lines.append(textwrap.dedent(block))
    for part, value in tree.values.items():
      texts[part] = ast.get_source_segment(text, value)
  listed = {p for p in old.across if p in kept} | set(new.across)
  if listed:
    others.insert(0, f'{ACROSS} = {tuple(sorted(listed))!r}\n')
  entries = ''.join(f'      {p!r}: {text},\n' for p, text in texts.items())
  header, indent, _ = _header(source)
  bound = textwrap.indent(''.join(lines), indent)
  others.append(f'{header}{bound}{indent}return {{\n{entries}  }}\n')
  combined = '\n'.join(imports) + ''.join(f'\n\n{b}' for b in others)
  combined = combined.lstrip('\n')
  if hashes(combined) != {**hashes(source), **hashes(part_source)}:
    text = 'the parts cannot be combined: they would change each other'
    raise syntax.SourceError(f'reward.py: {text}')
  return combined


def _header(source: str) -> tuple[str, str, list[tuple[ast.stmt, str]]]:
  """Return the text of `parts` up to its first line, indentation and lines.

  Comments above the first line belong to the header, those above another line
  to that line.
  """
  function, block = next(
      (s, b) for s, b in _blocks(source) if 'parts' in (_bound(s) or {})
  )
  documented = ast.get_docstring(function, clean=False) is not None
  body = function.body[int(documented) :]
  above = body[0].lineno - 1
  if above < function.lineno:
    if len(body) > 1:
      raise syntax.error(function, 'one statement a line')
    return 'def parts(e):\n', '  ', [(body[0], '')]
  lines = _lines(block)
  header = ''.join(lines[: len(lines) - (function.end_lineno - above)])
  indent = ' ' * body[0].col_offset
  return header, indent, _split(_lines(source), body, above)


def _blocks(source: str) -> list[tuple[ast.stmt, str]]:
  """Return (statement, its lines and the comments above it) for a source."""
  return _split(_lines(source), python_source.parse(source).body, 0)


def _split(
    lines: list[str], statements: list[ast.stmt], end: int
) -> list[tuple[ast.stmt, str]]:
  """Return (statement, its lines and those above it), after line `end`."""
  blocks = []
  for statement in statements:
    if statement.lineno <= end:
      raise syntax.error(statement, 'one statement a line')
    text = ''.join(lines[end : statement.end_lineno]).strip('\n') + '\n'
    blocks.append((statement, text))
    end = statement.end_lineno
  return blocks


def _lines(source: str) -> list[str]:
  """Return the lines as Python counts them: U+2028 and form feeds end none."""
  return list(io.StringIO(source))
