"""The user's own functions as graders, called in separate processes."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
import pathlib
from typing import Any

from evojax import records
from evojax.domains import graders
from evojax.runtime import workers
from evojax.sandbox import processes
from evojax.sandbox import shared

_WORKER = str(pathlib.Path(__file__).with_name('grader_worker.py'))
_START_S = 300.0  # Time for importing the function and its dependencies.
_MOST = 64  # Maximum completions per call, for a function that takes lists.


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of a function, see `graders.make`."""

  workers: int = 0  # Number of processes; 0: one per core.
  timeout_s: float = 30.0  # Time limit of one call.
  memory_gb: float = 8.0  # Address space of a process; 0: no limit.
  # Arguments besides those of the signature; for a class, of its constructor.
  kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Function:
  """A scorer that calls the user's own function in worker processes."""

  def __init__(
      self, path: str, options: Options, problems: Sequence[records.Problem]
  ):
    """Store the arguments; no process is started yet.

    Args:
      path: Dotted path of a function, or of a class whose instance is called.
      options: See `Options`.
      problems: All problems that it will grade.

    Raises:
      GraderError: If the path cannot be that of a function.
    """
    parts = path.split('.')
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
      raise graders.GraderError(
          f"domain.kwargs.grader={path!r} is neither 'openai' nor the dotted"
          ' path of a function, such as my_module.compute_score'
      )
    self._path, self._options, self._trial = path, options, problems[0]
    rows = [set(graders.row(problem)) for problem in problems]
    self._columns = sorted(set.intersection(*rows))  # In all problems.
    # Known once a worker has imported the function.
    self.kind = ''  # 'verl' or 'TRL'.
    self._takes: Sequence[str] = ()
    count = options.workers or processes.cores()
    self._pool = workers.Pool(count, self._start)
    shared.close_at_exit(self._pool)

  def __call__(self, items: Sequence[graders.Item]) -> list[graders.Scored]:
    """Return the scores of items, in order.

    Raises:
      GraderError: If the function is unusable, or returns an invalid score.
    """
    if not self.kind:
      self._pool.open()
    size = 1
    if self.kind == 'TRL':
      size = min(_MOST, math.ceil(len(items) / self._pool.count))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    return list(itertools.chain(*self._pool.map(self._score, chunks)))

  def _start(self) -> workers.Worker:
    """Start a worker that imports the function."""
    memory_bytes = int(self._options.memory_gb * 2**30)
    worker = workers.Worker(_WORKER, memory_bytes)
    hello = {
        'path': self._path,
        'kwargs': dict(self._options.kwargs),
        'columns': self._columns,
        'trial': self._message(self._trial, self._trial.answer),
    }
    try:
      answer = worker.ask(hello, _START_S)
    except (workers.LateError, workers.DeadError) as error:
      raise self._error(
          f'a process that imports it ended: {error}; its memory is limited by'
          f' domain.kwargs.grader_options.memory_gb={self._options.memory_gb:g}'
      ) from error
    refused = answer.get('refused')
    if not refused and answer['missing']:
      refused = (
          f'it asks for {answer["missing"]}, and not all rows of the data set'
          f' have such a column; all have {self._columns}'
      )
    if refused:
      worker.end()
      raise self._error(refused)
    self.kind, self._takes = answer['kind'], answer['takes']
    return worker

  def _score(self, items: Sequence[graders.Item]) -> list[graders.Scored]:
    """Score the items of one call; if it fails, score them one by one."""
    found = self._try(items)
    if isinstance(found, list):
      return found
    if len(items) > 1:
      return [self._score([item])[0] for item in items]
    if found.status == 'crash':  # The machine may be the cause, not the text.
      found = self._try(items)
    return found if isinstance(found, list) else [found]

  def _try(
      self, items: Sequence[graders.Item]
  ) -> list[graders.Scored] | graders.Scored:
    """Return the scores of one call, or the failure of the whole call."""
    message = []
    for item in items:
      tokens = 'completion_ids' in self._takes and item.completion.tokens
      ids = [] if tokens is False else tokens.tolist()
      message.append(self._message(item.problem, item.completion.text, ids))
    try:
      answer = self._pool.ask(message, self._options.timeout_s)
    except workers.LateError as error:
      return graders.Scored('timeout', note=str(error))
    except workers.DeadError as error:
      return graders.Scored('crash', note=f'its process ended: {error}')
    if 'refused' in answer:
      raise self._error(answer['refused'])
    if 'raised' in answer:
      note = answer['raised']
      if note.startswith('KeyError'):
        note += f'; the rows of the data set have the columns {self._columns}'
      return graders.Scored('error', note=note)
    return [_scored(**found) for found in answer['scores']]

  def _message(
      self, problem: records.Problem, text: str, tokens: Sequence[int] = ()
  ) -> dict[str, Any]:
    """Return an item in the form that `grader_worker` takes."""
    row = graders.row(problem)
    return {
        'columns': {k: v for k, v in row.items() if k != 'messages'},
        'conversational': 'messages' in row,
        'messages': [dict(message) for message in problem.messages],
        'family': problem.family,
        'answer': problem.metadata.get(graders.TRUTH, problem.answer),
        'text': text,
        'tokens': list(tokens),
    }

  def _error(self, reason: str) -> graders.GraderError:
    return graders.GraderError(f'domain.kwargs.grader={self._path!r}: {reason}')


def _scored(score: float | None, columns: Mapping[str, Any]) -> graders.Scored:
  """Return a function's result; None and NaN mean that it gives no score."""
  if score is None or math.isnan(score):
    note = f'the function returned {score}, which is not a score'
    return graders.Scored(records.INFRA_ERROR, None, note, columns)
  return graders.Scored('ok', score, columns=columns)
