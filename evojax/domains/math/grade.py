"""Grading of a completion: find the answer and compare it with the reference.

The rules of `compare`, whose docstring has two more:
  - The reference determines the comparison. A number is compared as an exact
    rational: 0.75, 3/4, \\frac{3}{4} and 75% are equal. There is no tolerance;
    a rounded reference has a leading ≈ and accepts every answer that rounds to
    it.
  - The answer must be a value, not a calculation: 4 + 4 and 8/2 do not answer
    'Calculate 8 / 2', though a fraction such as 6/8 is a number. A calculation
    may lead to the value if it is right: 8/2 = 4.
  - An expression (2\\sqrt{3}, (x+1)^2) is compared as a function of its
    symbols, whose case matters; tuples, sets, intervals, matrices and relations
    are compared part by part, see `equality`. If the reference is a constant
    such as \\sqrt{3}/2 or (1, 2), answers such as \\sin 60^\\circ and (2-1, 2)
    are calculations, not values. Inequalities are not solved, and sums and
    products of matrices are not computed.
  - Anything else is compared as a normalised string. A comma in a reference
    separates values or thousands; an answer may have a decimal comma.
  - Only one value is accepted. Units are not inferred: 5 cm is neither 5 nor
    500.
"""

import collections
import fractions
import functools
import re
from typing import NamedTuple

from evojax import records
from evojax.domains.math import equality
from evojax.domains.math import expressions
from evojax.domains.math import literals
from evojax.evidence import schema

GRADE_STATUS = {
    'ok': 0,  # An answer was found and compared.
    'no_answer': 1,  # There is no answer in the required format.
    'unparsable': 2,  # The answer is not a single value of that kind.
    'wrong_form': 3,  # The value is right, but not in the required form.
    'too_long': 4,  # More than MAX_ANSWER_CHARS.
    'timeout': 5,  # Beyond the limits of `equality`, or a scorer's time limit.
    records.INFRA_ERROR: 6,  # The box failed, see `scoring`: there is no grade.
}
# An answer in prose, outside the required format, does not count as an answer.
MATH_MODE = {
    'direct': 0,  # Answers at once.
    'steps': 1,  # Works it out, then answers.
    'direct_unformatted': 2,
    'steps_unformatted': 3,
    'ramble': 4,  # Has no answer, because it was cut at the limit or is empty.
}
ANSWER_FORMATS = ('tag', 'boxed', 'hash', 'last_number')
# Required forms of an answer, besides its value.
FORMS = (
    'value',  # Any number or expression, by the rules above.
    'lowest',  # An integer or a fraction in lowest terms.
    'text',  # The same normalised string, e.g. for numerals of other bases.
)
COLUMNS = (
    schema.with_codes('grade_status', GRADE_STATUS),
    schema.Column(
        'format_ok',
        'bool',
        'A complete answer in the required format was found.',
        behaviour=True,
    ),
    schema.Column(
        'answer_chars',
        'int32',
        'Length of the answer as extracted, 0 if there is none.',
        unit='characters',
        behaviour=True,
    ),
    schema.Column(
        'mode',
        'int32',
        'How the completion answers, as its text alone shows.',
        codes=MATH_MODE,
        behaviour=True,
    ),
)

MAX_TEXT_CHARS = 200_000  # Only the tail of a longer completion is read.
MAX_ANSWER_CHARS = 1000
# Text before an answer counts as work if it is at least this long or has a '='.
# The limit is longer than 'So the final answer is'.
_WORK_CHARS = 40
_BOXED = re.compile(r'\\(?:boxed\s*\{|[{}\\])|[{}]')
_NUMBER = re.compile(
    r'(?<![\w.])[-+−]?[$£€]?(?:[0-9][0-9,]*)?\.?[0-9]+'
    r'(?:[eE][-+]?[0-9]+)?(?:/[0-9]+)?%?'
)
_NUMBER_AT_END = re.compile(r'[-+−]?[0-9][0-9.,/]*%?\W*$')
_LAST_SIDE = re.compile('(.*)[=≈](.*)', re.DOTALL)
_THINK_TAG = re.compile(r'</?think>')
_MATH = re.compile(r"[\\_^{}=<>']")  # Characters that do not occur in prose.
_CHOICES = tuple('ABCDEF')


class Extraction(NamedTuple):
  """An answer in the text of a completion."""

  answer: str
  start: int  # Start of its markup; the text before it is the work.


def extract(text: str, answer_format: str) -> Extraction | None:
  """Find the last complete answer.

  Args:
    text: A completion.
    answer_format: 'tag' <answer>42</answer>; 'boxed' \\boxed{42}; 'hash'
      #### 42 to the end of the line; 'last_number'.

  Returns:
    The answer; None if there is no complete, non-empty answer.

  Raises:
    ValueError: If the format is unknown.
  """
  if answer_format not in _EXTRACT:
    raise ValueError(f'{answer_format=} is not one of {ANSWER_FORMATS}')
  found = _EXTRACT[answer_format](text)
  return found if found and found.answer.strip() else None


def _extract_tag(text: str) -> Extraction | None:
  start = text.rfind('<answer>', 0, max(0, text.rfind('</answer>')))
  if start < 0:
    return None
  end = text.index('</answer>', start)
  return Extraction(text[start + len('<answer>') : end], start)


def _extract_boxed(text: str) -> Extraction | None:
  last = None
  stack = []  # One entry per open brace: the match of \\boxed, else None.
  for match in _BOXED.finditer(text):
    token = match[0]
    if token.startswith(r'\boxed'):
      stack.append(match)
    elif token == '{':
      stack.append(None)
    elif token == '}' and stack:
      opened = stack.pop()
      if opened and (last is None or opened.start() > last.start):
        last = Extraction(text[opened.end() : match.start()], opened.start())
  return last


def _extract_hash(text: str) -> Extraction | None:
  start = text.rfind('####')
  if start < 0:
    return None
  line, _, _ = text[start + 4 :].lstrip(' \t').partition('\n')
  return Extraction(line, start)


def _extract_last_number(text: str) -> Extraction | None:
  found = collections.deque(_NUMBER.finditer(text), maxlen=1)
  return Extraction(found[0][0], found[0].start()) if found else None


_EXTRACT = {
    'tag': _extract_tag,
    'boxed': _extract_boxed,
    'hash': _extract_hash,
    'last_number': _extract_last_number,
}


def compare(reference: str, answer: str, form: str = 'value') -> str:
  """Compare an answer with the reference.

  If both sides have a trailing percent sign, the numbers must agree; if one
  has, 50% is both 50 and 1/2, because the question may ask for either. The name
  before a value (`x =`, `f(2) =`) may be missing on either side.

  Args:
    reference: The right answer, from a trusted source.
    answer: The policy's answer: any text at all.
    form: One of FORMS.

  Returns:
    'right', 'wrong', or a key of GRADE_STATUS other than 'ok' and 'no_answer',
    all of which count as wrong.
  """
  if len(answer) > MAX_ANSWER_CHARS:
    return 'too_long'
  kind, expected = _reference(reference, form)
  given = literals.canonical(answer)
  if kind in ('number', 'rounded'):
    return _compare_number(expected, given, kind == 'rounded', form)
  fold = kind == 'word'
  if _plain(given, fold) == _plain(literals.canonical(reference), fold):
    return 'right'
  if kind in ('text', 'word'):
    return 'wrong'
  try:
    return equality.compare(expected, expressions.parse(given))
  except expressions.ExpressionError:
    return 'unparsable'


def _compare_number(
    expected: literals.Number, given: str, rounded: bool, form: str
) -> str:
  given = given.removeprefix('≈').lstrip()
  number = literals.parse_answer(given) or _last_side(given)
  if number is None:
    return 'unparsable'
  if not _same_value(expected, number, rounded):
    return 'wrong'
  if number.is_fraction and not (
      expected.is_fraction or number.value.denominator > 1
  ):
    return 'wrong_form'  # 8/2 instead of 4 is an unfinished calculation.
  if form == 'lowest' and not _is_lowest(number):
    return 'wrong_form'
  return 'right'


def _last_side(text: str) -> literals.Number | None:
  """Return the number at the end of a chain of equations, x = 3 * 4 = 12."""
  match = _LAST_SIDE.fullmatch(text)
  number = match and literals.parse_answer(match[2].strip())
  if number is None:
    return None
  value = ('number', number.value / (100 if number.percent else 1))
  try:
    found = equality.leads_to(expressions.parse(match[1]), value)
  except expressions.ExpressionError:
    return None
  return number if found else None


@functools.lru_cache(maxsize=4096)
def _reference(
    text: str, form: str
) -> tuple[str, literals.Number | expressions.Tree | None]:
  """Return the kind of a reference, and its value for comparison."""
  text = literals.canonical(text)
  if form != 'text':
    rounded = text.startswith('≈')
    number = literals.parse(text.removeprefix('≈').lstrip())
    if number is not None:
      return 'rounded' if rounded else 'number', number
    # A word is not a product of symbols: 'no' is not 'on', 'act' is not 'cat'.
    # A capital letter may be one of several choices.
    if text not in _CHOICES and not _is_word(text):
      try:
        tree = expressions.parse(text)
        if equality.compare(tree, tree) == 'right':
          return 'expression', tree
      except expressions.ExpressionError:
        pass  # It is text, such as prose or a time of day.
  is_word = form == 'text' or not _MATH.search(text)
  return 'word' if is_word else 'text', None


def _is_word(text: str) -> bool:
  """Return whether letters form a word, not a product such as xy and abc."""
  folded = text.casefold()
  if not text.isalpha() or len(text) == 1:
    return False
  if not (expressions.is_product(text) and expressions.is_product(folded)):
    return True
  return len(text) > 2 and 'a' in folded and not folded.startswith('ab')


def _plain(canonical: str, fold: bool) -> str:
  """Normalise text: spaces at punctuation and a word's case do not matter."""
  text = canonical.casefold().strip('\'" ') if fold else canonical
  # A choice may be in brackets: (C).
  text = re.sub(r'\{(\w)\}|\A[(\[]([a-f])[)\]]\Z', r'\1\2', text)
  return re.sub(r'\s*([^\w\s])\s*', r'\1', text)


def _same_value(
    expected: literals.Number, number: literals.Number, rounded: bool
) -> bool:
  tolerance = fractions.Fraction(rounded, 2 * 10**expected.places)
  values = [number.value]
  if number.percent and not expected.percent:
    values.append(number.value / 100)
  targets = [expected.value]
  if expected.percent and not number.percent:
    targets.append(expected.value / 100)
  return any(abs(v - t) <= tolerance for v in values for t in targets)


def _is_lowest(number: literals.Number) -> bool:
  """Return whether a number is an integer or a fraction in lowest terms."""
  if number.is_fraction:
    return number.in_lowest_terms
  return not number.percent and number.value.denominator == 1


def classify(text: str, found: Extraction | None, truncated: bool) -> str:
  """Return the completion's key in MATH_MODE.

  Work is text before the answer that has a '=' or at least 40 characters;
  <think> tags do not count, but their content does.

  Args:
    text: A completion.
    found: Its answer, from `extract`.
    truncated: Whether sampling ended at the limit.
  """
  if found is None and (truncated or not text.strip()):
    return 'ramble'
  if found is None:
    tail = max(0, len(text) - 200)
    number = _NUMBER_AT_END.search(text, tail)
    work = text[: number.start()] if number else text
  else:
    work = text[: found.start]
  work = _THINK_TAG.sub('', work).strip()
  steps = '=' in work or len(work) >= _WORK_CHARS
  mode = 'steps' if steps else 'direct'
  return mode if found else f'{mode}_unformatted'


def grade(
    reference: str,
    text: str,
    answer_format: str,
    truncated: bool = False,
    form: str = 'value',
) -> records.Grade:
  """Grade the text of one completion. Any text gets a grade.

  Args:
    reference: The right answer.
    text: The completion without special tokens.
    answer_format: One of ANSWER_FORMATS.
    truncated: Whether sampling ended at the limit.
    form: One of FORMS.
  """
  text = text[-MAX_TEXT_CHARS:]
  found = extract(text, answer_format)
  answer = found.answer.strip() if found else ''
  verdict = compare(reference, answer, form) if found else 'no_answer'
  right = verdict == 'right'
  return records.Grade(
      outcome=right,
      partial=float(right),
      status='ok' if verdict in ('right', 'wrong') else verdict,
      columns=columns(text, found, truncated),
  )


def columns(
    text: str, found: Extraction | None, truncated: bool
) -> dict[str, int | bool]:
  """Return the values of COLUMNS besides the status; see `classify`."""
  return {
      'format_ok': found is not None,
      'answer_chars': len(found.answer.strip()) if found else 0,
      'mode': MATH_MODE[classify(text, found, truncated)],
  }
