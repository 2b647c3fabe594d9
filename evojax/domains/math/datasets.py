"""Math problems from data sets: JSONL, Parquet, and TensorFlow Datasets."""

from collections.abc import Mapping, Sequence
import functools
import json
import re
from typing import Any

from evojax import records
from evojax.domains import datasets
from evojax.domains import graders
from evojax.domains import sources
from evojax.domains import texts
from evojax.domains.math import grade

_ROLES = ('system', 'user', 'assistant')
_OPTIONS = ('question_field', 'answer_field')
# Some solutions of MATH have \boxed 5 or \fbox{5}.
_BARE_BOX = re.compile(r'\\boxed\s+([^\s{$][^\s$]*)')


def read_jsonl(
    path: str, *, skip_broken: bool = False, **options: str | bool
) -> list[records.Problem]:
  """Read one problem per line; a repeated problem is kept once.

  A line is {"messages": [{"role": ..., "content": ...}, ...], "answer": ...}
  or {"question": ..., "answer": ...}. Both may have a "tag" that names the
  family (default: the file's name). An answer may be a number. If it is a
  worked solution that ends in '#### 42' (GSM8K) or names its result as
  \\boxed{42} (MATH, NuminaMath), the answer is the 42. A question may be a list
  of messages (TRL's "prompt"). A row in verl's format has these as "prompt",
  "data_source" and "reward_model": {"ground_truth": ...}.

  Args:
    path: A file in UTF-8.
    skip_broken: Whether broken lines are left out, with a warning.
    **options: question_field and answer_field, the names of the fields; by
      default 'messages', or 'question' in a line without it, and 'answer';
      system_prompt, the first message of every problem without a system
      message; own_grader, whether the user's own grader compares the answers,
      which then may also be objects, lists or long texts.

  Returns:
    The distinct problems.

  Raises:
    ValueError: If the file is missing or holds no problem, a line is not JSON
      or lacks a field (with its number), or one question has two answers.
  """
  parse = functools.partial(_problem, datasets.family(path), **options)
  rows = datasets.jsonl_rows(path)
  return datasets.distinct(rows, parse, path, skip_broken=skip_broken)


def read_parquet(
    path: str, *, skip_broken: bool = False, **options: str | bool
) -> list[records.Problem]:
  """Read one problem per row of a Parquet file, otherwise like `read_jsonl`.

  Raises:
    ValueError: As in `read_jsonl`, and if the file is not Parquet.
  """
  parse = functools.partial(_problem, datasets.family(path), **options)
  rows = datasets.parquet_rows(path)
  return datasets.distinct(rows, parse, path, skip_broken=skip_broken)


def read_tfds(
    split: str,
    *,
    name: str,
    data_dir: str | None = None,
    module: str = '',
    **options: str | bool,
) -> list[records.Problem]:
  """Read one split of a TFDS data set, see `datasets.tfds_rows`.

  Args:
    split: The data set's own split, e.g. 'train' or 'test[:50%]'.
    name: As in `tfds.builder`, e.g. 'gsm8k'.
    data_dir: Directory of prepared data sets; TFDS's default if empty.
    module: Module of the user's own builder, imported first.
    **options: As in `read_jsonl`, with features instead of fields.

  Raises:
    ValueError: If there is no such data set or split, an example lacks a
      field, or one question has two answers.
  """
  parse = functools.partial(_problem, name.partition('/')[0], **options)
  rows = datasets.tfds_rows(name, split, data_dir, module)
  return datasets.distinct(rows, parse, f'{name}:{split}')


READERS = {
    'jsonl': datasets.Reader(read_jsonl, ('skip_broken', *_OPTIONS)),
    'parquet': datasets.Reader(read_parquet, ('skip_broken', *_OPTIONS)),
    'tfds': datasets.Reader(
        read_tfds, ('name', 'data_dir', 'module', *_OPTIONS), ('name', 'train')
    ),
}


def _problem(
    family: str,
    row: Mapping[str, Any],
    question_field: str = '',
    answer_field: str = 'answer',
    system_prompt: str = '',
    own_grader: bool = False,
) -> records.Problem:
  row = _from_verl(row)
  messages, tag = _messages(row, question_field), datasets.tag(row, family)
  if messages[0]['role'] == 'system':
    system_prompt = ''
  whole = datasets.values(row)
  if own_grader and isinstance(whole.get(answer_field), dict | list):
    truth = whole[answer_field]
    answer = json.dumps(truth, sort_keys=True)
    metadata = {graders.ROW: {'answer': truth} | whole, graders.TRUTH: truth}
  else:
    answer, boxed = _answer(row, answer_field)
    whole = {'answer': answer} | whole
    # The user's own grader gets the final answer instead of a worked solution;
    # graders of TRL read the box themselves.
    if not boxed:
      whole[answer_field] = answer
    metadata = {graders.ROW: whole}
    if len(answer) > grade.MAX_ANSWER_CHARS and not own_grader:
      raise ValueError(
          f'{answer_field}={answer!r:.80} has {len(answer)} characters; answers'
          f' of more than {grade.MAX_ANSWER_CHARS} are not compared: name the'
          ' field of the final answer (answer_field), or use your own grader'
      )
  return sources.make_problem(
      messages, answer, tag, system_prompt, metadata=metadata
  )


def _from_verl(row: Mapping[str, Any]) -> Mapping[str, Any]:
  """Return a row in verl's format with our field names; others unchanged."""
  truth = row.get('reward_model')
  if not isinstance(truth, Mapping) or 'ground_truth' not in truth:
    return row
  named = {'tag': row['data_source']} if 'data_source' in row else {}
  found = {'messages': row.get('prompt'), 'answer': truth['ground_truth']}
  return named | row | found


def _messages(
    row: Mapping[str, Any], question_field: str
) -> Sequence[records.Message]:
  # NuminaMath has messages too, which end with a solution.
  field = question_field or 'question'
  if 'messages' in row and not (question_field and question_field in row):
    field = 'messages'
  messages = row.get(field)
  # A list of messages may also have another name, such as TRL's 'prompt'.
  if field != 'messages' and not isinstance(messages, list):
    return (_message('user', _text(row, field)),)
  well_formed = isinstance(messages, list) and all(
      isinstance(m, dict)
      and m.get('role') in _ROLES
      and isinstance(m.get('content'), str)
      for m in messages
  )
  if not well_formed or not messages or messages[-1]['role'] != 'user':
    raise ValueError(
        f'{field} must be a list of {{"role": {"|".join(_ROLES)},'
        ' "content": text} that ends with the user'
    )
  return [_message(m['role'], m['content']) for m in messages]


def _message(role: str, text: str) -> records.Message:
  return {'role': role, 'content': texts.without_surrogates(text)}


def _answer(row: Mapping[str, Any], field: str) -> tuple[str, bool]:
  """Return the final answer, and whether it was in a \\boxed{}."""
  answer = _text(row, field)
  final = answer.rpartition('####')[2].strip()
  if not final:
    raise ValueError(f'nothing follows #### in {field!r}')
  boxes = _BARE_BOX.sub(r'\\boxed{\1}', final.replace(r'\fbox', r'\boxed'))
  if found := grade.extract(boxes, 'boxed'):
    return found.answer.strip(), boxes == final
  # The comma in (1, 2) does not separate thousands.
  if final != answer and not re.search(r'[(\[{]', final):
    final = re.sub(r'(?<=\d),(?=\d{3}(?!\d))', '', final)
  return final, False


def _text(row: Mapping[str, Any], field: str) -> str:
  """Return a field that must be a non-empty string."""
  if field not in row:
    raise ValueError(
        f'no field {field!r}; it has {sorted(map(str, row))}. Name the'
        " fields next to the path: {'train': ..., 'question_field': ...,"
        " 'answer_field': ...}"
    )
  value = row[field]
  if isinstance(value, list) and len(value) == 1:  # As in OlympiadBench.
    (value,) = value
  missing = isinstance(value, datasets.Numeral) and value == 'NaN'
  if not isinstance(value, str) or not value.strip() or missing:
    hint = ''
    if isinstance(value, dict | list):
      hint = '; for others, use your own grader (domain.kwargs.grader)'
    raise ValueError(
        f'{field}={value!r:.200} must be a non-empty text or a number{hint}'
    )
  return value.strip()
