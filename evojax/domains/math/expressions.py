r"""Parses mathematical answers to trees, without evaluating anything.

A tree is a tuple: ('number', Fraction), ('symbol', name), ('call', name, *trees),
(op, *trees) for + * ^ and the inverse / of scalars, \cup \cap \setminus of sets
and the : of ratios. Values of several parts are ('list', *trees), in any
order, as sets are; ('tuple', brackets, *trees), also an interval; ('matrix',
environment, *rows); ('relation', operators, *sides).

Text comes from a policy: a recursive-descent parser with an allow-list, where
sympy's own would call `eval`. Its length and nesting are bounded here, values by
`equality`.
"""

from collections.abc import Callable
import fractions
import re
from typing import Any

Tree = tuple[Any, ...]

MAX_CHARS = 1000
MAX_DEPTH = 20

FUNCTIONS = frozenset(
    'sin cos tan sec csc cot sinh cosh tanh arcsin arccos arctan asin acos atan'
    ' log ln lg exp abs sqrt'.split()
)
_INVERSE = {'sin': 'arcsin', 'cos': 'arccos', 'tan': 'arctan'}
_NAMES = frozenset(
    'pi alpha beta gamma delta epsilon theta lambda mu phi omega inf'.split()
)
_SEPARATORS = (',', ';', 'and', 'or')
_RELATIONS = {
    **dict.fromkeys(('=', r'\in', '≈', r'\approx', r'\equiv'), '='),
    **dict.fromkeys(('!=', r'\ne', r'\neq'), '!='),
    **dict.fromkeys(('<', r'\lt'), '<'),
    **dict.fromkeys(('>', r'\gt'), '>'),
    **dict.fromkeys(('<=', r'\le', r'\leq', r'\leqslant'), '<='),
    **dict.fromkeys(('>=', r'\ge', r'\geq', r'\geqslant'), '>='),
}
_SIGNS = ('+', '-', r'\pm', r'\mp')
_TIMES = {'*': '*', r'\cdot': '*', r'\times': '*', '/': '/', r'\div': '/'}
SETS = (r'\cup', r'\cap', r'\setminus', r'\backslash', ':')
_CLOSING = {
    '(': (')', ']'),
    '[': (']', ')'),
    '{': ('}',),
    r'\{': (r'\}',),
    r'\langle': (r'\rangle',),
    '|': ('|',),
    r'\lfloor': (r'\rfloor',),
    r'\lceil': (r'\rceil',),
}
_AROUND = {'|': 'abs', r'\lfloor': 'floor', r'\lceil': 'ceil'}
_ACCENTS = frozenset(
    'mathbb mathcal mathfrak vec hat bar tilde dot overline widehat widetilde'
    ' overrightarrow operatorname'.split()
)
_MATRICES = {
    **dict.fromkeys(('matrix', 'pmatrix', 'bmatrix', 'array'), 'matrix'),
    **{name: name for name in ('vmatrix', 'Vmatrix', 'cases')},
}
# Commands that no value begins with: layout, words and what closes a group.
_REFUSED = frozenset(
    r'\\ \& \end \right \left \rangle \rfloor \rceil \} \pm \mp \degree'.split()
) | {*_RELATIONS, *_TIMES, *SETS}
_TOKEN = re.compile(
    r'\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+|\\[A-Za-z]+|\\.|[A-Za-z]+|[<>!]=|\*\*|.)?'
)
_SUBSCRIPT = re.compile(
    r"(['′]*)\s*(?:_\s*(\{(?:[^{}]|\{[^{}]*\})*\}|\\[A-Za-z]+|[0-9]+|\w))?(['′]*)"
)
_SPELLINGS = (
    (re.compile(r'\$|\\[()\[\]]'), ' '),
    (re.compile(r'\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°'), r'\\degree '),
    (re.compile(r'\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-z]))'), "'"),
    (
        re.compile(r'\\[lr]brace(?![a-z])'),
        lambda m: r'\{' if m[0][1] == 'l' else r'\}',
    ),
    (re.compile(r'\\(?:[lr]?vert|mid)(?![a-z])|\\\|'), '|'),
    (re.compile(r'\\(?:emptyset|varnothing)(?![a-z])'), r'\\emptyset '),
    (re.compile(r'\\i?infty(?![a-z])'), ' inf '),
)


class ExpressionError(ValueError):
  """The text is not an expression of the grammar, or is out of bounds."""


def is_product(word: str) -> bool:
  """Return whether letters side by side are a product: xy and mgh, not 'on'."""
  return len(word) == 1 or (len(word) <= 4 and not set(word) & set('eiou'))


def parse(text: str) -> Tree:
  r"""Read a value: an expression, or several in brackets, lists and relations.

  TeX's rules hold: \frac43\pi is four thirds of pi, \sqrt12 ends after the 1. A
  function takes the product beside it, so that \sin 2x is sin(2x). With a \pm
  the value is the list of both.

  Args:
    text: From `literals.canonical`.

  Raises:
    ExpressionError: If the text is anything else, or too large.
  """
  if len(text) > MAX_CHARS:
    raise ExpressionError(f'{len(text)} characters')
  for pattern, replacement in _SPELLINGS:
    text = pattern.sub(replacement, text)
  trees = []
  for sign in '+-':
    parser = _Parser(text, sign)
    trees.append(parser.statement())
    if not parser.twofold:
      return trees[0]
  return ('list', *trees)


def _number(value: int | str) -> Tree:
  return ('number', fractions.Fraction(value))


def _negative(tree: Tree) -> Tree:
  return ('*', _number(-1), tree)


class _Parser:
  """A parser whose precedence is list, relation, set, sum, product, power."""

  def __init__(self, text: str, sign: str):
    self._text = text
    self._sign = sign  # The sign that a \pm stands for.
    self._at = self._end = 0  # Where the next token begins and ends.
    self._depth = 0
    self._bars = 0  # Open absolute values: the next bar closes one.
    self.twofold = False  # Whether there was a \pm.

  def statement(self) -> Tree:
    items = self._items()
    if self._peek():
      raise ExpressionError(f'unexpected {self._peek()!r}')
    return items[0] if len(items) == 1 else ('list', *items)

  def _items(self) -> list[Tree]:
    items = [self._relation()]
    while self._skip(*_SEPARATORS):
      while self._skip(*_SEPARATORS):  # '19, 46, and 82'.
        pass
      items.append(self._relation())
    return items

  def _relation(self) -> Tree:
    operators, sides = [], [self._set()]
    while self._peek() in _RELATIONS:
      operators.append(_RELATIONS[self._take()])
      sides.append(self._set())
    return ('relation', tuple(operators), *sides) if operators else sides[0]

  def _set(self) -> Tree:
    tree = self._sum()
    while (token := self._peek()) in SETS:
      self._take()
      left = tree if tree[0] == token else (token, tree)
      tree = (*left, self._sum())
    return tree

  def _sum(self) -> Tree:
    terms = [self._product()]
    while self._peek() in _SIGNS:
      negative = self._is_minus(self._take())
      right = self._product()
      terms.append(_negative(right) if negative else right)
    return ('+', *terms) if terms[1:] else terms[0]

  def _is_minus(self, token: str) -> bool:
    if token in '+-':
      return token == '-'
    self.twofold = True
    return (token == r'\pm') == (self._sign == '-')

  def _product(self) -> Tree:
    factors = [self._signed()]
    while True:
      token = self._peek()
      if token in _TIMES:
        self._take()
        right = self._signed()
        factors.append(right if _TIMES[token] == '*' else ('/', right))
      elif self._begins_factor(token):
        factors.append(self._power())
      elif token.isalpha() and token not in (*_SEPARATORS, 'in'):
        factors.append(('symbol', self._take().casefold()))
        # A unit ends a product: 'A beats B' is no product of three.
        if self._begins_factor(self._peek()):
          raise ExpressionError(f'{token!r} between factors')
      else:  # A number on the right needs a sign: '1 2' is two answers.
        return ('*', *factors) if factors[1:] else factors[0]

  def _begins_factor(self, token: str) -> bool:
    if token.isalpha():
      return len(token) == 1 or token in FUNCTIONS or token in _NAMES
    if token == '|':
      return not self._bars
    return token in _CLOSING or (token[:1] == '\\' and token not in _REFUSED)

  def _signed(self) -> Tree:
    minus = False
    while self._peek() in _SIGNS:
      minus ^= self._is_minus(self._take())
    tree = self._nested(self._power)
    return _negative(tree) if minus else tree

  def _nested(self, parse_part: Callable[[], Any]) -> Any:
    self._depth += 1
    if self._depth > MAX_DEPTH:
      raise ExpressionError(f'nested deeper than {MAX_DEPTH}')
    tree = parse_part()
    self._depth -= 1
    return tree

  def _power(self) -> Tree:
    tree = self._atom()
    for _ in range(MAX_DEPTH):
      if self._skip('^', '**'):
        tree = ('^', tree, self._signed())
      elif self._skip('!'):
        tree = ('call', 'factorial', tree)
      elif self._skip('%'):
        tree = ('*', tree, ('/', _number(100)))
      elif self._skip(r'\degree'):
        tree = ('*', tree, ('symbol', r'\degree'))
      else:
        return tree
    raise ExpressionError('too many signs behind a value')

  def _atom(self) -> Tree:
    token = self._take()
    name = token.removeprefix('\\')
    if token in _CLOSING:
      return self._bracket(token)
    if token[:1].isdecimal() or token[:1] == '.' and token[1:]:
      script = self._script()  # A numeral of another base: 4210_5.
      if script:
        return ('symbol', token + script)
      return _number(token)
    if name in FUNCTIONS:
      return self._function(name, token != name)
    if name in ('frac', 'dfrac', 'tfrac', 'cfrac'):
      return ('*', self._argument(), ('/', self._argument()))
    if name in ('binom', 'dbinom', 'tbinom'):
      return ('call', 'binomial', self._argument(), self._argument())
    if token == r'\begin':
      return self._environment()
    if token == r'f' and self._peek() == '(':
      return ('call', 'f', self._atom())
    if token != name and name in _ACCENTS:
      start = self._at
      self._argument()
      name += re.sub(r'[\s{}]', '', self._text[start : self._at])
    elif not self._begins_factor(token):
      raise ExpressionError(f'unexpected {token or "end"!r}')
    return ('symbol', name + self._script())

  def _script(self) -> str:
    """Take primes and a subscript, which are part of a name."""
    match = _SUBSCRIPT.match(self._text, self._at)
    self._at = match.end()
    subscript = re.sub(r'[\s{}]', '', match[2] or '')
    return match[1] + match[3] + (f'_{subscript}' if subscript else '')

  def _bracket(self, opened: str) -> Tree:
    bars, self._bars = self._bars, int(opened == '|')
    items = self._nested(self._items)
    self._bars = bars
    closed = self._take()
    if closed not in _CLOSING[opened]:
      raise ExpressionError(f'{opened!r} is not closed')
    if opened == r'\{':
      return ('list', *items)
    if len(items) > 1 and opened == '{':
      return ('list', *items)
    matching = closed == _CLOSING[opened][0]
    if len(items) == 1 and matching and opened != r'\langle':
      around = _AROUND.get(opened)
      return ('call', around, items[0]) if around else items[0]
    return ('tuple', opened + closed, *items)

  def _environment(self) -> Tree:
    r"""Parse a matrix, from the name after \begin to its \end."""
    match = re.compile(
        r'\s*\{(\w+)\}(?:\s*\{[lcr| ]*\})?(.*?)\\end\s*\{\1\}', re.DOTALL
    ).match(self._text, self._at)
    if not match or match[1] not in _MATRICES:
      raise ExpressionError('unknown environment')
    self._at = match.end()
    rows = []
    for row in re.split(r'\\\\', match[2].strip().removesuffix(r'\\')):
      cells = [_Parser(cell, self._sign) for cell in row.split('&')]
      cells = [cell.statement() for cell in cells if cell._peek()]
      rows.append(('tuple', '', *cells))
    if match[1] == 'cases':
      return ('list', *(cell for row in rows for cell in row[2:]))
    return ('matrix', _MATRICES[match[1]], *rows)

  def _function(self, name: str, tex: bool) -> Tree:
    r"""Parse what follows a function: index, power and argument."""
    index = power = None
    if name == 'sqrt' and self._skip('['):
      index = self._sum()
      if not self._skip(']'):
        raise ExpressionError('[ is not closed')
    elif name == 'log' and self._skip('_'):
      index = self._argument()
    if name != 'sqrt' and self._skip('^', '**'):
      power = self._argument() if self._peek() == '{' else self._signed()
    if name == 'sqrt' and tex:
      argument = self._argument()
    elif self._peek() in ('(', '[', '{', '|'):
      argument = self._atom()
    else:
      argument = self._signed()
      while self._begins_factor(token := self._peek()):
        bare = token.removeprefix('\\')
        bracket = token in _CLOSING and argument[0] != 'number'
        if bare in FUNCTIONS or bracket:
          break
        argument = ('*', argument, self._power())
    if name in _INVERSE and power == _negative(_number(1)):
      name, power = _INVERSE[name], None
    tree = ('call', name, argument, *([index] if index else []))
    return ('^', tree, power) if power else tree

  def _argument(self) -> Tree:
    r"""Parse an argument of TeX: a group, or one digit, letter or command."""
    token = self._peek()
    if token[:1].isdecimal():
      self._at = self._end - len(token) + 1
      return _number(token[0])
    return self._nested(self._atom)

  def _peek(self) -> str:
    match = _TOKEN.match(self._text, self._at)
    token, self._end = match[1] or '', match.end()
    names = token in FUNCTIONS or token in _NAMES or token in _SEPARATORS
    if token.isalpha() and not names and is_product(token):
      self._end -= len(token) - 1
      return token[0]
    return token

  def _take(self) -> str:
    token = self._peek()
    self._at = self._end
    return token

  def _skip(self, *tokens: str) -> bool:
    if found := self._peek() in tokens and self._peek() != '':
      self._take()
    return found
