"""Changes of a problem that make memorised answers useless.

  numbers  all numbers are drawn again, by the generator of the family.
  aside    the same, after an irrelevant sentence.
  swapped  operands change places, or an unknown gets another letter.

The right answer is computed again. For most perturbed problems it differs from
the old one, so that a policy that does not derive it from the question does not
solve them. Apart from the aside, the generator could have written every changed
question.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import decimal
import random
import re
import string
from typing import Any

from evojax import records
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import problems

# The question, the answer and the metadata of a changed problem.
_Changed = tuple[str, str, Mapping[str, Any]]
# Problem -> possible changes of it, best first.
_Change = Callable[[records.Problem], Iterator[_Changed]]

# Shares of generated problems. With a swap alone the answer of a product stays
# the same, so its share is small.
_SHARES = {'numbers': 0.6, 'aside': 0.2, 'swapped': 0.2}
_DRAWS = 64  # Attempts for a question of the same split,
_IN_THE_SAME_WORDS = 24  # of which so many must also have the same words.
ASIDES = (
    'I need to be careful here.',
    'Let me read the problem again.',
    'Maybe there is another way.',
)
_NUMBER = r'\d+(?:\.\d+)?'
# Groups: text before, the part that may change, text after. The colon excludes
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
  """Return a changed problem with its own right answer.

  The result is a function of the problem alone. Its id is that of the new text.
  Numbers are drawn again within the split of the problem; with swapped operands
  or an aside, the new problem may belong to another split.

  Returns:
    The changed problem; None if nothing can be changed: equal operands, or an
    unknown family or question.
  """
  rng = random.Random(problem.problem_id)
  first = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
  for kind in (first, *_SHARES):
    for question, answer, metadata in _CHANGES[kind](problem):
      return _replaced(problem, question, answer, metadata)
  return None


def _replaced(
    problem: records.Problem,
    question: str,
    answer: str,
    metadata: Mapping[str, Any],
) -> records.Problem:
  """Return the problem with another question and its other messages."""
  messages = list(problem.messages)
  last = max(i for i, m in enumerate(messages) if m['role'] == 'user')
  messages[last] = {**messages[last], 'content': question}
  asked = messages[messages[0]['role'] == 'system' :]
  name = splits.problem_id('\n'.join(m['content'] for m in asked))
  return dataclasses.replace(
      problem,
      problem_id=name,
      messages=tuple(messages),
      answer=answer,
      metadata=metadata,
  )


# --------------------------------------------------------------- numbers, aside


def _numbers(problem: records.Problem) -> Iterator[_Changed]:
  """Draw the problem again, if possible with the same words."""
  if problem.metadata.get('source_dataset') != problem.family:
    return  # It was not generated, so no answer can be computed.
  entry = sources.Entry(problem.family, problem.difficulty, 1.0)
  stream = int(problem.problem_id, 16)
  others: list[_Changed] = []
  for index in range(_DRAWS):
    if others and index >= _IN_THE_SAME_WORDS:
      break
    name, build = problems.CATALOGUE.draft(entry, stream, index, '')
    if splits.split_of(name) != splits.split_of(problem.problem_id):
      continue
    drawn = build()
    if drawn is None or drawn.answer == problem.answer:
      continue
    found = drawn.question, drawn.answer, drawn.metadata
    if _words(drawn.question) == _words(problem.question):
      yield found
      return
    others.append(found)
  yield from others[:1]


def _words(question: str) -> str:
  """Return a question without its numbers and the letter of its unknown."""
  return re.sub(rf'{_NUMBER}|(?<![A-Za-z])[a-z](?![A-Za-z])', '#', question)


def _aside(problem: records.Problem) -> Iterator[_Changed]:
  """Put an irrelevant sentence before a question that is drawn again."""
  aside = random.Random(f'{problem.problem_id}/aside').choice(ASIDES)
  for question, answer, metadata in _numbers(problem):
    yield f'{aside} {question}', answer, metadata


# ---------------------------------------------------------------------- swapped


def _swapped(problem: records.Problem) -> Iterator[_Changed]:
  """Swap operands, or choose another letter for the unknown."""
  swap = _SWAPS.get(problem.family)
  found = swap(problem) if swap else None
  if found and found[0] != problem.question:
    yield found


def _reordered(items: Sequence[str]) -> list[str]:
  """Return the items reversed, or shifted by one if that changes nothing."""
  backwards = list(reversed(items))
  return backwards if backwards != list(items) else [*items[1:], *items[:1]]


def _sum(problem: records.Problem) -> _Changed | None:
  """Reorder the terms while the signs stay, so that the sum changes."""
  match = _SUM.fullmatch(problem.question)
  if not match:
    return None
  words = match[2].split(' ')
  # If the question meant something else, the new answer would be wrong.
  if not _equal(_total(words), problem.answer):
    return None
  words[::2] = _reordered(words[::2])
  text = ' '.join(words)
  metadata = {**problem.metadata, 'expression': text}
  return match[1] + text + match[3], str(_total(words)), metadata


def _total(words: Sequence[str]) -> decimal.Decimal:
  """Return the sum of alternating terms and signs."""
  signs = ('+', *words[1::2])
  terms = map(decimal.Decimal, words[::2])
  return sum(
      (t if s == '+' else -t for s, t in zip(signs, terms, strict=True)),
      decimal.Decimal(0),
  )


def _equal(value: decimal.Decimal, answer: str) -> bool:
  try:
    return decimal.Decimal(answer) == value
  except decimal.InvalidOperation:
    return False


def _list(
    pattern: re.Pattern[str], separator: str
) -> Callable[[records.Problem], _Changed | None]:
  """Return a function that changes an order on which no answer depends."""

  def swap(problem: records.Problem) -> _Changed | None:
    match = pattern.fullmatch(problem.question)
    if not match:
      return None
    moved = separator.join(_reordered(match[2].split(separator)))
    metadata = dict(problem.metadata)
    if 'expression' in metadata:
      metadata['expression'] = moved
    return match[1] + moved + match[3], problem.answer, metadata

  return swap


def _equation(problem: records.Problem) -> _Changed | None:
  """Choose another lower-case letter for the unknown."""
  match = _EQUATION.fullmatch(problem.question)
  if not match or set(re.findall('[A-Za-z]+', match[2])) != {match[1]}:
    return None
  others = string.ascii_lowercase.replace(match[1], '')
  letter = random.Random(problem.problem_id).choice(others)
  # A letter that stands alone is the unknown: 'Solve for s: 2*s = 8'.
  alone = rf'(?<![A-Za-z]){match[1]}(?![A-Za-z])'
  question = re.sub(alone, letter, problem.question)
  return question, problem.answer, problem.metadata


_SWAPS: Mapping[str, Callable[[records.Problem], _Changed | None]] = {
    'chain_sum': _sum,
    'decimal_chain_sum': _sum,
    'products': _list(_PRODUCT, ' * '),
    'leg_counting': _list(_ANIMALS, ', '),
    'gcd': _list(_NUMBERS, ', '),
    'simple_equations': _equation,
}
_CHANGES: Mapping[str, _Change] = {
    'numbers': _numbers,
    'aside': _aside,
    'swapped': _swapped,
}
