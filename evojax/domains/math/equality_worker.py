"""Child process that compares expression trees with sympy.

It runs as a script with `-P` and imports nothing of evojax. It answers each
line of JSON {"a": tree, "b": tree} on stdin with 'equal', 'different' or
'undefined' on stdout. The parent kills it when it is late. If the parent is
gone, the end of stdin or its own alarm ends it.
"""

import json
import resource
import signal
import sys

import sympy

_MEMORY_BYTES = 2 << 30
_ALARM_S = 30
_DIGITS = 50
_POINTS = 4
_NAMES = {
    'ln': 'log',
    'abs': 'Abs',
    'arcsin': 'asin',
    'arccos': 'acos',
    'arctan': 'atan',
}


def build(tree):
  """Return the sympy expression of a tree of `expressions`."""
  kind, *rest = tree
  if kind == 'number':
    return sympy.Rational(rest[0])
  if kind == 'symbol':
    return sympy.pi if rest[0] == 'pi' else sympy.Symbol(rest[0])
  if kind == 'call':
    return getattr(sympy, _NAMES.get(rest[0], rest[0]))(build(rest[1]))
  operands = [build(operand) for operand in rest]
  if kind == '-':
    return -operands[0]
  left, right = operands
  if kind == '+':
    return left + right
  if kind == '*':
    return left * right
  if kind == '/':
    return left / right
  return left**right


def compare(a, b) -> str:
  """Test identity by exact arithmetic at fixed points.

  Two different analytic expressions agree at a random point with probability
  zero (for polynomials: Schwartz 1980, Zippel 1979). The points have both
  signs, so that sqrt(x^2) differs from x.
  """
  symbols = sorted(a.free_symbols | b.free_symbols, key=str)
  verdicts = set()
  for point in range(_POINTS if symbols else 1):
    values = {
        symbol: sympy.Rational(
            (-1) ** (point >> (i % 2)) * (1009 + 613 * i + 251 * point),
            997 + 89 * i,
        )
        for i, symbol in enumerate(symbols)
    }
    left, right = (
        expression.subs(values).evalf(_DIGITS) for expression in (a, b)
    )
    if not (_finite(left) and _finite(right)):
      continue
    scale = max(1, abs(left), abs(right))
    verdicts.add(bool(abs(left - right) < scale * sympy.Float('1e-40')))
  if not verdicts:
    return 'undefined'
  return 'equal' if verdicts == {True} else 'different'


def _finite(value) -> bool:
  return bool(value.is_number and value.is_finite)


def main() -> None:
  resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
  # sympy imports much of itself on first use, which must not count against the
  # time of a request.
  x = sympy.Symbol('x')
  compare(sympy.sqrt(x) + sympy.sin(x), x**2)
  print('ready', flush=True)
  for line in sys.stdin:
    request = json.loads(line)
    signal.alarm(_ALARM_S)
    try:
      answer = compare(build(request['a']), build(request['b']))
    except (
        ArithmeticError,
        NotImplementedError,
        RecursionError,
        TypeError,
        ValueError,
    ):  # sympy raises these where a value does not exist.
      answer = 'undefined'
    signal.alarm(0)
    print(answer, flush=True)


if __name__ == '__main__':
  main()
