"""Parses formulas: a tree is a number, a name, or (sign, tree, tree)."""

from reckon import tokens

# Sign -> how strongly it binds.
STRENGTH = {'+': 1, '-': 1, '*': 2, '/': 2, '^': 3}


class Parser:
  """Reads tokens from left to right."""

  def __init__(self, found):
    """Start at the first token."""
    self.found = found
    self.place = 0

  def peek(self):
    """Return the next token, or (None, None) at the end."""
    if self.place >= len(self.found):
      return None, None
    return self.found[self.place]

  def formula(self, least=1):
    """Return the tree of all that binds at least so strongly."""
    left = self.atom()
    while STRENGTH.get(self.peek()[1], 0) >= least:
      sign = self.peek()[1]
      self.place += 1
      # 2 ^ 3 ^ 2 is 2 ^ (3 ^ 2), but 8 - 3 - 2 is (8 - 3) - 2.
      more = 0 if sign == '^' else 1
      left = (sign, left, self.formula(STRENGTH[sign] + more))
    return left

  def atom(self):
    """Return a number, a name, or what stands in parentheses."""
    kind, value = self.peek()
    self.place += 1
    if kind in ('number', 'name'):
      return value
    if value == '-':
      return ('-', 0.0, self.formula(2))
    if value != '(':
      raise ValueError(f'{value!r} is no place to begin')
    inner = self.formula()
    if self.peek()[1] != ')':
      raise ValueError('a parenthesis is open')
    self.place += 1
    return inner


def parse(text):
  """Return the tree of a formula.

  Raises:
    ValueError: If it is none.
  """
  parser = Parser(tokens.split(text))
  tree = parser.formula()
  if parser.place < len(parser.found):
    raise ValueError(f'nothing fits {parser.peek()[1]!r}')
  return tree


def write(tree, outer=0):
  """Return a tree as text, with no more parentheses than it needs."""
  if isinstance(tree, float):
    return f'{tree:g}'
  if isinstance(tree, str):
    return tree
  sign, left, right = tree
  own = STRENGTH[sign]
  text = f'{write(left, own)} {sign} {write(right, own + 1)}'
  if own < outer:
    return f'({text})'
  return text


def depth(tree):
  """Return how many signs stand above each other."""
  if not isinstance(tree, tuple):
    return 0
  return 1 + max(depth(tree[1]), depth(tree[2]))
