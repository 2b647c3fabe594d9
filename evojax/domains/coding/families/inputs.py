"""Grammars of inputs: their wordings, edge cases and random inputs."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import random

Value = int | str
Parameters = Mapping[str, Value]


@dataclasses.dataclass(frozen=True)
class Inputs:
  """Texts for standard input, all drawn from the same random generator."""

  edges: tuple[str, ...]  # Edge cases: empty, one element, ties, the largest.
  some: Callable[[int], str]  # Size -> an ordinary input of about that size.
  short: int  # Size of an example.


@dataclasses.dataclass(frozen=True)
class Grammar:
  """One form of input."""

  wordings: tuple[str, str]
  draw: Callable[[Parameters, random.Random], Inputs]


def _near(parameters: Parameters, low: int, high: int) -> list[int]:
  """Return the numbers in [low, high] equal or adjacent to a parameter or 0."""
  values = [v for v in (0, *parameters.values()) if isinstance(v, int)]
  near = {value + step for value in values for step in (-1, 0, 1)}
  return sorted(number for number in near if low <= number <= high)


def _numbers_near(
    parameters: Parameters, rng: random.Random, low: int, high: int
) -> Callable[[], int]:
  """Return a function that draws from [low, high], half from `_near`."""
  near = _near(parameters, low, high)

  def number():
    if near and rng.random() < 0.5:
      return rng.choice(near)
    return rng.randint(low, high)

  return number


def _letters(
    parameters: Parameters, rng: random.Random, others: str, share: float = 0.5
) -> Callable[[], str]:
  """Return a function that draws letters, a share of them from the
  parameters."""
  texts = map(str, parameters.values())
  named = [text for text in texts if len(text) == 1 and text.isalpha()]
  return lambda: rng.choice(named if named and rng.random() < share else others)


def numbers(low: int, high: int, least: int = 0, most: int = 30) -> Grammar:
  """Return the grammar of n and n integers in [low, high].

  Args:
    low: Smallest integer.
    high: Largest integer.
    least: 0 or 1.
    most: Largest n; `least` is the smallest.
  """

  def draw(parameters, rng):
    number = _numbers_near(parameters, rng, low, high)

    def some(size):
      values = [number() for _ in range(size)]
      if size > 3:  # Every longer list has a tie.
        values[rng.randrange(size)] = values[rng.randrange(size)]
      return _list(values)

    tied = number()
    edges = [_list([])] if least == 0 else []
    edges += [_list([number()]), _list([tied] * 4), _list([low] * 3)]
    near = _near(parameters, low, high)
    edges += [_list([high, low]), _list(near * 2), _list(near * 3), some(most)]
    return Inputs(tuple(edges), some, 4)

  count = 'n (0 or more)' if least == 0 else 'n (at least 1)'
  read = f'The first line has {count}, the second n integers.'
  return Grammar((read, f'Read {count}, then a line with n integers.'), draw)


def _list(values: Sequence[int]) -> str:
  return f'{len(values)}\n{" ".join(map(str, values))}\n'


def one_number(low: int, high: int) -> Grammar:
  """Return the grammar of one integer in [low, high]."""

  def draw(parameters, rng):
    values = [v for v in parameters.values() if isinstance(v, int)]
    product = math.prod(abs(value) or 1 for value in values)
    near = [v + step for v in (0, *values, product) for step in (-1, 0, 1)]
    edges = [low, low + 1, high, *near, *(-v for v in near)]
    edges = [f'{n}\n' for n in dict.fromkeys(edges) if low <= n <= high]

    def some(size):
      return f'{rng.randint(low, high) if size > 5 else rng.randint(9, 40)}\n'

    return Inputs(tuple(edges), some, 2)

  read = f'Read an integer n (at least {low}).'
  return Grammar((read, f'You get n, at least {low}.'), draw)


def word(least: int = 0, upper: bool = False) -> Grammar:
  """Return the grammar of a word; with `upper`, letters have either case."""

  def draw(parameters, rng):
    letter = _letters(parameters, rng, 'abcxyz')

    def some(size):
      text = ''.join(letter() for _ in range(size + 2))
      return f'{_mixed(text, rng) if upper else text}\n'

    one = letter()
    edges = ['\n'] if least == 0 else []
    edges += [f'{one}\n', f'{one * 5}\n', f'{letter()}{letter()}\n', some(38)]
    if upper:
      edges.append(f'{"".join(letter() for _ in range(6)).upper()}\n')
    return Inputs(tuple(edges), some, 4)

  letters = 'letters of either case' if upper else 'small letters'
  maybe = ', maybe empty' if least == 0 else ''
  read = f'The input is a word of {letters}{maybe}.'
  return Grammar(
      (read, f'Read one line with a word of {letters}{maybe}.'), draw
  )


def words(upper: bool = False) -> Grammar:
  """Return the grammar of a line of words with single spaces; may be empty."""

  def draw(parameters, rng):
    # Some long words should lack a letter, too.
    letter = _letters(parameters, rng, 'abx', 0.25)
    lengths = _numbers_near(parameters, rng, 1, 9)

    def one():
      text = ''.join(letter() for _ in range(lengths()))
      return _mixed(text, rng) if upper else text

    def some(size):
      chosen = [one() for _ in range(size)]
      for _ in range(size // 3):
        chosen[rng.randrange(size)] = rng.choice(chosen)
      return f'{" ".join(chosen)}\n'

    lone = one()
    edges = ['\n', f'{lone}\n', f'{lone} {lone} {lone}\n', some(24)]
    if upper:
      edges.append(some(6).upper())
    return Inputs(tuple(edges), some, 3)

  letters = 'letters of either case' if upper else 'small letters'
  read = f'The input is one line of words of {letters}, maybe empty.'
  return Grammar(
      (read, f'Read a line, maybe empty, of words of {letters}.'), draw
  )


def moves(letters: str) -> Grammar:
  """Return the grammar of a line of two given letters, which may be empty."""

  def draw(parameters, rng):
    del parameters  # Long moves in one direction reach the walls anyway.

    def some(size):
      return ''.join(rng.choice(letters) for _ in range(size + 3)) + '\n'

    a, b = letters
    edges = ['\n', f'{a}\n', f'{b}\n', f'{a * 80}\n', f'{b * 3}{a}\n']
    edges += [f'{a * 80}{b}\n', f'{a * 2}{b * 40}\n', some(60)]
    return Inputs(tuple(edges), some, 4)

  a, b = letters
  read = f'The input is a line of letters {a} and {b}, maybe empty.'
  return Grammar((read, f'Read a line of {a} and {b}, maybe empty.'), draw)


def intervals(low: int, high: int, either: bool = False) -> Grammar:
  """Return the grammar of n and n lines l r; with either, l > r is allowed."""

  def draw(parameters, rng):
    number = _numbers_near(parameters, rng, low, high)

    def one():
      a, b = number(), number()
      return (a, b) if either else (min(a, b), max(a, b))

    def text(pairs):
      return f'{len(pairs)}\n' + ''.join(f'{a} {b}\n' for a, b in pairs)

    def some(size):
      return text([one() for _ in range(size)])

    point, same = number(), one()
    edges = [text([]), text([(point, point)]), text([same] * 3)]
    edges += [text([(low, high), one()]), text([one()]), some(20)]
    if either:
      edges.append(text([(high, low), (same[1], same[0])]))
    return Inputs(tuple(edges), some, 3)

  order = 'l and r in either order' if either else 'l <= r'
  read = f'The first line has n (0 or more), then n lines l r, {order}.'
  return Grammar(
      (read, f'Read n (0 or more) and n lines with l and r, {order}.'), draw
  )


def grid() -> Grammar:
  """Return the grammar of r c, then r lines of c letters."""

  def draw(parameters, rng):
    letter = _letters(parameters, rng, 'abx')

    def text(rows):
      return f'{len(rows)} {len(rows[0])}\n' + ''.join(f'{x}\n' for x in rows)

    def rows(height, width):
      return [''.join(letter() for _ in range(width)) for _ in range(height)]

    def some(size):
      height = size if size < 4 else rng.randint(2, 6)
      drawn = rows(height, rng.randint(2, 4))
      if height > 2:  # Every higher grid has two equal rows.
        drawn[rng.randrange(height)] = drawn[rng.randrange(height)]
      return text(drawn)

    lone, row = letter(), rows(1, 4)[0]
    edges = [text([lone]), text([row]), text([lone] * 6), text([row] * 5)]
    edges += [text(rows(9, 9)), text([lone * 5, lone * 5, row + lone])]
    return Inputs(tuple(edges), some, 3)

  read = 'The first line has r and c, then come r rows of c letters.'
  return Grammar((read, 'Read r and c, then r lines of c letters.'), draw)


def _mixed(text: str, rng: random.Random) -> str:
  """Return the text with one letter in three in upper case."""
  return ''.join(c.upper() if rng.random() < 1 / 3 else c for c in text)
