"""Demonstrations for the math base policy: solutions in several behaviours.

A base policy mixes behaviours on purpose, as real base models do, so that
reinforcement learning can select between them. Each demonstration draws one
behaviour from `BEHAVIOURS`:

  steps_tag     '12+45=50+7=57\\n57-7=50\\n<answer>50</answer>', correct.
  steps_plain   the same work, then 'The answer is 50.': no answer tag.
  direct_tag    '<answer>50</answer>' at once.
  direct_plain  'The answer is 50.' at once.
  ramble        filler that never comes to an end.

One digit of a direct answer is wrong with probability `DIRECT_ERROR`, because
base models that answer at once are mostly wrong. Otherwise a policy of a
million parameters would memorise such short sums, and would gain nothing by
working them out.

The work is a few short lines of integer arithmetic, each an equation that holds
as written. Each behaviour has its own first tokens.
"""

from collections.abc import Callable, Mapping
import decimal
import importlib
import re
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import base

# The families of the demonstrations, see `sources.Catalogue.select`. Their
# worked solutions are short, with steps that a small policy can learn.
FAMILIES = (
    'chain_sum:0-3',
    'decimal_chain_sum:0-1',
    'products:0',
    'leg_counting:0-1',
    'simple_equations:0-1',
    'gcd:0',
    'fraction_simplification:0',
)
TOKENS = ('<answer>', '</answer>')  # These texts are one token each.

BEHAVIOURS: Mapping[str, float] = {
    'steps_tag': 0.39,
    'steps_plain': 0.17,
    'direct_tag': 0.29,
    'direct_plain': 0.12,
    'ramble': 0.03,
}
DIRECT_ERROR = 0.6

_FILLER = (
    'Let me think about this.',
    'Hmm, wait.',
    'Maybe there is another way.',
    'I need to be careful here.',
    'Let me read the problem again.',
    'First, what is asked?',
    'That does not look right.',
    'Let me start over.',
)
_RAMBLE_SENTENCES = 96  # More tokens than any completion may have.


_Number = int | decimal.Decimal  # The latter with one decimal place.


def steps(family: str, metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Return the worked solution of a problem.

  Args:
    family: Name of a reasoning-gym data set.
    metadata: reasoning-gym's metadata of the problem.

  Returns:
    Lines, each a chain of equal expressions such as '12*7=70+14=84', and the
    answer that they lead to.

  Raises:
    ValueError: If the family has no worked solution.
  """
  if family not in _STEPS:
    raise ValueError(
        f'{family=} has no worked solution. Use one of {sorted(_STEPS)}.'
    )
  return _STEPS[family](metadata)


def _chain_sum(metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Add from left to right; decimals keep their number of places."""
  first, *rest = metadata['expression'].split()
  number = decimal.Decimal if '.' in first else int
  lines, total = [], number(first)
  for sign, term in zip(rest[::2], rest[1::2], strict=True):
    total = _add(total, sign, number(term), lines)
  return lines, str(total)


def _add(a: _Number, sign: str, b: _Number, lines: list[str]) -> _Number:
  """Return a + b or a - b for b >= 0, and append the line that shows it.

  The last digits are added separately, so that each number in the line depends
  on few others: 57+68=110+15=125, 4.1-8.7=-4-0.6=-4.6.
  """
  signed = b if sign == '+' else -b
  result = a + signed
  rest = _truncate(a) + _truncate(signed)
  line = f'{a}{sign}{b}='
  if rest not in (0, a, result):
    line += f'{rest}{result - rest:+}='
  lines.append(f'{line}{result}')
  return result


def _truncate(x: _Number) -> int:
  """Return x without its last digit, towards 0: 57 -> 50, -4.1 -> -4."""
  return int(x) if isinstance(x, decimal.Decimal) else int(x / 10) * 10


def _products(metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Multiply by one factor after the other."""
  first, *rest = map(int, metadata['expression'].split(' * '))
  lines, total = [], first
  for factor in rest:
    total = _multiply(total, factor, lines)
  return lines, str(total)


def _multiply(a: int, b: int, lines: list[str]) -> int:
  """Return a * b for a, b >= 0, and append the lines that show it."""
  if b >= 10 and b % 10:
    tens = _multiply(a, b - b % 10, lines)
    ones = _multiply(a, b % 10, lines)
    lines.append(f'{tens}+{ones}={a * b}')
    return a * b
  # The digits of a are multiplied one by one: 84*3=240+12=252.
  places = range(len(str(a)))[::-1]
  parts = [a // 10**n % 10 * 10**n * b for n in places if a // 10**n % 10]
  line = f'{a}*{b}='
  while len(parts) > 1:
    line += '+'.join(map(str, parts)) + '='
    parts[:2] = [sum(parts[:2])]
  lines.append(f'{line}{a * b}')
  return a * b


def _leg_counting(metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Add up the legs of each animal in the order of the question."""
  # reasoning-gym exports classes under the names of its modules, so that an
  # ordinary import would give the class.
  module = importlib.import_module('reasoning_gym.arithmetic.leg_counting')
  lines, total = [], None
  for animal, count in metadata['animals'].items():
    legs = module.ANIMALS[animal]
    product = count * legs
    lines.append(f'{count}*{legs}={product}')
    total = product if total is None else _add(total, '+', product, lines)
  return lines, str(total)


def _simple_equations(metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Solve a*x + b = c or b - a*x = c: move b, then divide by a."""
  left, right = metadata['equation'].split(' = ')
  c = int(right)
  match = re.fullmatch(
      r'(?:(?P<first>\d+) (?P<minus>-) )?(?:(?P<a>\d+)\*)?[a-z]'
      r'(?: (?P<sign>[-+]) (?P<b>\d+))?',
      left,
  )
  if match is None:
    raise ValueError(f'{left!r} is neither a*x + b nor b - a*x.')
  lines = []
  if match['first']:  # b - a*x = c, so a*x = b - c.
    c = _add(int(match['first']), '-' if c >= 0 else '+', abs(c), lines)
  elif match['b']:
    c = _add(c, '-' if match['sign'] == '+' else '+', int(match['b']), lines)
  if match['a']:
    a = int(match['a'])
    lines.append(f'{c}/{a}={c // a}')
    c //= a
  return lines or [f'{c}={c}'], str(c)


def _gcd(metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Take Euclid's remainders until one is 0 or 1."""
  small, large = sorted(metadata['numbers'])
  lines = []
  while True:
    rest = large % small
    lines.append(f'{large}%{small}={rest}')
    if rest <= 1:
      return lines, str(rest or small)
    large, small = small, rest


def _fraction(metadata: Mapping[str, Any]) -> tuple[list[str], str]:
  """Divide both numbers by common primes, smallest first."""
  a, b = metadata['numerator'], metadata['denominator']
  chain = [f'{a}/{b}']
  for divisor in range(2, min(a, b) + 1):
    while a % divisor == b % divisor == 0:
      a, b = a // divisor, b // divisor
      chain.append(f'{a}/{b}')
  if len(chain) == 1:
    chain *= 2  # It is in lowest terms already.
  return ['='.join(chain)], chain[-1]


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], tuple[list[str], str]]] = {
    'chain_sum': _chain_sum,
    'decimal_chain_sum': _chain_sum,
    'products': _products,
    'leg_counting': _leg_counting,
    'simple_equations': _simple_equations,
    'gcd': _gcd,
    'fraction_simplification': _fraction,
}


def demonstrate(
    problem: records.Problem, rng: np.random.Generator
) -> records.Demonstration:
  """Draw a behaviour and write the completion.

  Args:
    problem: A problem with reasoning-gym's metadata.
    rng: Source of all random choices.

  Raises:
    ValueError: If the family has no worked solution.
  """
  behaviour = base.draw_behaviour(BEHAVIOURS, rng)
  lines, answer = steps(problem.family, problem.metadata)
  if behaviour == 'ramble':
    text = ' '.join(base.draw_filler(_FILLER, _RAMBLE_SENTENCES, rng))
  else:
    work, form = behaviour.split('_')
    if work == 'direct':
      lines, answer = [], _direct_answer(answer, rng)
    ending = '<answer>{}</answer>' if form == 'tag' else 'The answer is {}.'
    text = '\n'.join([*lines, ending.format(answer)])
  ends = behaviour != 'ramble'
  return records.Demonstration(problem.messages, text, ends)


def _direct_answer(answer: str, rng: np.random.Generator) -> str:
  """Return the answer; one digit is wrong with probability DIRECT_ERROR."""
  if rng.random() >= DIRECT_ERROR:
    return answer
  places = [i for i, c in enumerate(answer) if c.isdigit()]
  place = places[rng.integers(len(places))]
  digit = (int(answer[place]) + rng.integers(1, 10)) % 10
  return f'{answer[:place]}{digit}{answer[place + 1:]}'
