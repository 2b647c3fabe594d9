"""The tests of a problem, as text, and how outputs are compared.

The text is a problem's `answer`. It stays with the evaluator: the box gets a
case's input, and the trusted parent compares the output.
"""

from collections.abc import Mapping
import dataclasses
import itertools
import json
import keyword
import math
import re
from typing import Any, NamedTuple
import unicodedata

# Python's float() accepts more than this: '1_000', 'infinity'. Digits match in
# one way only, because a long number would take quadratic time otherwise.
_NUMBER = re.compile(r'[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?', re.ASCII)
_WHOLE = re.compile(r'[-+]?\d+', re.ASCII)


class Case(NamedTuple):
  """One run of a program."""

  stdin: str
  expected: str  # The output that it must have.
  visible: bool  # Shown to the policy as an example.


@dataclasses.dataclass(frozen=True)
class Suite:
  """The tests of one problem.

  If `function` is not empty, the program defines that function, at the top
  level or in a class Solution. A case is then one call: `stdin` holds its
  arguments, one JSON value per line, and `expected` the result as JSON.
  """

  cases: tuple[Case, ...]  # At least one.
  tolerance: float = 0.0  # For numbers, see `passes`; 0: tokens must be equal.
  function: str = ''  # Empty: standard input to standard output.
  seconds: float = 2.0  # CPU time of one test; `execution` sets wall time.


def encode(tests: Suite) -> str:
  """Return the JSON text of tests, for `records.Problem.answer`."""
  return json.dumps(dataclasses.asdict(tests), separators=(',', ':'))


def decode(text: str) -> Suite:
  """Return the tests in a JSON text.

  Raises:
    ValueError: If `encode` cannot have written it; names the field.
  """
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'tests are not JSON: {error}') from error
  names = {field.name for field in dataclasses.fields(Suite)}
  if not isinstance(value, dict) or set(value) != names:
    got = sorted(value) if isinstance(value, dict) else type(value).__name__
    raise ValueError(
        f'tests must be an object with the fields {sorted(names)}, not {got}'
    )
  cases = value['cases']
  if not isinstance(cases, list) or not cases:
    raise ValueError('tests: cases must be a list of at least one case')
  for number, case in enumerate(cases):
    kinds = [type(x) for x in case] if isinstance(case, list) else type(case)
    if kinds != [str, str, bool]:
      raise ValueError(
          f'tests: case {number} must be [stdin, expected, visible]: two texts'
          f' and true or false'
      )
  for name, least in (('tolerance', 0.0), ('seconds', 1e-3)):
    number = value[name]
    if type(number) not in (int, float) or not least <= number < math.inf:
      raise ValueError(f'tests: {name}={number!r} must be a number >= {least}')
    value[name] = float(number)
  function = value['function']
  if function != '' and not _is_name(function):
    raise ValueError(
        f'tests: function={function!r} must be empty or the name of a function'
    )
  return Suite(**value | {'cases': tuple(Case(*case) for case in cases)})


def _is_name(text: Any) -> bool:
  """Return whether Python can define and find a function of this name."""
  return (
      isinstance(text, str)
      and text.isidentifier()
      and not keyword.iskeyword(text)
      and unicodedata.normalize('NFKC', text) == text
  )


def passes(case: Case, stdout: bytes, tolerance: float) -> bool:
  """Return whether a program has printed the expected output.

  Tokens are compared, whatever white space is between them. With a tolerance,
  two numbers of which one is not whole agree within tolerance *
  max(1, |expected|); all other tokens must be equal.

  Args:
    case: The test.
    stdout: All that the program printed; output that is not UTF-8 fails.
    tolerance: >= 0.
  """
  try:
    printed = stdout.decode().split()
  except UnicodeDecodeError:
    return False
  expected = case.expected.split()
  return len(printed) == len(expected) and all(
      a == b or (tolerance > 0 and _near(a, b, tolerance))
      for a, b in zip(printed, expected, strict=True)
  )


def returns(case: Case, result: bytes, tolerance: float) -> bool:
  """Return whether a function has returned the expected result.

  JSON values are compared: true is not 1, but 2.0 is 2. Numbers with a
  fractional part agree within the tolerance, as in `passes`.

  Args:
    case: The test.
    result: The result as JSON; anything else fails.
    tolerance: >= 0.
  """
  try:
    value = json.loads(result.decode())
    return _same(value, json.loads(case.expected), tolerance)
  except (ValueError, RecursionError, OverflowError):
    return False


def _near(a: str, b: str, tolerance: float) -> bool:
  if not (_NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)):
    return False
  if _WHOLE.fullmatch(a) and _WHOLE.fullmatch(b):
    return False  # Whole numbers, such as counts, must be exact.
  return _close(float(a), float(b), tolerance)


def _close(a: float, b: float, tolerance: float) -> bool:
  # 1e999 is read as infinity, and every number would be close to it.
  return math.isfinite(b) and abs(a - b) <= tolerance * max(1.0, abs(b))


def _same(a: Any, b: Any, tolerance: float) -> bool:
  """Return whether two JSON values are equal."""
  numbers = (int, float)
  if type(a) in numbers and type(b) in numbers:
    if a == b or tolerance == 0 or float not in (type(a), type(b)):
      return a == b  # As floats, 2**53 and 2**53 + 1 would be equal.
    return _close(float(a), float(b), tolerance)
  if type(a) is not type(b):
    return False
  if isinstance(a, list):
    tolerances = itertools.repeat(tolerance)
    return len(a) == len(b) and all(map(_same, a, b, tolerances))
  if isinstance(a, Mapping):
    return a.keys() == b.keys() and all(_same(a[k], b[k], tolerance) for k in a)
  return a == b
