"""Comparison of a program's output with the expected one, outside the box.

A problem has one of these modes:

  exact     The text must be equal except for newlines at its end; CR LF ends a
            line like LF. A result of a call must have the same JSON types: true
            is not 1, and 2.0 is not 2.
  tokens    Tokens must be equal, whatever white space is between them.
  decimals  Lines are compared as in LiveCodeBench: without white space at their
            ends they are equal, or all of their tokens are numbers with equal
            values, so that 1.0 is 1 and 1e3 is 1000. Lines must match in order.

Results of calls are JSON values, which are compared as in Python unless the
mode is exact: true is 1, and 2.0 is 2.

With a tolerance, two numbers that are not both integers may also differ by
`absolute`, or by `relative` times the expected one.
"""

import dataclasses
import decimal
import json
import math
import re
from typing import Any

MODES = ('exact', 'tokens', 'decimals')
# Python's float() accepts more than this: '1_000', 'infinity'. Digits match in
# one way only; otherwise a long number would take quadratic time.
_NUMBER = re.compile(r'[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?', re.ASCII)
_WHOLE = re.compile(r'[-+]?\d+', re.ASCII)
# Python refuses to parse longer integers, because that takes quadratic time.
_MOST_DIGITS = 4300


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The way to compare outputs.

  Raises:
    ValueError: If a field is invalid; names it.
  """

  mode: str = 'tokens'  # One of MODES.
  absolute: float = 0.0  # Tolerances; not for the mode exact.
  relative: float = 0.0
  # A result may also be a list with the expected value as its only element: the
  # files of TACO do not say whether [3] is the result or a list of it.
  wrapped: bool = False

  def __post_init__(self):
    if self.mode not in MODES:
      raise ValueError(f'comparison={self.mode!r} is not one of {MODES}')
    for name in ('absolute', 'relative'):
      number = getattr(self, name)
      if not 0 <= number < math.inf:
        raise ValueError(f'{name}={number!r} must be a number >= 0')
    if self.mode == 'exact' and self.is_tolerant:
      raise ValueError(
          "comparison='exact' has no tolerance: use tokens or decimals"
      )

  @property
  def is_tolerant(self) -> bool:
    """True if numbers may differ."""
    return bool(self.absolute or self.relative)


def passes(expected: str, stdout: bytes, rule: Comparison) -> bool:
  """Return whether a program has printed the expected output.

  Args:
    expected: The expected output.
    stdout: The program's whole output; output that is not UTF-8 fails.
    rule: The way to compare them.
  """
  try:
    printed = stdout.decode()
  except UnicodeDecodeError:
    return False
  match rule.mode:
    case 'exact':
      ends = (text.replace('\r\n', '\n') for text in (printed, expected))
      return len({text.rstrip('\n') for text in ends}) == 1
    case 'tokens':
      return _are_near(printed.split(), expected.split(), rule)
  left, right = (text.strip().split('\n') for text in (printed, expected))
  return len(left) == len(right) and all(
      _is_same_line(a.strip(), b.strip(), rule)
      for a, b in zip(left, right, strict=True)
  )


def returns(expected: str, result: bytes, rule: Comparison) -> bool:
  """Return whether a function has returned the expected result.

  Args:
    expected: The expected result as JSON.
    result: The returned JSON; anything else fails.
    rule: The way to compare them.
  """
  try:
    value, wanted = read_json(result.decode()), read_json(expected)
    return _is_same(value, wanted, rule) or (
        rule.wrapped and _is_same([value], wanted, rule)
    )
  except (ValueError, RecursionError, OverflowError):
    return False


def read_json(text: str) -> Any:
  """Return a JSON value; a very long integer becomes a tuple of its text."""
  return json.loads(text, parse_int=_read_whole)


def _read_whole(text: str) -> int | tuple[str]:
  return int(text) if len(text) <= _MOST_DIGITS else (text,)


def _is_same_line(a: str, b: str, rule: Comparison) -> bool:
  if a == b:
    return True
  left, right = a.split(), b.split()
  try:
    if [*map(decimal.Decimal, left)] == [*map(decimal.Decimal, right)]:
      return True
  except decimal.InvalidOperation:
    pass
  return rule.is_tolerant and _are_near(left, right, rule)


def _are_near(left: list[str], right: list[str], rule: Comparison) -> bool:
  return len(left) == len(right) and all(
      a == b or _is_near(a, b, rule) for a, b in zip(left, right, strict=True)
  )


def _is_near(a: str, b: str, rule: Comparison) -> bool:
  if not (rule.is_tolerant and _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)):
    return False
  if _WHOLE.fullmatch(a) and _WHOLE.fullmatch(b):
    return False  # Integers, such as counts, must be exact.
  return _is_close(float(a), float(b), rule)


def _is_close(a: float, b: float, rule: Comparison) -> bool:
  # 1e999 is parsed as infinity, and every number would be close to it.
  most = max(rule.absolute, rule.relative * abs(b))
  return math.isfinite(b) and abs(a - b) <= most


def _is_same(value: Any, wanted: Any, rule: Comparison) -> bool:
  """Return whether two JSON values are equal, at any depth of nesting."""
  pairs = [(value, wanted)]
  while pairs:
    a, b = pairs.pop()
    if type(a) is type(b) is list and len(a) == len(b):
      pairs.extend(zip(a, b, strict=True))
    elif type(a) is type(b) is dict and a.keys() == b.keys():
      pairs.extend((a[key], b[key]) for key in a)
    elif not _is_same_scalar(a, b, rule):
      return False
  return True


def _is_same_scalar(a: Any, b: Any, rule: Comparison) -> bool:
  """Return whether two values are equal, not both of them lists or objects."""
  kinds = {type(a), type(b)}
  if kinds <= {bool, int, float} and rule.mode != 'exact':
    # As floats, 2**53 and 2**53 + 1 would be equal.
    if a == b or bool in kinds or float not in kinds or not rule.is_tolerant:
      return a == b
    return _is_close(float(a), float(b), rule)
  return len(kinds) == 1 and a == b
