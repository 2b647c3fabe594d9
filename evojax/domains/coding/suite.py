"""The tests of a problem, as text.

The text is a problem's `answer`. It stays with the evaluator: the box gets a
case's input, and the trusted parent compares the output.
"""

import dataclasses
import json
import keyword
import math
from typing import Any, NamedTuple
import unicodedata

from evojax.domains.coding import comparison as comparison_lib


class Case(NamedTuple):
  """One run of a program."""

  stdin: str
  expected: str  # The expected output.
  visible: bool  # Shown to the policy as an example.


@dataclasses.dataclass(frozen=True)
class Suite:
  """The tests of one problem.

  If `function` is not empty, the program defines that function, at the top
  level or in a class Solution. A case is then one call: `stdin` holds its
  arguments, one JSON value per line, and `expected` the result as JSON.
  """

  cases: tuple[Case, ...]  # At least one.
  comparison: comparison_lib.Comparison = comparison_lib.Comparison()
  function: str = ''  # '': a program from standard input to standard output.
  integer_keys: bool = False  # For arguments, see `wrapper.wrap`.
  seconds: float = 2.0  # CPU time of one test; `execution` sets wall time.


def encode(tests: Suite) -> str:
  """Return the JSON text of tests, for `records.Problem.answer`."""
  return json.dumps(dataclasses.asdict(tests), separators=(',', ':'))


def decode(text: str) -> Suite:
  """Return the tests in a JSON text.

  Raises:
    ValueError: If `encode` did not write it; names the field.
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
          f'tests: case {number} must be [stdin, expected, visible]: two'
          ' texts, and true or false'
      )
  seconds = value['seconds']
  if type(seconds) not in (int, float) or not 1e-3 <= seconds < math.inf:
    raise ValueError(f'tests: seconds={seconds!r} must be a number >= 0.001')
  comparison = _comparison(value['comparison'])
  if type(value['integer_keys']) is not bool:
    raise ValueError('tests: integer_keys must be true or false')
  function = value['function']
  if function != '' and not _is_name(function):
    raise ValueError(
        f'tests: function={function!r} must be empty or the name of a function'
    )
  cases = tuple(Case(*case) for case in cases)
  return Suite(**value | {'cases': cases, 'comparison': comparison})


def _comparison(fields: Any) -> comparison_lib.Comparison:
  default = dataclasses.asdict(comparison_lib.Comparison())
  types = {name: type(each) for name, each in default.items()}
  if not isinstance(fields, dict) or types != {
      name: type(each) for name, each in fields.items()
  }:
    raise ValueError(
        f'tests: comparison={fields!r:.200} must be an object with these'
        f' fields, of these types: {default}'
    )
  try:
    return comparison_lib.Comparison(**fields)
  except ValueError as error:
    raise ValueError(f'tests: {error}') from error


def _is_name(text: Any) -> bool:
  """Return whether a text is a valid name of a function in Python."""
  return (
      isinstance(text, str)
      and text.isidentifier()
      and not keyword.iskeyword(text)
      and unicodedata.normalize('NFKC', text) == text
  )
