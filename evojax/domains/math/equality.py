r"""Comparison of trees of `expressions`, part by part and as functions.

Two different analytic expressions agree at a random point with probability zero
(for polynomials: Schwartz 1980, Zippel 1979). Symbols therefore get fixed
values of both signs, so that sqrt(x^2) differs from x. Rational numbers stay
exact, the rest has 150 digits. Every operation is bounded, because the text
comes from a policy: a value beyond the bounds raises OverflowError.
"""

from collections.abc import Callable
import fractions
import functools
import itertools
import operator
import threading
from typing import Any
import zlib

import mpmath

from evojax.domains.math import expressions
from evojax.domains.math import real_sets

_BITS = 500  # Precision of irrational values.
_EQUAL_BITS = 133  # Values that agree in this many bits (40 digits) are equal.
_LOST_BITS = 300  # A sum that loses more bits is zero, or too inexact.
_MOST_BITS = 1 << 14  # Limit for exact numbers; a larger one becomes inexact.
_MOST_MAGNITUDE = 1 << 20  # Binary logarithm of any value.
_MOST_ARGUMENT = 64  # Binary logarithm of a function's argument.
# Denominators of the values of symbols: 997 gives values up to about 5, 83 up
# to about 60.
_DENOMINATORS = (997, 997, 83, 83)
_TRIGONOMETRIC = frozenset('sin cos tan sec csc cot'.split())
_SPELLED = {'ln': 'log', 'abs': 'fabs', 'lg': 'log10'}
_SPELLED |= {f'arc{name}': f'a{name}' for name in _TRIGONOMETRIC}
_INFINITY = ('symbol', 'inf')
_REALS = ('symbol', 'mathbbR')
_DEGREE = ('symbol', 'degree')
_TEN, _MINUS_ONE = expressions.number(10), expressions.parse('-1')
_MOST_PARTS = 32  # Limit for sets of real numbers.
_SETS = frozenset(expressions.SETS)
_UNORDERED = frozenset(('list', r'\cup', r'\cap'))

_mp = mpmath.MPContext()
_mp.prec = _BITS
_CONSTANTS = {
    'pi': +_mp.pi,
    'e': +_mp.e,
    'i': _mp.mpc(0, 1),
    'degree': _mp.pi / 180,
}
_lock = threading.Lock()  # mpmath's functions change the precision temporarily.

Tree = expressions.Tree
Value = Any  # A fraction, or a real or complex number of mpmath.


def compare(reference: Tree, answer: Tree) -> str:
  """Return 'right', 'wrong', 'unparsable' (no value), or 'timeout'.

  'timeout' means that a value is beyond the bounds. An answer may show its
  working, see `leads_to`.
  """
  try:
    with _lock:
      return 'right' if _same(reference, _settle(answer)) else 'wrong'
  except OverflowError:
    return 'timeout'
  except ArithmeticError:
    return 'unparsable'


def leads_to(working: Tree, value: Tree) -> bool:
  """Return whether a value may follow its working: 12 follows x = 3 * 4.

  The working is a name, constants equal to the value, or a name and any
  formulas; constants among these must equal the value as well.
  """
  try:
    with _lock:
      return _leads_to(working, value)
  except ArithmeticError:  # This includes OverflowError.
    return False


def _leads_to(working: Tree, value: Tree) -> bool:
  sides = _sides(working) or (working,)
  named = is_name(sides[0])
  return all(
      named if _is_open(side) else _same(side, value) for side in sides[named:]
  )


def _settle(answer: Tree) -> Tree:
  """Return an answer without its working: x = 12 for x = 3 * 4 = 12.

  Raises:
    ArithmeticError: If the working and the answer have different values.
  """
  *working, last = _sides(answer) or (answer,)
  if not working:
    return answer
  first, link = working[0], ('=',)
  if _leads_to(('relation', link, *working), last):
    return ('relation', link, first, last) if is_name(first) else last
  if is_name(first):
    raise ArithmeticError('the sides differ')
  return answer


def _sides(tree: Tree) -> Tree:
  """Return the sides of a chain of equations; () for anything else."""
  return tree[2:] if tree[0] == 'relation' and set(tree[1]) == {'='} else ()


def _is_open(tree: Tree) -> bool:
  """Return whether a tree has symbols besides constants such as pi."""
  if tree[0] == 'symbol':
    return tree[1] not in _CONSTANTS and tree != _INFINITY
  return any(_is_open(part) for part in tree[1:] if isinstance(part, tuple))


def is_name(tree: Tree) -> bool:
  """Return whether a tree names a value: x, f(2), AB, (p, q), V_1 : V_2."""
  kind, *parts = tree
  if kind in ('tuple', 'call'):
    return parts[0] == 'apply' or all(map(is_name, parts[1:]))
  return kind == 'symbol' or (
      kind in ('*', '/', ':') and all(map(is_name, parts))
  )


def _same(a: Tree, b: Tree) -> bool:
  """Return whether two trees are equal, part by part."""
  (name, left), (other, right) = _named(a), _named(b)
  differ = name and other and not _same(name, other)
  kinds = {left[0], right[0]}
  if not differ and (kinds & _SETS or _REALS in (left, right)):
    sets = _real_set(left), _real_set(right)
    if None not in sets:
      return sets[0] == sets[1] and _is_finished(left, right)
  if differ or 'relation' in kinds:
    return a[0] == b[0] == 'relation' and _same_relation(a, b)
  if 'list' in kinds or (len(kinds) == 1 and kinds & _UNORDERED):
    some, others = _members(left), _members(right)
    names = [{_named(part)[0] for part in parts} for parts in (some, others)]
    several = any(len(each - {None}) > 1 for each in names)
    if several and 'tuple' in kinds:
      some, others = _coordinates(a), _coordinates(b)
      names = [{_named(part)[0] for part in parts} for parts in (some, others)]
    if several and {None} in names:
      # Values without names are in the order of the names: x = 1, y = 2.
      listed = 'list' in kinds and len(some) == len(others)
      return listed and all(map(_same, some, others))
    return (
        (len(kinds) == 1 or several or len(some) == len(others) == 1)
        and all(any(_same(x, y) for y in others) for x in some)
        and all(any(_same(x, y) for x in some) for y in others)
    )
  if kinds & {'tuple', 'matrix', ':', *_SETS}:
    # The brackets of a tuple and the kind of a matrix are not trees.
    fixed = 2 if kinds & {'tuple', 'matrix'} else 1
    return (
        left[:fixed] == right[:fixed]
        and len(left) == len(right)
        and all(map(_same, left[fixed:], right[fixed:]))
    )
  return all(map(_close, _values(left), _values(right))) and _is_finished(
      left, right
  )


def _is_finished(reference: Tree, answer: Tree) -> bool:
  r"""Return whether an equal answer is evaluated as far as the reference.

  Without this check, repeating the question would be right: \cos 150^\circ for
  -\sqrt3/2, or (2+3, 1) for (5, 1).
  """
  if _is_open(reference):
    return True
  known = _steps(reference)
  if 'i' in known:  # A complex number may be in polar form.
    return True
  more = _steps(answer) - known - {'i'}
  return more <= {'^'} if known else not more


def _steps(tree: Tree) -> set[str]:
  """Return the operations in a tree besides products, and i if it is there."""
  kind = '^' if tree[:2] == ('call', 'exp') else tree[0]
  if tree[0] == '^' and (tree[1] == _TEN or tree[2] == _MINUS_ONE):
    kind = '*'  # As in 1.5 * 10^3 and e^{-1}.
  below = (_steps(part) for part in tree if part and isinstance(part, tuple))
  here = {kind} & {'+', '^', 'call'} or {'i'} & set(tree[1:2])
  return here.union(*below)


def _members(tree: Tree) -> list[Tree]:
  """Return the elements of a list of lists, or the parts of a union."""
  kind, *parts = tree
  if kind not in _UNORDERED:
    return [tree]
  nested = [_members(p) if p[0] == kind else [p] for p in parts]
  return list(itertools.chain.from_iterable(nested))


def _named(tree: Tree) -> tuple[Tree | None, Tree]:
  r"""Return the name of a value, if it has one, and the value.

  x = 5 and x \in [0, 1] name their right side; x > 5 is an interval,
  'x < 2 or x > 5' a union of two, and 'x > 2, x < 5' their intersection.
  """
  kind, *parts = tree
  if kind == 'list' and all(
      p[0] == 'relation' and '=' not in p[1] for p in parts
  ):
    kind = r'\cap'
  if kind in _SETS:
    names, values = zip(*map(_named, parts), strict=True)
    same = len(set(names)) == 1
    return (names[0], (kind, *values)) if same else (None, tree)
  if kind != 'relation':
    return None, _simple(tree)
  _, operators, *sides = tree
  if set(operators) == {'='}:
    if not is_name(sides[0]):
      return (sides[1], sides[0]) if is_name(sides[1]) else (None, tree)
    value = sides[-1]  # A set, S = {x | x > 2}, has names of its own.
    return sides[0], _named(value)[1]
  if operators == ('!=',) and is_name(sides[0]):
    return sides[0], (r'\setminus', _REALS, ('list', sides[1]))
  # A bound such as pi is a symbol but not a name.
  named = [is_name(side) and _is_open(side) for side in sides]
  if named == [True, False]:
    operators = ('<', *operators)
    sides = [expressions.negative(_INFINITY), *sides]
  elif named == [False, True]:
    operators, sides = (*operators, '<'), [*sides, _INFINITY]
  if len(sides) != 3 or '!=' in operators or not is_name(sides[1]):
    return None, tree
  brackets = '(['['=' in operators[0]] + ')]'['=' in operators[1]]
  return sides[1], ('tuple', brackets, sides[0], sides[2])


def _simple(tree: Tree) -> Tree:
  """Return a value without its degrees, and a matrix without its factors."""
  kind, *factors = tree
  if kind != '*':
    return tree
  if factors[-1] == _DEGREE:
    return ('*', *factors[:-1])
  if factors[-1][0] == '*':
    return ('*', *factors[:-1], _simple(factors[-1]))
  matrices = [f for f in factors if f[:2] == ('matrix', None)]
  if len(matrices) != 1:
    return tree
  factors.remove(matrices[0])
  return (
      *matrices[0][:2],
      *(
          (*row[:2], *(('*', *factors, cell) for cell in row[2:]))
          for row in matrices[0][2:]
      ),
  )


def _coordinates(tree: Tree) -> list[Tree]:
  """Return the members of (x, y) = (1, 2), that is, x = 1 and y = 2."""
  name, value = _named(tree)
  if value[:2] != ('tuple', '()'):
    return _members(value)
  if not name or name[:2] != ('tuple', '()') or len(name) != len(value):
    return list(value[2:])
  return [
      ('relation', ('=',), *pair)
      for pair in zip(name[2:], value[2:], strict=True)
  ]


def _real_set(tree: Tree) -> real_sets.Cuts | None:
  """Return a set of real numbers; None if the tree is something else.

  A part that adds nothing to a union, or removes nothing from an intersection,
  could be a second answer; for a tree with such a part, the result is None.
  """
  kind, *parts = tree
  if tree == _REALS:
    return real_sets.REALS
  if tree == expressions.EMPTY:
    return ()
  if kind == 'tuple':
    ends = [_end(part) for part in parts[1:]]
    # The row of a matrix is not an interval, nor is \langle 1, 2 \rangle.
    is_interval = len(ends) == 2 and parts[0][:1] in ('(', '[')
    if not is_interval or None in ends or ends[0] >= ends[1]:
      return None
    return real_sets.interval(*ends, parts[0])
  if len(parts) > _MOST_PARTS:
    return None
  if kind in _SETS:
    sets = [_real_set(part) for part in parts]
    if None in sets:
      return None
    if kind == r'\setminus':
      keeps = lambda held: held[0] and not any(held[1:])
    else:
      keeps = any if kind == r'\cup' else all
    found = real_sets.combine(keeps, sets)
    first = kind == r'\setminus'
    for i in range(first, len(sets)):
      if real_sets.combine(keeps, sets[:i] + sets[i + 1 :]) == found:
        return None
    return found
  points = [_end(p) for p in (parts if kind == 'list' else [tree])]
  if None in points:
    return None
  return real_sets.combine(any, [real_sets.interval(p, p) for p in points])


def _end(tree: Tree) -> fractions.Fraction | float | None:
  """Return a real number to _EQUAL_BITS, or an infinity, for sorting."""
  if tree in (_INFINITY, expressions.negative(_INFINITY)):
    return real_sets.INFINITY * (1 if tree == _INFINITY else -1)
  try:
    value = None if _is_open(tree) else _inexact(_values(tree)[0])
  except ArithmeticError:
    return None
  if not value:
    return None if value is None else fractions.Fraction(0)
  if _mp.im(value) or abs(_mp.mag(value)) > _MOST_BITS:
    return None
  digits = _EQUAL_BITS - _mp.mag(value)
  nearest = int(_mp.nint(_mp.ldexp(_mp.re(value), digits)))
  return nearest / fractions.Fraction(2) ** digits


def _same_relation(a: Tree, b: Tree) -> bool:
  """Return whether each link of two chains holds for the same values."""
  return (
      a[1] == b[1]
      and len(a) == len(b)
      and all(
          map(
              _same_link,
              a[1],
              itertools.pairwise(a[2:]),
              itertools.pairwise(b[2:]),
          )
      )
  )


def _same_link(
    relation: str, a: tuple[Tree, Tree], b: tuple[Tree, Tree]
) -> bool:
  """Return whether the differences have one ratio, > 0 for inequalities."""
  differences = [_values(('+', x, expressions.negative(y))) for x, y in (a, b)]
  ratios = []
  for x, y in zip(*differences, strict=False):  # One may have more points.
    if (x is None) != (y is None) or (x == 0) != (y == 0):
      return False
    if x:
      ratios.append(_operate(operator.truediv, x, y))
  if not ratios or not all(_close(ratio, ratios[0]) for ratio in ratios):
    return False
  return '<' not in relation or _mp.re(_inexact(ratios[0])) > 0


def _close(a: Value, b: Value) -> bool:
  """Return whether two values are equal; two missing values are equal."""
  if a is None or b is None or (_is_exact(a) and _is_exact(b)):
    return a == b
  a, b = _inexact(a), _inexact(b)
  return abs(a - b) <= _mp.ldexp(max(abs(a), abs(b)), -_EQUAL_BITS)


@functools.lru_cache(maxsize=4096)
def _values(tree: Tree) -> list[Value]:
  """Return the values of a scalar at each point; None where it has none.

  Raises:
    OverflowError: If a value is beyond the bounds.
    ArithmeticError: If there is no value at all, or the tree is not a scalar.
  """
  values, failure = [], None
  # Step functions may agree by chance, n/2 and (n+1)/2 at every other point.
  for point in range(64 if _has_steps(tree) else 4):
    try:
      values.append(_value(tree, point))
    except (ArithmeticError, NotImplementedError, TypeError, ValueError) as e:
      values.append(None)
      failure = e
  if not any(value is not None for value in values):
    kind = (
        OverflowError if isinstance(failure, OverflowError) else ArithmeticError
    )
    raise kind('no value') from failure
  return values


def _has_steps(tree: Tree) -> bool:
  parts = [part for part in tree if isinstance(part, tuple)]
  return tree[1:2] in (('floor',), ('ceil',)) or any(map(_has_steps, parts))


def _value(tree: Tree, point: int) -> Value:
  kind, *parts = tree
  if kind == 'number':
    return parts[0]
  if kind == 'symbol':
    return _CONSTANTS.get(parts[0]) or _draw(parts[0], point)
  if kind == 'call':
    return _call(parts[0], [_value(part, point) for part in parts[1:]], point)
  if kind not in _OPERATIONS:
    raise ArithmeticError(f'{kind} in an expression')
  values = [_value(part, point) for part in parts]
  if kind == '/':
    values.insert(0, fractions.Fraction(1))
  operate = functools.partial(_operate, _OPERATIONS[kind])
  return functools.reduce(operate, values)


def _draw(name: str, point: int) -> fractions.Fraction:
  """Return the value of a symbol: a hash of its name, of either sign."""
  sign = (-1) ** (point >> zlib.crc32(name.encode()) % 2)
  size = 211 + zlib.crc32(f'{name}/{point}'.encode()) % 4801
  return fractions.Fraction(sign * size, _DENOMINATORS[point % 4])


def _is_exact(value: Value) -> bool:
  return isinstance(value, fractions.Fraction)


def _inexact(value: Value) -> Value:
  if _is_exact(value):
    return _mp.mpf(value.numerator) / value.denominator
  return value


def _bits(value: fractions.Fraction) -> int:
  return max(value.numerator.bit_length(), value.denominator.bit_length())


def _operate(
    operation: Callable[[Value, Value], Value], a: Value, b: Value
) -> Value:
  """Return the result of one operation, exact if possible."""
  if not (_is_exact(a) and _is_exact(b)):
    a, b = _inexact(a), _inexact(b)
  result = operation(a, b)
  if _is_exact(result) and _bits(result) <= _MOST_BITS:
    return result
  return _bounded(_inexact(result))


def _bounded(value: Value) -> Value:
  if not _mp.isfinite(value):
    raise ArithmeticError('infinite')
  if value and abs(_mp.mag(value)) > _MOST_MAGNITUDE:
    raise OverflowError('beyond the bounds')
  return value


def _add(a: Value, b: Value) -> Value:
  total = a + b
  if _is_exact(total) or not (a and b):
    return total
  magnitudes = _mp.mag(a), _mp.mag(b)
  if abs(magnitudes[0] - magnitudes[1]) > _LOST_BITS:
    raise ArithmeticError('a sum loses its smaller part')
  lost = total and max(magnitudes) - _mp.mag(total) > _LOST_BITS
  return fractions.Fraction(0) if lost else total


def _power(a: Value, b: Value) -> Value:
  if _is_exact(b) and b.denominator == 1 and abs(b) <= _MOST_BITS:
    if _is_exact(a) and abs(b) * _bits(a) <= _MOST_BITS:
      return a ** int(b)
  a, b = _inexact(a), _inexact(b)
  if not a and _mp.re(b) <= 0:
    raise ArithmeticError('0 to a power that is not positive')
  if a and abs(b) * max(1, abs(_mp.mag(a))) > _MOST_MAGNITUDE:
    raise OverflowError('a power beyond the bounds')
  return _mp.power(a, b)


def _call(name: str, arguments: list[Value], point: int) -> Value:
  """Apply a function; for f in f(x), only the name and argument are known."""
  values = [_inexact(value) for value in arguments]
  if any(value and _mp.mag(value) > _MOST_ARGUMENT for value in values):
    raise OverflowError(f'{name} of a large number')
  if name == 'apply':
    return _draw(' '.join(_mp.nstr(value, 40) for value in values), point)
  result = _bounded(getattr(_mp, _SPELLED.get(name, name))(*values))
  # sin(pi) and tan(pi/2) are 0 and undefined, up to the last digits of pi.
  if name in _TRIGONOMETRIC and result and abs(_mp.mag(result)) > _LOST_BITS:
    if _mp.mag(result) > 0:
      raise ArithmeticError('a pole')
    return fractions.Fraction(0)
  return result


_OPERATIONS = {
    '+': _add,
    '*': operator.mul,
    '/': operator.truediv,
    '^': _power,
}
