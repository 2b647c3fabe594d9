"""Parses mathematical expressions to trees, without evaluating anything.

A tree is nested lists that JSON can carry: ['number', '3/4'], ['symbol', 'x'],
['+' | '*' | '/' | '^', left, right], ['-', operand], ['call', name, operand].

Text comes from a policy: a recursive-descent parser with an allow-list of
characters and names, where sympy's own would call `eval`. Size, nesting and
numeric exponents are bounded here; what is still slow to compare meets the
time limit of `equality`.
"""

import re
from typing import Any

Tree = list[Any]

MAX_TOKENS = 200
MAX_DEPTH = 30
MAX_DIGITS = 100  # Digits of one number.
MAX_POWER = 100  # Absolute value of a numeric exponent.

FUNCTIONS = frozenset(
    'sqrt sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh log ln'
    ' exp abs'.split()
)
CONSTANTS = frozenset({'pi'})
_GREEK = frozenset(
    'alpha beta gamma delta epsilon theta lambda mu phi omega'.split()
)
_TOKEN = re.compile(
    r'\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)'
    r'|\\?(?P<word>[A-Za-z]+)|(?P<power>\*\*|\^)|(?P<op>[-+*/()\[\]{}]))'
)
_CLOSING = {'(': ')', '[': ']', '{': '}'}


class ExpressionError(ValueError):
  """The text is not an expression of the grammar, or is out of bounds."""


def parse(text: str) -> Tree:
  """Read an expression.

  Sums, products (2x, 3(x+1), 2 sqrt 3), quotients, \\frac{a}{b}, \\sqrt[n]{a},
  powers, functions of FUNCTIONS, pi, Greek names and one-letter symbols; two
  letters side by side are a product. Longer words are refused, so that prose
  is no expression.

  Args:
    text: From `literals.canonical`.

  Raises:
    ExpressionError: If the text is anything else, or too large.
  """
  parser = _Parser(_tokens(text))
  tree = parser.sum(0)
  parser.end()
  return tree


def _tokens(text: str) -> list[tuple[str, str]]:
  tokens, position = [], 0
  while position < len(text):
    match = _TOKEN.match(text, position)
    if match is None or len(tokens) >= MAX_TOKENS:
      raise ExpressionError(f'not an expression, from {text[position:][:20]!r}')
    position = match.end()
    kind, value = match.lastgroup, match[match.lastgroup]
    if kind == 'number' and len(value) > MAX_DIGITS:
      raise ExpressionError(f'a number of {len(value)} digits')
    if kind == 'word':
      tokens.extend(_words(value))
    else:
      tokens.append((kind, '^' if kind == 'power' else value))
  return tokens


def _words(word: str) -> list[tuple[str, str]]:
  """Return the tree of a word: a known name, or one or two symbols."""
  if word == 'frac' or word in FUNCTIONS:
    return [('name', word)]
  if word in CONSTANTS or word in _GREEK:
    return [('symbol', word)]
  if len(word) > 2:
    raise ExpressionError(f'unknown name {word[:20]!r}')
  return [('symbol', letter) for letter in word]


class _Parser:
  """A parser whose precedence is sum, product, sign, power, atom."""

  def __init__(self, tokens: list[tuple[str, str]]):
    self._tokens = [*tokens, ('end', '')]
    self._next = 0

  def end(self) -> None:
    if self._peek()[0] != 'end':
      raise ExpressionError(f'unexpected {self._peek()[1]!r}')

  def sum(self, depth: int) -> Tree:
    if depth > MAX_DEPTH:
      raise ExpressionError(f'nested deeper than {MAX_DEPTH}')
    tree = self._product(depth)
    while self._peek()[1] in ('+', '-'):
      sign = self._take()[1]
      right = self._product(depth)
      tree = ['+', tree, right if sign == '+' else ['-', right]]
    return tree

  def _product(self, depth: int) -> Tree:
    tree = self._signed(depth)
    while True:
      kind, value = self._peek()
      if value in ('*', '/'):
        self._take()
        tree = [value, tree, self._signed(depth)]
      elif kind in ('name', 'symbol') or value in _CLOSING:
        tree = ['*', tree, self._power(depth)]
      else:  # A number on the right needs a sign: '1 2' is two answers.
        return tree

  def _signed(self, depth: int) -> Tree:
    sign = 1
    while self._peek()[1] in ('+', '-'):
      sign *= -1 if self._take()[1] == '-' else 1
    tree = self._power(depth)
    return tree if sign == 1 else ['-', tree]

  def _power(self, depth: int) -> Tree:
    base = self._atom(depth)
    if self._peek()[0] != 'power':
      return base
    self._take()
    exponent = self._signed(depth + 1)
    _check_exponent(exponent)
    return ['^', base, exponent]

  def _atom(self, depth: int) -> Tree:
    kind, value = self._take()
    if kind == 'number':
      return ['number', value]
    if kind == 'symbol':
      return ['symbol', value]
    if value == 'frac':
      return ['/', self._argument(depth), self._argument(depth)]
    if value == 'sqrt' and self._peek()[1] == '[':
      degree = self._argument(depth)
      _check_exponent(degree)
      return ['^', self._argument(depth), ['/', ['number', '1'], degree]]
    if kind == 'name':
      return ['call', value, self._argument(depth)]
    if value in _CLOSING:
      tree = self.sum(depth + 1)
      if self._take()[1] != _CLOSING[value]:
        raise ExpressionError(f'{value!r} is not closed')
      return tree
    raise ExpressionError(f'unexpected {value or "end"!r}')

  def _argument(self, depth: int) -> Tree:
    """Parse the argument of a function or \\frac: a group, or one atom."""
    if depth > MAX_DEPTH:
      raise ExpressionError(f'nested deeper than {MAX_DEPTH}')
    return self._atom(depth + 1)

  def _peek(self) -> tuple[str, str]:
    return self._tokens[self._next]

  def _take(self) -> tuple[str, str]:
    token = self._tokens[self._next]
    self._next = min(self._next + 1, len(self._tokens) - 1)
    return token


def _check_exponent(tree: Tree) -> None:
  """Refuse towers of powers and large numbers: 9^9^9 has 369 M digits."""
  kind = tree[0]
  if kind == '^' or kind == 'call':
    raise ExpressionError('a power or function in an exponent')
  if kind == 'number' and float(tree[1]) > MAX_POWER:
    raise ExpressionError(f'exponent {tree[1]} is beyond {MAX_POWER}')
  if kind in '+-*/':
    for operand in tree[1:]:
      _check_exponent(operand)
