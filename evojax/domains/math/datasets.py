"""Problems from files: JSONL, and TensorFlow Datasets without TensorFlow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import importlib
import pathlib
from typing import Any

from evojax import records
from evojax.domains import jsonl
from evojax.domains import sources

_ROLES = ('system', 'user', 'assistant')


def read_jsonl(
    path: str,
    *,
    question_field: str = 'question',
    answer_field: str = 'answer',
    system_prompt: str = '',
) -> list[records.Problem]:
  """Read one problem per line.

  A line is {"messages": [{"role": ..., "content": ...}, ...], "answer": ...}
  or {"question": ..., "answer": ...}, either with an optional "tag" that names
  its family (the file's name by default). An answer may be a number. Where it
  is a worked solution that ends in '#### 42' (GSM8K), what follows is the
  answer. Blank lines are skipped, repeated problems kept once.

  Args:
    path: A file in UTF-8.
    question_field: Name of the question's field, where there are no messages.
    answer_field: Name of the answer's field.
    system_prompt: First message of every problem that has none.

  Raises:
    ValueError: If the file is missing or holds no problem, a line is not JSON
      or lacks a field (with its number), or one question has two answers.
  """
  return _problems(
      jsonl.rows(path),
      path,
      pathlib.Path(path).stem,
      question_field,
      answer_field,
      system_prompt,
  )


def read_tfds(
    name: str,
    split: str,
    *,
    data_dir: str | None = None,
    module: str = '',
    question_field: str = 'question',
    answer_field: str = 'answer',
    system_prompt: str = '',
) -> list[records.Problem]:
  """Read one split of a TFDS data set, preparing it where it is not.

  Args:
    name: As for `tfds.builder`, e.g. 'gsm8k'.
    split: The data set's own split, e.g. 'train' or 'test[:50%]'.
    data_dir: Where prepared data sets are; TFDS's own default if empty.
    module: Imported first: the module of a builder of your own.
    question_field: Feature that holds the question.
    answer_field: Feature that holds the answer; '#### 42' as for JSONL.
    system_prompt: First message of every problem.

  Raises:
    ValueError: If there is no such data set or split, an example lacks a
      field, or one question has two answers.
  """
  # Here and not above: it takes a second, and only these runs need it.
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  try:
    if module:
      importlib.import_module(module)
    # Only array_record (and parquet) can be read without TensorFlow.
    builder = tfds.builder(
        name, data_dir=data_dir or None, file_format='array_record'
    )
  except (ModuleNotFoundError, tfds.core.DatasetNotFoundError) as error:
    raise ValueError(
        f'TFDS has no data set {name!r} ({error}). The module of a builder of'
        f' your own is named by domain.kwargs.tfds.module ({module!r})'
    ) from error
  if not builder.is_prepared():
    builder.download_and_prepare()

  def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, example in enumerate(builder.as_data_source(split=split)):
      yield f'{name}:{split}[{index}]', {
          # Text comes as bytes, numbers as numpy scalars.
          key: value.decode() if isinstance(value, bytes) else str(value)
          for key, value in example.items()
      }

  return _problems(
      rows(),
      f'{name}:{split}',
      name.partition('/')[0],
      question_field,
      answer_field,
      system_prompt,
  )


def _problems(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    source: str,
    family: str,
    question_field: str,
    answer_field: str,
    system_prompt: str,
) -> list[records.Problem]:
  """Problems of (place, row) pairs, each once."""
  found: dict[str, records.Problem] = {}
  for where, row in rows:
    messages = _messages(where, row, question_field)
    tag = row.get('tag', family)
    if not isinstance(tag, str) or not tag:
      raise ValueError(f'{where}: tag={tag!r} must be a non-empty string')
    has_system = messages[0]['role'] == 'system'
    problem = sources.make_problem(
        messages,
        _answer(where, row, answer_field),
        tag,
        '' if has_system else system_prompt,
    )
    twin = found.setdefault(problem.problem_id, problem)
    if twin.answer != problem.answer:
      raise ValueError(
          f'{where}: the question {problem.question[:80]!r} has the answers'
          f' {twin.answer!r} and {problem.answer!r}'
      )
  if not found:
    raise ValueError(f'{source} holds no problem')
  return list(found.values())


def _messages(
    where: str, row: Mapping[str, Any], question_field: str
) -> Sequence[records.Message]:
  if 'messages' not in row:
    return ({'role': 'user', 'content': _text(where, row, question_field)},)
  messages = row['messages']
  well_formed = isinstance(messages, list) and all(
      isinstance(m, dict)
      and m.get('role') in _ROLES
      and isinstance(m.get('content'), str)
      for m in messages
  )
  if not well_formed or not messages or messages[-1]['role'] != 'user':
    raise ValueError(
        f'{where}: messages must be a list of {{"role": {"|".join(_ROLES)},'
        ' "content": text}} that ends with the user'
    )
  return [{'role': m['role'], 'content': m['content']} for m in messages]


def _answer(where: str, row: Mapping[str, Any], field: str) -> str:
  answer = _text(where, row, field)
  _, mark, final = answer.rpartition('####')
  if mark:
    answer = final.strip().replace(',', '')
    if not answer:
      raise ValueError(f'{where}: nothing follows #### in {field!r}')
  return answer


def _text(where: str, row: Mapping[str, Any], field: str) -> str:
  """A non-empty text field."""
  if field not in row:
    raise ValueError(
        f'{where}: no field {field!r}; it has {sorted(map(str, row))}. Name the'
        ' fields with question_field and answer_field'
    )
  value = row[field]
  if not isinstance(value, str) or not value.strip():
    raise ValueError(
        f'{where}: {field}={value!r} must be a non-empty text or a number'
    )
  return value.strip()
