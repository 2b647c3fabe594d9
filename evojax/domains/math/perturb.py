"""Writes the same problem in another way, for the families of small problems.

A policy that has learned to solve a problem solves its other writing too; one
that has learned the order of its words does not. All writings are ones that the
generator could have produced, so that the minus signs of a sum keep their
places.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import random
import re
import string

from evojax import records
from evojax.domains import splits

# Problem -> its question in another writing, or None.
_Rewrite = Callable[[records.Problem], str | None]

_NUMBER = r'\d+(?:\.\d+)?'
# Groups: text before, the part that may change, text after. The colon rules out
# a leading minus.
_SUM = re.compile(rf'(\D*: )({_NUMBER}(?: [+-] {_NUMBER})+)( =)')
_PRODUCT = re.compile(rf'(\D*: )({_NUMBER}(?: \* {_NUMBER})+)(\. \D*)')
_NUMBERS = re.compile(rf'(\D*: )({_NUMBER}(?:, {_NUMBER})+)(\. \D*)')
_ANIMALS = re.compile(r'(\D* if you have )(\d+ [a-z ]+(?:, \d+ [a-z ]+)+)(\?)')
_EQUATION = re.compile(
    r'(?:Find the value of|Solve for|Determine the value of) ([a-z])'
    r'(?: in the equation| that satisfies)?: ([^:]*)'
)


def perturb(problem: records.Problem) -> records.Problem | None:
  """Return the problem in another writing; its answer is the same.

  The result is a function of the problem alone. Its id is that of the new text,
  so that it may be of another split.

  Returns:
    None where nothing can be changed: equal terms, 'a - b', or an unknown
    family or question.
  """
  rewrite = _REWRITES.get(problem.family)
  question = rewrite(problem) if rewrite else None
  if question is None or question == problem.question:
    return None
  messages = list(problem.messages)
  last = max(i for i, m in enumerate(messages) if m['role'] == 'user')
  messages[last] = {**messages[last], 'content': question}
  asked = messages[messages[0]['role'] == 'system' :]
  name = splits.problem_id('\n'.join(m['content'] for m in asked))
  return dataclasses.replace(problem, problem_id=name, messages=tuple(messages))


def _reordered(items: Sequence[str]) -> list[str]:
  """Return the items reversed, or shifted by one if that changes nothing."""
  backwards = list(reversed(items))
  return backwards if backwards != list(items) else [*items[1:], *items[:1]]


def _within(
    pattern: re.Pattern[str], rewrite: Callable[[str], str]
) -> _Rewrite:
  """Return a rewrite of the part of a question that may change."""

  def changed(problem: records.Problem) -> str | None:
    match = pattern.fullmatch(problem.question)
    return match and match[1] + rewrite(match[2]) + match[3]

  return changed


def _sum(text: str) -> str:
  """Reorder the terms of each sign."""
  words = ['+', *text.split(' ')]
  terms = list(zip(words[::2], words[1::2], strict=True))
  of_sign = {s: [t for sign, t in terms if sign == s] for s in '+-'}
  queues = {sign: iter(_reordered(ts)) for sign, ts in of_sign.items()}
  moved = [f'{sign} {next(queues[sign])}' for sign, _ in terms]
  return ' '.join(moved).removeprefix('+ ')


def _list(separator: str) -> Callable[[str], str]:
  """Return a function that changes the order of a list."""
  return lambda text: separator.join(_reordered(text.split(separator)))


def _equation(problem: records.Problem) -> str | None:
  """Choose another lower-case letter for the unknown."""
  match = _EQUATION.fullmatch(problem.question)
  if not match or set(re.findall('[A-Za-z]+', match[2])) != {match[1]}:
    return None
  others = string.ascii_lowercase.replace(match[1], '')
  letter = random.Random(problem.problem_id).choice(others)
  # A letter that stands alone is the unknown: 'Solve for s: 2*s = 8'.
  alone = rf'(?<![A-Za-z]){match[1]}(?![A-Za-z])'
  return re.sub(alone, letter, problem.question)


_REWRITES: Mapping[str, _Rewrite] = {
    'chain_sum': _within(_SUM, _sum),
    'decimal_chain_sum': _within(_SUM, _sum),
    'products': _within(_PRODUCT, _list(' * ')),
    'leg_counting': _within(_ANIMALS, _list(', ')),
    'gcd': _within(_NUMBERS, _list(', ')),
    'simple_equations': _equation,
}
