r"""Parser from mathematical answers to trees, without evaluation.

A tree is a tuple: ('number', Fraction), ('symbol', name), ('call', function,
*trees), (op, *trees) with op one of + * ^ and the inverse / for scalars, \cup
\cap \setminus for sets and : for ratios. Values with several parts are ('list',
*trees), in any order, as sets are; ('tuple', brackets, *trees), also for an
interval; ('matrix', kind, *rows); ('relation', operators, *sides).

The text comes from a policy, so this is a recursive-descent parser with an
allow-list, whereas sympy's own would call `eval`. It bounds length and nesting;
`equality` bounds values.
"""

from collections.abc import Callable
import fractions
import re
from typing import Any

from evojax.domains.math import literals

Tree = tuple[Any, ...]

MAX_CHARS = 1000
MAX_DEPTH = 20  # Depth of nested brackets, exponents and arguments.

FUNCTIONS = frozenset(
    'sin cos tan sec csc cot sinh cosh tanh arcsin arccos arctan asin acos atan'
    ' coth sech csch arccot arcsec arccsc log ln lg exp abs sqrt'.split()
)
_GREEK = (
    'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi'
    ' pi rho sigma tau upsilon phi chi psi omega'
).split()
_NAMES = frozenset(
    'pi alpha beta gamma delta epsilon theta lambda mu phi omega inf'.split()
)
# Commands that stand for values. With another command between them, such as \to
# or \subset, two values may not be swapped: such a text is not an expression.
_VALUES = frozenset(
    rf'\{name}'
    for name in (
        'hbar ell partial infty emptyset dots ldots cdots imath jmath frac'
        ' binom begin'
    ).split()
    + _GREEK
    + [name.capitalize() for name in _GREEK]
)
# Token -> its other spellings.
_SPELLINGS = {
    '^': '**',
    '|': r'\vert \lvert \rvert \mid',
    r'\{': r'\lbrace',
    r'\}': r'\rbrace',
    'inf': r'\infty',
    r'\emptyset': r'\varnothing',
    r'\epsilon': r'\varepsilon',
    r'\theta': r'\vartheta',
    r'\phi': r'\varphi',
    r'\setminus': r'\backslash',
    '=': r'\in ≈ \equiv',
    '!=': r'\ne \neq',
    '<': r'\lt',
    '>': r'\gt',
    '<=': r'\le \leq \leqslant',
    '>=': r'\ge \geq \geqslant',
    r'\binom': r'\dbinom \tbinom',
}
_TOKENS = {s: token for token, all_ in _SPELLINGS.items() for s in all_.split()}
_SEPARATORS = (',', ';', 'and', 'or')
_RELATIONS = ('=', '!=', '<', '>', '<=', '>=')
SETS = (r'\cup', r'\cap', r'\setminus')
_SIGNS = ('+', '-', r'\pm', r'\mp')
_CLOSING = dict(
    zip(
        r'( [ { \{ \langle | \lfloor \lceil'.split(),
        r') ] } \} \rangle | \rfloor \rceil'.split(),
        strict=True,
    )
)
_AROUND = {'|': 'abs', r'\lfloor': 'floor', r'\lceil': 'ceil'}
# Bases that are written as words: 101_{two}.
_BASES = {
    word: str(base)
    for base, word in enumerate(
        'two three four five six seven eight nine ten eleven twelve'.split(), 2
    )
} | {'sixteen': '16'}
_APPLIED = tuple('fghpqFGHPQTW')
_ACCENTS = frozenset(
    'mathbb mathcal mathfrak vec hat bar tilde dot ddot overline widehat'
    ' widetilde overrightarrow'.split()
)
_TOKEN = re.compile(
    r'\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+|\\[A-Za-z]+|\\.|[A-Za-z]+|[<>!]='
    r'|\*\*|.)?'
)
_NESTED = r'\{(?:[^{}]|\{[^{}]*\})*\}'
# Operators that apply to the product on their right, with their limits.
_OPERATOR = re.compile(
    rf'\s*\\(?:sum|prod|i?i?int|oint|lim(?:sup|inf)?|det|deg|dim|[bp]?mod'
    rf'|nabla)(?![A-Za-z])(?:\s*[_^]\s*(?:{_NESTED}|\\[A-Za-z]+|\w))*'
)
_DIFFERENTIAL = r'(?:[A-Za-z]|\\[a-z]+)\s*(?:\^\s*\{?\s*[0-9]\s*\}?)?'
# d/dx, which is applied as well, or dy/dx, which is a name.
_DERIVATIVE = re.compile(
    r'\s*\\frac\s*\{\s*(d|\\partial)\s*(?:\^\s*\{?\s*[0-9]\s*\}?)?\s*'
    rf'([A-Za-z]?)\s*\}}\s*\{{\s*\1\s*{_DIFFERENTIAL}\s*\}}'
)
_FIGURE = re.compile(r'\s*\\(?:angle|triangle)\s*[A-Za-z]+')
# The x and its bar in {x | x > 2}.
_BUILDER = re.compile(
    r'\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?'
    r'(?:\\mid(?![a-z])|\||:)(?=.*\1)'
)
_MIXED = re.compile(
    r'(?:\s*\\frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}'
    r'|([0-9]))|\s+([0-9]+)\s*/\s*([0-9]+))'
)
_EXPONENT = re.compile(r'\^[\s+-]*\Z')
_INVERSE = re.compile(r'\s*\^\s*\{?\s*(-1|\(\w\))\s*\}?\s*(?=\()')
_VALUE_ENDS = re.compile(r'[0-9})]\s*\Z')
EMPTY = ('symbol', 'emptyset')
_SCRIPT = re.compile(
    rf"('*)\s*(?:_\s*({_NESTED}|\\[A-Za-z]+|[0-9]+"
    r"|(?<=\s)[A-Za-z]+|\w))?('*)"
)
_ENVIRONMENT = re.compile(
    r'\s*\{(?:((?:[pb]|small)?matrix|array)|([vV]matrix|cases|aligned))\}'
    r'(?:\s*\{[lcr| ]*\})?(.*?)(?:\\\\\s*)?\\end\s*\{(?:\1|\2)\}',
    re.DOTALL,
)
# A row of a matrix may give its distance to the next row.
_NEW_ROW = re.compile(r'\\\\(?:\s*\[-?[0-9.]+\s*[a-z]{2}\])?')
_COMMANDS = r'\le \ge \ne \in \cup \cap \emptyset inf \pm sqrt sqrt[3]'.split()
_GREEK_LETTERS = 'αβγδεζηθικλμνξπρστυφχψω'
_UNICODE = str.maketrans(
    {c: f' {name} ' for c, name in zip('≤≥≠∈∪∩∅∞±√∛', _COMMANDS, strict=True)}
    | {
        letter: rf' \{name} '
        for c, n in zip(_GREEK_LETTERS, _GREEK, strict=True)
        for letter, name in ((c, n), (c.upper(), n.capitalize()))
    }
)
_LAYOUT = (
    (re.compile(r'\$|(?<!\\)\\[()\[\]]'), ' '),
    (re.compile(r'\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°'), r'\\degree '),
    (re.compile(r'\(\s*([0-9]+)\s*\)\s*(?=_)'), r'\1'),  # (101)_2.
    (re.compile(r'\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-z]))|′'), "'"),
)


class ExpressionError(ValueError):
  """The text is not an expression of the grammar, or exceeds a limit."""


def is_product(word: str) -> bool:
  """Return whether adjacent letters are a product: xy and mgh, but not 'on'."""
  return len(word) == 1 or (len(word) <= 4 and not set(word) & set('eiou'))


def parse(text: str) -> Tree:
  r"""Parse a value: an expression, or several in brackets, lists and relations.

  TeX's rules apply: \frac43\pi is four thirds of pi, \sqrt12 ends after the 1.
  An exponent or index takes all of its digits, as in plain text: 2^10 is 1024,
  though TeX sets 2^1 0. A function takes the product after it, so that \sin 2x
  is sin(2x). With a \pm the value is the list of both.

  Args:
    text: From `literals.canonical`.

  Raises:
    ExpressionError: If the text is anything else, or too large.
  """
  if len(text) > MAX_CHARS:
    raise ExpressionError(f'{len(text)} characters')
  text = text.translate(_UNICODE)
  for pattern, replacement in _LAYOUT:
    text = pattern.sub(replacement, text)
  trees = []
  for sign in '+-':
    parser = _Parser(text, sign)
    trees.append(parser.statement())
    if not parser.twofold:
      return trees[0]
  return ('list', *trees)


def number(value: int | str | fractions.Fraction) -> Tree:
  """Return the tree of a number."""
  return ('number', fractions.Fraction(value))


def negative(tree: Tree) -> Tree:
  """Return the tree of -1 times another."""
  return ('*', number(-1), tree)


def _member(tree: Tree) -> Tree:
  """Return an element of a set or list; a set keeps its braces in another."""
  return ('tuple', '{}', tree) if tree[0] == 'list' or tree == EMPTY else tree


class _Parser:
  """A parser whose precedence is list, relation, set, sum, product, power."""

  def __init__(self, text: str, sign: str):
    self._text = text
    self._sign = sign  # The sign that replaces \pm.
    self._at = self._end = 0  # Start and end of the next token.
    self._depth = 0
    self._in_bars = False  # The next bar closes an absolute value.
    self.twofold = False  # Whether a \pm has occurred.

  def statement(self) -> Tree:
    items = self._items()
    if self._peek():
      raise ExpressionError(f'unexpected {self._peek()!r}')
    return items[0] if len(items) == 1 else ('list', *items)

  def _items(self) -> list[Tree]:
    items, separators = [self._relation()], set()
    while self._peek() in _SEPARATORS:
      while self._peek() in _SEPARATORS:  # '19, 46, and 82'.
        separators.add(self._take())
      items.append(self._relation())
    # 'x < 2 or x > 3' is a union, 'x = 2 or x = 3' lists two values.
    bounds = all(i[0] == 'relation' for i in items) and any(
        set(i[1]) != {'='} for i in items
    )
    if bounds and separators == {'or'}:
      return [(r'\cup', *items)]
    return [*map(_member, items)] if separators else items

  def _relation(self) -> Tree:
    operators, sides = [], [self._set()]
    while self._peek() in _RELATIONS:
      operators.append(self._take())
      sides.append(self._set())
    if any('>' in o for o in operators):  # The smaller side comes first.
      operators = [o.replace('>', '<') for o in operators[::-1] if '<' not in o]
      sides.reverse()
    if len(operators) != len(sides) - 1:
      raise ExpressionError('both < and >')
    return ('relation', tuple(operators), *sides) if operators else sides[0]

  def _set(self) -> Tree:
    tree = self._sum()
    while (token := self._peek()) in (*SETS, ':'):
      self._take()
      left = tree if tree[0] == token else (token, tree)
      tree = (*left, self._sum())
    return tree

  def _sum(self) -> Tree:
    terms = [self._product()]
    while self._peek() in _SIGNS:
      minus = self._minus()
      right = self._product()
      terms.append(negative(right) if minus else right)
    return ('+', *terms) if terms[1:] else terms[0]

  def _minus(self) -> bool:
    """Consume a sign; return whether it is negative."""
    token = self._take()
    if token in '+-':
      return token == '-'
    self.twofold = True
    return (token == r'\pm') == (self._sign == '-')

  def _product(self) -> Tree:
    start, factors = self._at, [self._signed()]
    while True:
      token = self._peek()
      if self._skip('*'):
        factors.append(self._signed())
      elif self._skip('/'):
        factors.append(('/', self._signed()))
      elif self._begins_factor(token):
        factors.append(self._power())
      elif self._is_unit(token, start):
        unit = self._take()  # Words keep their case: MeV is not meV.
        long = len(unit) > 4
        factors.append(('symbol', unit.casefold() if long else unit))
        # A unit must end a product: 'A beats B' is not a product of three.
        if self._begins_factor(self._peek()):
          raise ExpressionError(f'{token!r} between factors')
      else:  # A number on the right needs an operator: '1 2' is two answers.
        return ('*', *factors) if factors[1:] else factors[0]

  def _is_unit(self, token: str, start: int) -> bool:
    """Return whether a word is a unit: '5 cm', but not 'a square'."""
    is_word = token.isalpha() and token not in _SEPARATORS
    return is_word and any(map(str.isdigit, self._text[start : self._at]))

  def _begins_factor(self, token: str) -> bool:
    if token.isalpha():
      return len(token) == 1 or token in FUNCTIONS or token in _NAMES
    if token == '|':
      return not self._in_bars
    name = token.removeprefix('\\')
    return (
        token in _CLOSING
        or token in _VALUES
        or (token != name and name in FUNCTIONS | literals.STYLES | _ACCENTS)
        or self._prefix(self._at) is not None
    )

  def _prefix(self, at: int) -> re.Match[str] | None:
    """Return a match that starts here and spans more than one token."""
    for pattern in (_OPERATOR, _FIGURE, _DERIVATIVE):
      if match := pattern.match(self._text, at):
        return match
    return None

  def _signed(self) -> Tree:
    minus = False
    while self._peek() in _SIGNS:
      minus ^= self._minus()
    tree = self._nested(self._power)
    return negative(tree) if minus else tree

  def _nested(self, parse_part: Callable[[], Any]) -> Any:
    self._depth += 1
    if self._depth > MAX_DEPTH:
      raise ExpressionError(f'nested deeper than {MAX_DEPTH}')
    part = parse_part()
    self._depth -= 1
    return part

  def _power(self) -> Tree:
    tree = self._atom()
    for _ in range(MAX_DEPTH):
      if self._skip('^'):
        tree = ('^', tree, self._signed())
      elif self._skip('!'):
        name = 'fac2' if self._skip('!') else 'factorial'
        tree = ('call', name, tree)
      elif self._skip('%'):
        tree = ('*', tree, ('/', number(100)))
      elif self._skip(r'\degree'):
        tree = ('*', tree, ('symbol', 'degree'))
      else:
        return tree
    raise ExpressionError('too many signs behind a value')

  def _atom(self) -> Tree:
    start = self._at
    token = self._take()
    name = token.removeprefix('\\')
    if token != name and (prefix := self._prefix(start)):
      return self._prefixed(prefix)
    if token in _CLOSING:
      return self._bracket(token)
    if token.strip('.')[:1].isdecimal():
      # A numeral in another base: 4210_5, 101_{two}.
      base = re.sub(r'base(?=.)|[_()]', '', self._script())
      base = _BASES.get(base, base)
      if base:
        return ('symbol', f'{token}_{base}')
      return number(token) if '.' in token else self._whole(token, start)
    if name in FUNCTIONS:
      return self._function(name, token != name)
    if token == r'\frac':
      return ('*', self._argument(), ('/', self._argument()))
    if token == r'\binom':
      return ('call', 'binomial', self._argument(), self._argument())
    if token == r'\begin':
      return self._matrix()
    if token != name and name in literals.STYLES:
      return self._argument()
    if token != name and name in _ACCENTS:
      start = self._at
      self._argument()
      name += re.sub(r'[\s{}]', '', self._text[start : self._at])
    elif not self._begins_factor(token):
      raise ExpressionError(f'unexpected {token or "end"!r}')
    name += self._script()
    if token in _APPLIED and (inverse := _INVERSE.match(self._text, self._at)):
      self._at = inverse.end()
      name += f'^{inverse[1]}'
    tree = ('symbol', name)
    if token in _APPLIED and self._peek() == '(':
      argument = self._atom()
      # T(n) and f(x+1) are values of functions; g(h-r) is a product.
      if token == 'f' or argument[0] != '+':
        return ('call', 'apply', tree, argument)
      return ('*', tree, argument)
    return tree

  def _prefixed(self, match: re.Match[str]) -> Tree:
    """Parse a sum, limit or d/dx with its operand, or an angle or dy/dx."""
    self._at = match.end()
    name = re.sub(r'[\s{}\\]|[bp](?=mod)', '', match[0])
    if match.re is _FIGURE or (match.re is _DERIVATIVE and match[2]):
      return ('symbol', name)
    return ('call', 'apply', ('symbol', name), self._nested(self._product))

  def _whole(self, token: str, start: int) -> Tree:
    """Return an integer, or the mixed number that starts with it."""
    match = _MIXED.match(self._text, self._at)
    if match and not _EXPONENT.search(self._text[:start]):
      top, bottom = map(int, filter(None, match.groups()))
      if top < bottom:
        self._at = match.end()
        return number(int(token) + fractions.Fraction(top, bottom))
    return number(token)

  def _script(self) -> str:
    """Consume primes and a subscript, which are part of a name."""
    match = _SCRIPT.match(self._text, self._at)
    self._at = match.end()
    subscript = re.sub(r'[\s{}]', '', match[2] or '')
    return match[1] + match[3] + (f'_{subscript}' if subscript else '')

  def _bracket(self, opened: str) -> Tree:
    outer, self._in_bars = self._in_bars, opened == '|'
    builder = None
    if opened == r'\{':
      if self._skip(r'\}'):
        return EMPTY
      if builder := _BUILDER.match(self._text, self._at):
        self._at = builder.end()
    items = self._nested(self._items)
    self._in_bars = outer
    closed = self._take()
    matching = closed == _CLOSING[opened]
    if not matching and not (opened in '([' and closed in (')', ']')):
      raise ExpressionError(f'{opened!r} is not closed')
    if builder and not items[1:]:
      return items[0]
    if opened == r'\{' or (opened == '{' and items[1:]):
      return ('list', *map(_member, items))
    if items[1:] or not matching or opened == r'\langle':
      return ('tuple', opened + closed, *items)
    around = _AROUND.get(opened)
    return ('call', around, *items) if around else items[0]

  def _matrix(self) -> Tree:
    r"""Parse a matrix or cases, from the name after \begin to its \end."""
    match = _ENVIRONMENT.match(self._text, self._at)
    if not match:
      raise ExpressionError('unknown environment')
    self._at = match.end()
    text = match[3].replace('&', '') if match[2] == 'aligned' else match[3]
    rows = [
        [_Parser(cell, self._sign).statement() for cell in row.split('&')]
        for row in _NEW_ROW.split(text)
    ]
    if match[2] in ('cases', 'aligned'):
      return ('list', *(('tuple', '', *r) if r[1:] else r[0] for r in rows))
    return ('matrix', match[2], *(('tuple', '', *row) for row in rows))

  def _function(self, name: str, tex: bool) -> Tree:
    r"""Parse the rest of a function: index, power and argument."""
    if name == 'sqrt':
      index = self._bracket('[') if self._skip('[') else number(2)
      argument = self._argument() if tex else self._operand()
      return ('^', argument, ('/', index))
    index = [self._argument()] if name == 'log' and self._skip('_') else []
    power = self._signed() if self._skip('^') else None
    if power == negative(number(1)):
      name, power = 'arc' + name, None
    tree = ('call', name, self._operand(), *index)
    return ('^', tree, power) if power else tree

  def _operand(self) -> Tree:
    """Parse brackets, or the product up to a function, bracket or sign."""
    if self._peek() in ('(', '[', '{', '|'):
      return self._atom()
    factors = [self._signed()]
    while self._begins_factor(token := self._peek()):
      bracket = token in _CLOSING and factors[-1][0] != 'number'
      if bracket or token.removeprefix('\\') in FUNCTIONS:
        break
      factors.append(self._power())
    return ('*', *factors) if factors[1:] else factors[0]

  def _argument(self) -> Tree:
    r"""Parse a TeX argument: a group, or one digit, letter or command."""
    token = self._peek()
    if token[:1].isdecimal():
      self._at = self._end - len(token) + 1
      return number(token[0])
    return self._nested(self._atom)

  def _peek(self) -> str:
    match = _TOKEN.match(self._text, self._at)
    token, self._end = match[1] or '', match.end()
    known = token in FUNCTIONS or token in _NAMES or token in _SEPARATORS
    # The mm after a number are millimetres, not square metres.
    known |= len(set(token)) < len(token) and bool(
        _VALUE_ENDS.search(self._text[: self._at])
    )
    if token.isalpha() and not known and is_product(token):
      self._end -= len(token) - 1
      return token[0]
    return _TOKENS.get(token, token)

  def _take(self) -> str:
    token = self._peek()
    self._at = self._end
    return token

  def _skip(self, *tokens: str) -> bool:
    """Consume the next token if it is one of these; return whether it was."""
    found = self._peek() in tokens
    if found:
      self._at = self._end
    return found
