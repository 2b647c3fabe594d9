"""Problems from JSONL files of LiveCodeBench's and TACO's shape.

LiveCodeBench (arXiv:2403.07974): question_content, starter_code, difficulty,
public_test_cases and private_test_cases, JSON lists of {input, output,
testtype}, and metadata, whose func_name names the function of call tests.

TACO (arXiv:2312.14852): question, starter_code, difficulty and input_output,
JSON of {inputs, outputs, fn_name}; solutions are not read.
"""

from collections.abc import Mapping, Sequence
import functools
import json
import pathlib
import re
from typing import Any

from evojax import records
from evojax.domains import datasets
from evojax.domains import sources
from evojax.domains.coding import suite

_Row = Mapping[str, Any]

# LiveCodeBench's own limit of one test. Neither data set has limits of single
# problems that were set with Python in mind.
_SECONDS = 6.0
_DIFFICULTIES = ('easy', 'medium', 'medium_hard', 'hard', 'very_hard')
_UNKNOWN_DIFFICULTY = 'medium'
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


def read_jsonl(path: str, *, system_prompt: str = '') -> list[records.Problem]:
  """Read one problem per line; a repeated problem is kept once.

  A row may name its family with "tag"; by default it is the file's name.

  Args:
    path: A file in UTF-8.
    system_prompt: First message of every problem; empty is none.

  Raises:
    ValueError: If the file is missing or holds no problem, a line is of no
      known shape (with its number), or one statement has two sets of tests.
  """
  parse = functools.partial(_problem, pathlib.Path(path).stem, system_prompt)
  return datasets.distinct(datasets.jsonl_rows(path), parse, path)


READERS = {'jsonl': datasets.Reader(read_jsonl)}


def _problem(family: str, system_prompt: str, row: _Row) -> records.Problem:
  if 'question_content' in row:
    statement = _text(row, 'question_content')
    cases, function = _livecodebench(row)
  elif 'question' in row and 'input_output' in row:
    statement = _text(row, 'question')
    cases, function = _taco(row)
  else:
    raise ValueError(
        f'fields {sorted(row)} are neither LiveCodeBench (question_content,'
        ' public_test_cases, private_test_cases) nor TACO (question,'
        ' input_output)'
    )
  tag = _checked(datasets.tag(row, family), 'tag')
  tolerance = _tolerance(statement)
  answer = suite.encode(suite.Suite(cases, tolerance, function, _SECONDS))
  suite.decode(answer)  # Raises if there are no cases, or the name is none.
  starter = _checked(row.get('starter_code') or '', 'starter_code')
  if starter.strip():
    statement += f'\n\nComplete this code:\n```python\n{starter.rstrip()}\n```'
  difficulty = str(row.get('difficulty')).lower()
  if difficulty not in _DIFFICULTIES:
    difficulty = _UNKNOWN_DIFFICULTY
  messages = ({'role': 'user', 'content': statement},)
  level = _DIFFICULTIES.index(difficulty)
  return sources.make_problem(messages, answer, tag, system_prompt, level)


def _livecodebench(row: _Row) -> tuple[tuple[suite.Case, ...], str]:
  """Return the cases, public ones visible, and the function's name or ''."""
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
  if kinds != {'functional'}:
    if len(kinds) > 1:
      raise ValueError('testtype is stdin and functional in one problem')
    return tuple(cases), ''
  for case in cases:
    # The wrapper in `calls` splits its arguments in the same way.
    for line in (*filter(None, case.stdin.split('\n')), case.expected):
      _json(line, 'an argument or a result of a functional test')
  metadata = row.get('metadata', {})
  if isinstance(metadata, str):
    metadata = _json(metadata, 'metadata')
  name = metadata.get('func_name') if isinstance(metadata, dict) else None
  if not isinstance(name, str) or not name:
    raise ValueError('functional tests need metadata.func_name')
  return tuple(cases), name


def _taco(row: _Row) -> tuple[tuple[suite.Case, ...], str]:
  """Return the cases, none of them visible, and the function's name or ''."""
  if isinstance(row['input_output'], dict):
    # Its numbers would already be text, see `datasets.jsonl_rows`.
    raise ValueError(
        'input_output is an object and must be a text, its JSON: write'
        ' json.dumps(input_output), as the published files do'
    )
  given = _json(_text(row, 'input_output'), 'input_output')
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
    # Most problems wrap each result in a list of one element.
    if all(isinstance(x, list) and len(x) == 1 for x in outputs):
      outputs = [x[0] for x in outputs]
    inputs = ('\n'.join(map(json.dumps, arguments)) for arguments in inputs)
    outputs = map(json.dumps, outputs)
  else:
    inputs, outputs = map(_lines, inputs), map(_lines, outputs)
  pairs = zip(inputs, outputs, strict=True)
  return tuple(suite.Case(*pair, False) for pair in pairs), name


def _lines(value: Any) -> str:
  """Return a text that may be given as the list of its lines."""
  if isinstance(value, list) and all(isinstance(x, str) for x in value):
    value = '\n'.join(value)
  needs = 'a text or a list of lines; only call tests (fn_name) have others'
  return _checked(value, 'input_output', needs)


def _json_list(row: _Row, field: str) -> Sequence[Any]:
  """Return the list in a field that holds a JSON list or its text."""
  value = row.get(field)
  if isinstance(value, str):
    hint = (
        '. The published files hold a compressed pickle there, which is never'
        ' loaded here, for it may run any code: convert it where you trust the'
        ' file, json.dumps(json.loads(pickle.loads(zlib.decompress('
        'base64.b64decode(text)))))'
    )
    value = _json(value, field, hint)
  if not isinstance(value, list):
    raise ValueError(f'{field}={value!r:.80} must be a JSON list of tests')
  return value


def _json(text: str, what: str, hint: str = '') -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{what} is not JSON: {text[:80]!r}{hint}') from error


def _text(row: _Row, field: str) -> str:
  return _checked(row.get(field), field)


def _checked(value: Any, what: str, needs: str = 'a text') -> str:
  """Return a text that programs can read, which a lone surrogate is not."""
  if not isinstance(value, str):
    raise ValueError(f'{what}={value!r:.80} must be {needs}')
  try:
    value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(f'{what}={value!a:.80}: {error}') from error
  return value


def _tolerance(statement: str) -> float:
  """Return the tolerance that a statement names, 0 if it names none."""
  for pattern in _TOLERANCES:
    if found := pattern.search(statement):
      return 10.0 ** -(int(found[1]) if found[1] else len(found[2]))
  return 0.0
