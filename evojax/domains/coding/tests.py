"""What a program is judged by: tests as text, and their comparison.

The text is a problem's `answer`. It stays with the evaluator: a box gets a
case's input, the trusted parent compares what came out.
"""

from collections.abc import Mapping
import dataclasses
import json
import keyword
import math
import re
from typing import Any
import unicodedata

# Python's float() takes more than programs print: '1_000', 'infinity'. Digits
# match in one way only, else a long number takes the square of its time.
_NUMBER = re.compile(r'[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?', re.ASCII)
_WHOLE = re.compile(r'[-+]?\d+', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Case:
  """One run of a program."""

  stdin: str
  expected: str  # What it must print.
  visible: bool  # Shown to the policy as an example.


@dataclasses.dataclass(frozen=True)
class Tests:
  """All that decides whether a program is right.

  Where `function` is named, the program defines it (at the top, or in a class
  Solution). A case is then one call: `stdin` holds its arguments, one JSON
  value a line, and `expected` the result as JSON.
  """

  cases: tuple[Case, ...]  # At least one.
  tolerance: float = 0.0  # Of numbers, see `passes`; 0: exact tokens.
  function: str = ''  # Empty: standard input to standard output.
  seconds: float = 2.0  # CPU time of one test; wall time: see `judge`.


def encode(tests: Tests) -> str:
  """The JSON text of tests, for `types.Problem.answer`."""
  cases = [[c.stdin, c.expected, c.visible] for c in tests.cases]
  return json.dumps(
      {**dataclasses.asdict(tests), 'cases': cases}, separators=(',', ':')
  )


def decode(text: str) -> Tests:
  """The tests of a JSON text.

  Raises:
    ValueError: If it is not what `encode` writes; says which field.
  """
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'tests are not JSON: {error}') from error
  names = {field.name for field in dataclasses.fields(Tests)}
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
  function = value['function']
  if not isinstance(function, str) or not (_is_name(function) or not function):
    raise ValueError(
        f'tests: function={function!r} must be empty or the name of a function'
    )
  return Tests(
      tuple(Case(*case) for case in cases),
      float(value['tolerance']),
      function,
      float(value['seconds']),
  )


def _is_name(text: str) -> bool:
  """Whether Python could define it, and would find it by this name."""
  return (
      text.isidentifier()
      and not keyword.iskeyword(text)
      and unicodedata.normalize('NFKC', text) == text
  )


def passes(case: Case, stdout: bytes, tolerance: float) -> bool:
  """Whether a program printed what it must.

  Tokens are compared, whatever white space is between them. With a tolerance,
  two numbers of which one is no whole number agree within tolerance * max(1,
  |expected|); all other tokens must be equal.

  Args:
    case: What was run.
    stdout: All that it printed; what is not UTF-8 passes nothing.
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
  """Whether a function returned what it must.

  JSON values are compared: true is not 1, but 2.0 is 2. Numbers with a
  fractional part agree within the tolerance, as in `passes`.

  Args:
    case: What was called.
    result: The result as JSON; what is not passes nothing.
    tolerance: >= 0.
  """
  try:
    value = json.loads(result.decode())
    return _same(value, json.loads(case.expected), tolerance)
  except (ValueError, RecursionError, OverflowError):
    return False


def _near(a: str, b: str, tolerance: float) -> bool:
  if not _NUMBER.fullmatch(a) or not _NUMBER.fullmatch(b):
    return False
  if _WHOLE.fullmatch(a) and _WHOLE.fullmatch(b):
    return False  # A count beside a distance is exact.
  return _close(float(a), float(b), tolerance)


def _close(a: float, b: float, tolerance: float) -> bool:
  # Infinity is what 1e999 is read as; everything would be near to it.
  return math.isfinite(b) and abs(a - b) <= tolerance * max(1.0, abs(b))


def _same(a: Any, b: Any, tolerance: float) -> bool:
  """Equality of two JSON values."""
  numbers = (int, float)
  if type(a) in numbers and type(b) in numbers:
    if a == b or tolerance == 0 or float not in (type(a), type(b)):
      return a == b  # As floats, 2**53 and its successor are one.
    return _close(float(a), float(b), tolerance)
  if type(a) is not type(b):
    return False
  if isinstance(a, list):
    return len(a) == len(b) and all(
        _same(x, y, tolerance) for x, y in zip(a, b, strict=True)
    )
  if isinstance(a, Mapping):
    return a.keys() == b.keys() and all(_same(a[k], b[k], tolerance) for k in a)
  return a == b
