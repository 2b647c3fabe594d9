r"""Compares trees of `expressions`, part by part and as functions.

Two different analytic expressions agree at a random point with probability zero
(for polynomials: Schwartz 1980, Zippel 1979). Symbols therefore get fixed values
of both signs, so that sqrt(x^2) differs from x. Rational numbers stay exact, the
rest has 150 digits. Every operation is bounded, as the text came from a policy:
a value that is too large, too small or too inexact ends the comparison.
"""

from collections.abc import Callable
import fractions
import functools
import operator
import threading
from typing import Any
import zlib

import mpmath

from evojax.domains.math import expressions

_POINTS = 4
_BITS = 500  # Of irrational values.
_EQUAL_BITS = 133  # Values that agree in so many bits (40 digits) are equal.
_LOST_BITS = 300  # A sum that loses more is zero, or too inexact.
_MOST_BITS = 1 << 14  # Of an exact number; a larger one becomes inexact.
_MOST_MAGNITUDE = 1 << 20  # Binary logarithm of any value.
_MOST_ARGUMENT = 64  # Binary logarithm of what a function is applied to.
_SETS = expressions.SETS
_TRIGONOMETRIC = frozenset('sin cos tan sec csc cot'.split())
_SPELLED = {'ln': 'log', 'abs': 'fabs', 'lg': 'log10'}
_SPELLED |= {f'arc{name}': f'a{name}' for name in ('sin', 'cos', 'tan')}

_mp = mpmath.MPContext()
_mp.prec = _BITS
_CONSTANTS = {
    'pi': _mp.mpf(_mp.pi),
    'e': _mp.mpf(_mp.e),
    'i': _mp.mpc(0, 1),
    'degree': _mp.pi / 180,
}
_lock = threading.Lock()  # Functions change the precision while they work.

Tree = expressions.Tree
Value = Any  # A fraction, or a real or complex number of mpmath.


class UndefinedError(ArithmeticError):
  """An expression has no value at any point."""


class BoundsError(ArithmeticError):
  """A value is beyond the bounds of this module."""


def compare(a: Tree, b: Tree) -> str:
  """Return 'equal', 'different', 'undefined' (no value), or 'timeout'.

  The last means that a value of `b` is beyond the bounds.
  """
  try:
    with _lock:
      return 'equal' if _same(a, b) else 'different'
  except BoundsError:
    return 'timeout'
  except UndefinedError:
    return 'undefined'


def is_name(tree: Tree) -> bool:
  """Return whether a tree names a value: x, f(2), AB, (p, q), V_1 : V_2."""
  kind, *parts = tree
  if kind in ('symbol', 'call'):
    return kind == 'symbol' or parts[0] == 'f' or is_name(parts[1])
  if kind == 'tuple':
    return all(map(is_name, parts[1:]))
  return kind in ('*', '/', ':') and all(map(is_name, parts))


def _same(a: Tree, b: Tree) -> bool:
  """Return whether two trees are equal, part by part."""
  (name, a_value), (other, b_value) = _named(a), _named(b)
  if 'relation' in (a_value[0], b_value[0]) or (
      name and other and not _same(name, other)
  ):
    return a[0] == b[0] == 'relation' and _same_relation(a, b)
  a, b = a_value, b_value
  if 'list' in (a[0], b[0]) or a[0] == b[0] == r'\cup':
    left, right = _members(a), _members(b)
    return (
        (a[0] == b[0] or len(left) == len(right) == 1)
        and all(any(_same(x, y) for y in right) for x in left)
        and all(any(_same(x, y) for x in left) for y in right)
    )
  if a[0] in ('tuple', 'matrix') or b[0] in ('tuple', 'matrix'):
    return a[:2] == b[:2] and _all_same(a[2:], b[2:])
  if a[0] in _SETS or b[0] in _SETS:
    return a[0] == b[0] and _all_same(a[1:], b[1:])
  return all(map(_close, _values(a), _values(b)))


def _all_same(a: tuple[Tree, ...], b: tuple[Tree, ...]) -> bool:
  return len(a) == len(b) and all(map(_same, a, b))


def _members(tree: Tree) -> list[Tree]:
  """Return the elements of a list of lists, or the parts of a union."""
  if tree[0] not in ('list', r'\cup'):
    return [tree]
  return [member for part in tree[1:] for member in _members(part)]


def _named(tree: Tree) -> tuple[Tree | None, Tree]:
  """Return the name of a value, if it has one, and the value.

  x = 5 and x in [0, 1] name what is on their right; x > 5 is an interval.
  """
  if tree[0] != 'relation':
    return None, tree
  _, operators, first, *rest = tree
  if set(operators) == {'='}:
    if is_name(first):
      return first, rest[-1]
    return (
        (rest[0], first) if is_name(rest[0]) and not rest[1:] else (None, tree)
    )
  low = high = ('symbol', 'inf')
  low = ('*', ('number', fractions.Fraction(-1)), low)
  if set(operators) <= {'>', '>='}:
    operators = tuple(o.replace('>', '<') for o in operators[::-1])
    first, *rest = reversed((first, *rest))
  if not set(operators) <= {'<', '<='}:
    return None, tree
  opened, closed = '(', ')'
  if is_name(first) and len(rest) == 1:
    name, high, closed = first, rest[0], ')]'['=' in operators[0]]
  elif is_name(rest[0]):
    name, low, opened = rest[0], first, '(['['=' in operators[0]]
    if rest[1:]:
      high, closed = rest[1], ')]'['=' in operators[1]]
  else:
    return None, tree
  return name, ('tuple', opened + closed, low, high)


def _same_relation(a: Tree, b: Tree) -> bool:
  """Return whether relations hold for the same values of their symbols."""
  left, right = _links(a), _links(b)
  return len(left) == len(right) and all(
      o == p and _proportional(_values(x), _values(y), o.startswith('<'))
      for (o, x), (p, y) in zip(left, right, strict=True)
  )


def _links(tree: Tree) -> list[tuple[str, Tree]]:
  """Return each relation of a chain as an operator and what is compared to 0."""
  links = []
  for operator_, x, y in zip(tree[1], tree[2:], tree[3:]):
    if operator_.startswith('>'):
      operator_, x, y = operator_.replace('>', '<'), y, x
    links.append(
        (operator_, ('+', x, ('*', ('number', fractions.Fraction(-1)), y)))
    )
  return links


def _proportional(a: list[Value], b: list[Value], positive: bool) -> bool:
  """Return whether the values differ by one factor, which is not zero."""
  ratios = []
  for x, y in zip(a, b, strict=True):
    if (x is None) != (y is None) or (x == 0) != (y == 0):
      return False
    if x:
      ratios.append(_operate(operator.truediv, x, y))
  if not ratios or not all(_close(ratio, ratios[0]) for ratio in ratios):
    return False
  return not positive or (_mp.im(ratios[0]) == 0 and _mp.re(ratios[0]) > 0)


def _close(a: Value, b: Value) -> bool:
  """Return whether two values are equal; a missing one equals a missing one."""
  if a is None or b is None or _exact(a, b):
    return a == b
  a, b = map(_inexact, (a, b))
  return abs(a - b) <= max(abs(a), abs(b)) * _mp.ldexp(1, -_EQUAL_BITS)


@functools.lru_cache(maxsize=4096)
def _values(tree: Tree) -> list[Value]:
  """Return the values of a scalar at each point, None where there is none.

  Raises:
    BoundsError: If a value is beyond the bounds.
    UndefinedError: If there is no value at all, or the tree is no scalar.
  """
  values = []
  for point in range(_POINTS):
    try:
      values.append(_value(tree, point))
    except BoundsError:
      raise
    except (ArithmeticError, NotImplementedError, TypeError, ValueError):
      values.append(None)
  if values == [None] * _POINTS:
    raise UndefinedError(str(tree)[:80])
  return values


def _value(tree: Tree, point: int) -> Value:
  kind, *parts = tree
  if kind == 'number':
    return parts[0]
  if kind == 'symbol':
    name = parts[0].removeprefix('\\')
    return _CONSTANTS.get(name) or _draw(name, point)
  if kind == 'call':
    return _call(parts[0], [_value(part, point) for part in parts[1:]])
  if kind not in _OPERATIONS:
    raise UndefinedError(f'{kind} in an expression')
  values = [_value(part, point) for part in parts]
  if kind == '/':
    values.insert(0, fractions.Fraction(1))
  return functools.reduce(
      functools.partial(_operate, _OPERATIONS[kind]), values
  )


def _draw(name: str, point: int) -> fractions.Fraction:
  """Return the value of a symbol: a hash of its name, of both signs."""
  bits = zlib.crc32(f'{name}/{point}'.encode())
  sign = (-1) ** (point >> zlib.crc32(name.encode()) % 2)
  return fractions.Fraction(sign * (211 + bits % 4801), 997)


def _exact(*values: Value) -> bool:
  return all(isinstance(value, fractions.Fraction) for value in values)


def _inexact(value: Value) -> Value:
  if _exact(value):
    return _mp.mpf(value.numerator) / value.denominator
  return value


def _operate(
    operation: Callable[[Value, Value], Value], a: Value, b: Value
) -> Value:
  """Return the result of one operation, exact if it can be."""
  if not _exact(a, b):
    a, b = _inexact(a), _inexact(b)
  result = operation(a, b)
  if _exact(result):
    bits = max(result.numerator.bit_length(), result.denominator.bit_length())
    return result if bits <= _MOST_BITS else _bounded(_inexact(result))
  return _bounded(result)


def _bounded(value: Value) -> Value:
  if not _mp.isfinite(value):
    raise UndefinedError('infinite')
  if value and abs(_mp.mag(value)) > _MOST_MAGNITUDE:
    raise BoundsError('beyond the bounds')
  return value


def _add(a: Value, b: Value) -> Value:
  total = a + b
  if _exact(total) or not (a and b):
    return total
  magnitudes = _mp.mag(a), _mp.mag(b)
  if abs(magnitudes[0] - magnitudes[1]) > _LOST_BITS:
    raise UndefinedError('a sum loses its smaller part')
  if total and max(magnitudes) - _mp.mag(total) > _LOST_BITS:
    return fractions.Fraction(0)
  return total


def _power(a: Value, b: Value) -> Value:
  if _exact(a, b) and b.denominator == 1:
    bits = max(a.numerator.bit_length(), a.denominator.bit_length())
    if abs(b) * bits <= _MOST_BITS:
      return a ** int(b)
  if a == 0:
    if _mp.re(_inexact(b)) <= 0:
      raise UndefinedError('0 to a power that is not positive')
    return fractions.Fraction(0)
  a, b = _inexact(a), int(b) if _exact(b) and b.denominator == 1 else _inexact(
      b
  )
  if abs(b) * max(1, abs(_mp.mag(a))) > _MOST_MAGNITUDE:
    raise BoundsError('a power beyond the bounds')
  return _mp.power(a, b)


def _call(name: str, arguments: list[Value]) -> Value:
  """Apply a function; f is one that no answer can know."""
  if name == 'f':
    x = arguments[0]
    y = _operate(
        operator.mul, x, _operate(operator.add, x, fractions.Fraction(7, 3))
    )
    return _operate(
        operator.mul, x, _operate(operator.add, y, fractions.Fraction(5, 11))
    )
  if name == 'sqrt':
    index = arguments[1] if arguments[1:] else fractions.Fraction(2)
    power = _operate(operator.truediv, fractions.Fraction(1), index)
    return _operate(_power, arguments[0], power)
  values = [_inexact(value) for value in arguments]
  if any(value and _mp.mag(value) > _MOST_ARGUMENT for value in values):
    raise BoundsError(f'{name} of a large number')
  result = _bounded(getattr(_mp, _SPELLED.get(name, name))(*values))
  if name in _TRIGONOMETRIC and result:
    # sin(pi) and tan(pi/2) are 0 and undefined, but for the last digits of pi.
    if _mp.mag(result) < -_LOST_BITS:
      return fractions.Fraction(0)
    if _mp.mag(result) > _LOST_BITS:
      raise UndefinedError('a pole')
  return result


_OPERATIONS = {
    '+': _add,
    '*': operator.mul,
    '/': operator.truediv,
    '^': _power,
}
