"""Problems from JSONL files in the formats of LiveCodeBench and TACO.

LiveCodeBench (arXiv:2403.07974): question_content, starter_code, difficulty,
public_test_cases and private_test_cases, JSON lists of {input, output,
testtype}, and metadata, whose func_name names the function of call tests. The
private ones may be compressed as in code_generation_lite. Outputs are compared
by the rules of its harness.

TACO (arXiv:2312.14852): question, starter_code, difficulty and input_output,
JSON of {inputs, outputs, fn_name}; solutions are not read. Outputs are compared
by tokens. Its own harness also accepts some outputs with the characters of the
expected one in another order, which no problem intends.

In both formats, numbers may differ by the tolerance that the statement names. A
row may set its comparison with "comparison", a mode of `comparison`, and
"tolerance", a number or {"absolute": ..., "relative": ...}.
"""

import base64
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import pickletools
import re
from typing import Any
import zlib

from evojax import records
from evojax.domains import datasets
from evojax.domains import sources
from evojax.domains.coding import comparison as comparison_lib
from evojax.domains.coding import suite

_Row = Mapping[str, Any]

# LiveCodeBench's own limit for one test. Neither data set has limits per
# problem that were chosen for Python.
_SECONDS = 6.0
_DIFFICULTIES = ('easy', 'medium', 'medium_hard', 'hard', 'very_hard')
_UNKNOWN_DIFFICULTY = 'medium'
# Instructions of a pickle that store a text, and those around them.
_UNICODE = ('BINUNICODE', 'BINUNICODE8')
_AROUND_A_TEXT = frozenset(
    'PROTO FRAME BINPUT LONG_BINPUT PUT MEMOIZE STOP'.split()
)
_KINDS = ('absolute', 'relative')  # Kinds of tolerances.
# 10^{-6}, 10^(-6), 10**-6, 1e-6 or 0.000001, with any dash.
_SMALL = (
    r'(?:(?:10\s*(?:\^|\*\*)?\s*[{(]?\s*[-−–]\s*|1e[-−–]0?)([1-9]\d?)(?!\d)'
    r'|0\.(0{0,14}1)(?![\d.]*\d))'
)
_TOLERANCES = [
    re.compile(pattern + _SMALL + end, re.IGNORECASE | re.ASCII)
    for pattern, end in (
        # 'an absolute or relative error of at most 10^{-6}'
        (r'(?:absolute|relative)[^.]{0,80}error[^.]{0,80}?', ''),
        # 'the error (absolute or relative) is at most 10^{-6}'
        (r'error[^.]{0,20}(?:absolute|relative)[^.]{0,80}?', ''),
        # 'within 10^-5 of the actual answer'
        (r'within\s+', r'\s+of\s+the\s+(?:actual|correct|true)\s'),
    )
]


def read_jsonl(
    path: str, *, skip_broken: bool = False, system_prompt: str = ''
) -> list[records.Problem]:
  """Read one problem per line; a repeated problem is kept once.

  A row may name its family with "tag"; by default it is the file's name.

  Args:
    path: A file in UTF-8.
    skip_broken: Whether broken lines are left out, with a warning.
    system_prompt: First message of every problem; '' for none.

  Raises:
    ValueError: If the file is missing or holds no problem, a line has no known
      format (with its number), or one statement has two sets of tests.
  """
  parse = functools.partial(_problem, datasets.family(path), system_prompt)
  rows = datasets.jsonl_rows(path)
  return datasets.distinct(rows, parse, path, skip_broken=skip_broken)


READERS = {'jsonl': datasets.Reader(read_jsonl, ('skip_broken',))}


def _problem(family: str, system_prompt: str, row: _Row) -> records.Problem:
  if 'question_content' in row:
    statement = _text(row, 'question_content')
    tests = _livecodebench(row, statement)
  elif 'question' in row and 'input_output' in row:
    statement = _text(row, 'question')
    tests = _taco(row, statement)
  else:
    raise ValueError(
        f'fields {sorted(row)} are neither LiveCodeBench (question_content,'
        ' public_test_cases, private_test_cases) nor TACO (question,'
        ' input_output)'
    )
  if not statement.strip():
    raise ValueError('the question is empty')
  tag = _checked(datasets.tag(row, family), 'tag')
  answer = suite.encode(tests)
  suite.decode(answer)  # Raises if there are no cases, or the name is invalid.
  nothing = ('null', '[null]') if tests.function else ('',)
  if all(case.expected.strip() in nothing for case in tests.cases):
    raise ValueError(
        'no test expects an output, so that a program that does nothing would'
        ' pass'
    )
  starter = _checked(row.get('starter_code') or '', 'starter_code')
  if starter.strip():
    statement += f'\n\nComplete this code:\n```python\n{starter.rstrip()}\n```'
  difficulty = str(row.get('difficulty')).lower()
  if difficulty not in _DIFFICULTIES:
    difficulty = _UNKNOWN_DIFFICULTY
  messages = ({'role': 'user', 'content': statement},)
  level = _DIFFICULTIES.index(difficulty)
  return sources.make_problem(messages, answer, tag, system_prompt, level)


def _livecodebench(row: _Row, statement: str) -> suite.Suite:
  """Return the tests, of which the public ones are visible."""
  cases, kinds = [], set()
  for field in ('public_test_cases', 'private_test_cases'):
    visible = field.startswith('public')
    for number, case in enumerate(_json_list(row, field)):
      kind = case.get('testtype') if isinstance(case, dict) else None
      if kind not in ('stdin', 'functional'):
        raise ValueError(
            f'{field}[{number}] must be an object with input, output and'
            ' testtype stdin or functional'
        )
      kinds.add(kind)
      texts = _text(case, 'input'), _text(case, 'output')
      cases.append(suite.Case(*texts, visible))
  if len(kinds) > 1:
    raise ValueError('testtype is stdin and functional in one problem')
  comparison = _comparison(row, 'decimals', statement)
  tests = suite.Suite(tuple(cases), comparison, seconds=_SECONDS)
  if kinds != {'functional'}:
    return tests
  for case in cases:
    # The wrapper of a call splits its arguments in the same way.
    for line in (*filter(None, case.stdin.split('\n')), case.expected):
      _json(line, 'an argument or a result of a functional test')
  metadata = row.get('metadata', {})
  if isinstance(metadata, str):
    metadata = _json(metadata, 'metadata')
  name = metadata.get('func_name') if isinstance(metadata, dict) else None
  if not isinstance(name, str) or not name:
    raise ValueError('functional tests need metadata.func_name')
  return dataclasses.replace(tests, function=name)


def _taco(row: _Row, statement: str) -> suite.Suite:
  """Return the tests, none of them visible."""
  if isinstance(row['input_output'], dict):
    # Its numbers would already be strings, see `datasets.jsonl_rows`.
    raise ValueError(
        'input_output is an object and must be a text, its JSON: write'
        ' json.dumps(input_output), as the published files do'
    )
  given = _json(_text(row, 'input_output'), 'input_output')
  wrapped = False
  fields = given if isinstance(given, dict) else {}
  inputs, outputs = fields.get('inputs'), fields.get('outputs')
  lists = isinstance(inputs, list) and isinstance(outputs, list)
  if not lists or len(inputs) != len(outputs):
    raise ValueError(
        'input_output must be JSON of {"inputs": [...], "outputs": [...]} of'
        ' equal lengths'
    )
  name = _checked(fields.get('fn_name') or '', 'input_output.fn_name', 'a name')
  if name:
    for number, arguments in enumerate(inputs):
      if not isinstance(arguments, list):
        raise ValueError(
            f'input_output.inputs[{number}] must be the list of arguments of'
            f' {name}'
        )
    # Most problems wrap each result in a list, but some results are such lists.
    wrapped = all(isinstance(x, list) and len(x) == 1 for x in outputs)
    inputs = ['\n'.join(map(_dump, arguments)) for arguments in inputs]
    outputs = map(_dump, outputs)
  else:
    inputs, outputs = map(_lines, inputs), map(_lines, outputs)
  pairs = zip(inputs, outputs, strict=True)
  return suite.Suite(
      tuple(suite.Case(*pair, False) for pair in pairs),
      _comparison(row, 'tokens', statement, wrapped),
      name,
      integer_keys=bool(name),
      seconds=_SECONDS,
  )


def _lines(value: Any) -> str:
  """Return text that may be given as a number or as a list of lines."""
  if isinstance(value, list) and all(isinstance(x, str) for x in value):
    value = '\n'.join(value)
  needs = 'a text, a number or a list of these; only calls (fn_name) take more'
  return _checked(value, 'input_output', needs)


def _json_list(row: _Row, field: str) -> Sequence[Any]:
  """Return the list in a field that holds a JSON list, or its text."""
  value = row.get(field)
  if isinstance(value, str):
    value = _json(_unpacked(value) or value, field)
  if not isinstance(value, list):
    raise ValueError(f'{field}={value!r:.80} must be a JSON list of tests')
  return value


def _unpacked(text: str) -> str | None:
  """Return the text in a compressed pickle of a text; None if it is none.

  A pickle may run any code when it is loaded. Its instructions are only read
  here, and must be those that store one text.
  """
  try:
    data = zlib.decompress(base64.b64decode(text, validate=True))
    steps = [(step.name, value) for step, value, _ in pickletools.genops(data)]
  except (ValueError, zlib.error):
    return None
  texts = [value for name, value in steps if name.endswith(_UNICODE)]
  others = {name for name, _ in steps if not name.endswith(_UNICODE)}
  return texts[0] if len(texts) == 1 and others <= _AROUND_A_TEXT else None


def _json(text: str, what: str) -> Any:
  """Return a JSON value, with numbers as numerals."""
  kinds = dict.fromkeys(
      ('parse_int', 'parse_float', 'parse_constant'), datasets.Numeral
  )
  try:
    return json.loads(text, **kinds)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{what} is not JSON: {text[:80]!r}') from error


def _dump(value: Any) -> str:
  """Return the JSON text of a value from `_json`.

  Raises:
    ValueError: If it is nested too deeply.
  """
  try:
    match value:
      case datasets.Numeral():
        return str(value)
      case list():
        return f'[{", ".join(map(_dump, value))}]'
      case dict():
        pairs = (f'{json.dumps(k)}: {_dump(v)}' for k, v in value.items())
        return f'{{{", ".join(pairs)}}}'
    return json.dumps(value)
  except RecursionError:
    raise ValueError('a value of input_output is nested too deep') from None


def _text(row: _Row, field: str) -> str:
  return _checked(row.get(field), field)


def _checked(value: Any, what: str, needs: str = 'a text') -> str:
  """Return text that programs can read, that is, without lone surrogates."""
  if not isinstance(value, str):
    raise ValueError(f'{what}={value!r:.80} must be {needs}')
  try:
    value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(f'{what}={value!a:.80}: {error}') from error
  return value


def _comparison(
    row: _Row, mode: str, statement: str, wrapped: bool = False
) -> comparison_lib.Comparison:
  """Return the comparison of outputs: the row's, else the statement's."""
  mode = _checked(row.get('comparison', mode), 'comparison')
  given = row.get('tolerance', {} if mode == 'exact' else _tolerance(statement))
  if isinstance(given, str):  # A number, see `datasets.jsonl_rows`.
    given = dict.fromkeys(_KINDS, given)
  try:
    limits = {kind: float(given.get(kind, 0.0)) for kind in _KINDS}
    if given.keys() - limits:
      raise ValueError
  except (AttributeError, TypeError, ValueError):
    raise ValueError(
        f'tolerance={given!r:.80} must be a number, or an object with the'
        ' numbers absolute and relative'
    ) from None
  return comparison_lib.Comparison(mode, **limits, wrapped=wrapped)


def _tolerance(statement: str) -> dict[str, float]:
  """Return the tolerances that a statement names, by kind."""
  for pattern in _TOLERANCES:
    if found := pattern.search(statement):
      size = 10.0 ** -(int(found[1]) if found[1] else len(found[2]))
      # The other kind may follow the number.
      rest = re.match(r'[^.\n]{0,80}', statement[found.end() :])[0]
      named = (found[0] + rest).lower()
      kinds = [kind for kind in _KINDS if kind in named]
      return dict.fromkeys(kinds or ['absolute'], size)
  return {}
