"""The user's own graders, for problems of a data set.

    config.domain.kwargs.grader = 'my_module.compute_score'

names a function with the signature of verl or of TRL; `'openai'` names a
language model that judges (see `judge`). Both belong to the evaluator: they get
reference answers, while rewards get only their decisions.

The function is trusted, since it is the user's; completions are not. It runs in
separate processes, which import it, are killed when they exceed the time limit,
and never execute a policy's text. If the text is to blame, because the function
raises, times out or crashes its process on this completion alone, the
completion is wrong and its status says why. If the function gives no score,
because it returns None or NaN or because the judge cannot be reached, the
completion is not graded.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
from typing import Any

from evojax import records
from evojax.domains import base
from evojax.evidence import schema

GRADE_STATUS = {
    'ok': 0,  # There is a score.
    'error': 1,  # The function raised.
    'timeout': 2,
    'crash': 3,  # Its process ended, e.g. because memory ran out.
    records.INFRA_ERROR: 4,  # No score: not graded.
}
DTYPES = ('float64', 'bool', 'string')
# Only reports read this column and the grader's own columns: they may contain
# the reference answer, which no reward, filter or diagnostic may see.
NOTE = schema.Column(
    'grader_note',
    'string',
    doc='Why the grader gave no score; empty where it did.',
    readers=('report',),
)
# Key of Problem.metadata: the row of the data set, as Python values.
ROW = 'row'
# Key of Problem.metadata: a reference answer that is an object or a list, as in
# files of verl; Problem.answer is its JSON text.
TRUTH = 'truth'
# Name of the config's field that holds the options of a grader.
OPTIONS = 'domain.kwargs.grader_options'
_COMMON = ('range', 'threshold', 'columns')  # Options of every grader.
_TOLERANCE = 1e-6  # A sum of parts may leave the range by rounding.


class GraderError(ValueError):
  """A user's grader cannot be used, or has not returned a score."""


class NoGradesError(OSError):
  """A grader gave no score at all, for a reason other than the completions."""


@dataclasses.dataclass(frozen=True)
class Item:
  """A completion to grade, with its problem."""

  problem: records.Problem
  completion: records.Episode


def row(problem: records.Problem) -> Mapping[str, Any]:
  """Return the row of the data set, or a row with the answer alone."""
  return problem.metadata.get(ROW, {'answer': problem.answer})


@dataclasses.dataclass(frozen=True)
class Scored:
  """A scorer's result for one item."""

  status: str = 'ok'  # Key of GRADE_STATUS.
  score: float | None = None  # Finite; None where the status is not ok.
  note: str = ''  # Why there is no score.
  columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Scores of items, in their order.
Scorer = Callable[[Sequence[Item]], Sequence[Scored]]


@dataclasses.dataclass(frozen=True)
class Grader:
  """A scorer, and what its scores mean; see `make`."""

  path: str
  scorer: Scorer
  low: float
  high: float
  threshold: float
  columns: tuple[schema.Column, ...]  # The grader's own columns.

  def declare(
      self, columns: Sequence[schema.Column]
  ) -> tuple[schema.Column, ...]:
    """Return a domain's columns with the statuses and columns of the grader.

    Args:
      columns: The domain's columns; its built-in grader fills them.
    """
    status = schema.with_codes('grade_status', GRADE_STATUS)
    kept = (*(c for c in columns if c.name != 'grade_status'), NOTE)
    taken = {c.name for c in (*kept, *schema.CORE)}
    if twice := sorted(taken & {c.name for c in self.columns}):
      raise GraderError(
          f'domain.kwargs.grader_options.columns: {twice} are columns of the'
          ' domain already; only columns of another name can be stored'
      )
    return (status, *kept, *self.columns)

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b.

    Raises:
      GraderError: If the grader cannot be used, or a score is out of range.
      NoGradesError: If no completion gets a score and the texts are not the
        cause.
    """
    items = list(map(Item, problems, completions))
    found = self.scorer(items)
    failed = [s for s in found if s.status != 'ok']
    if len(failed) == len(items) and not self._works(items[0], failed):
      raise NoGradesError(
          f'domain.kwargs.grader={self.path!r} gave no score to any of'
          f' {len(items)} completions. The first: {failed[0].note}. The same'
          ' command continues the run'
      )
    return list(map(self._grade, items, found))

  def _works(self, item: Item, failed: Sequence[Scored]) -> bool:
    """Return whether the grader works, so that the failures are due to the
    texts.

    It works if it scores the reference answer in one of several formats.
    """
    if any(s.status == records.INFRA_ERROR for s in failed):
      return False
    forms = [form.format(item.problem.answer) for form in base.ATTEMPTS]
    tried = self.scorer(
        [
            Item(item.problem, dataclasses.replace(item.completion, text=form))
            for form in forms
        ]
    )
    return any(s.status == 'ok' for s in tried)

  def _grade(self, item: Item, scored: Scored) -> records.Grade:
    score = self.low if scored.score is None else scored.score
    slack = _TOLERANCE * max(1.0, abs(self.low), abs(self.high))
    if not self.low - slack <= score <= self.high + slack:
      raise GraderError(
          f'domain.kwargs.grader={self.path!r} returned {score:g} for a'
          f' completion of problem {item.problem.problem_id}; its scores lie in'
          f' [{self.low:g}, {self.high:g}]. Declare what it returns with'
          ' domain.kwargs.grader_options.range=(low, high)'
      )
    share = (score - self.low) / (self.high - self.low)
    return records.Grade(
        outcome=scored.status == 'ok' and score >= self.threshold - slack,
        partial=min(max(share, 0.0), 1.0),
        status=scored.status,
        columns={
            NOTE.name: scored.note,
            **{
                c.name: _fit(c, scored.columns.get(c.name))
                for c in self.columns
            },
        },
    )


def _fit(column: schema.Column, value: Any) -> Any:
  """Return a value of a grader's own column; None where it does not fit."""
  if value is None or column.dtype == 'string':
    return None if value is None else str(value)
  if not isinstance(value, bool | int | float):
    return None
  return bool(value) if column.dtype == 'bool' else float(value)


def options(
    kind: type,
    given: Mapping[str, Any],
    field: str = OPTIONS,
    others: Sequence[str] = _COMMON,
) -> Any:
  """Return the options of a grader, checked.

  Args:
    kind: A dataclass whose fields are the options; a default's type is the
      option's.
    given: The value of `field`.
    field: Name of the config's field, for messages.
    others: Options that the caller reads, for messages.

  Raises:
    GraderError: If an option is unknown or has another type.
  """
  missing = dataclasses.MISSING
  fields = {
      f.name: f.default if f.default is not missing else f.default_factory()
      for f in dataclasses.fields(kind)
  }
  for name, value in given.items():
    path = f'{field}.{name}'
    if name not in fields:
      known = ', '.join((*others, *fields))
      raise GraderError(f'{path} is not an option; there are {known}')
    default = fields[name]
    number = isinstance(default, int | float)
    whole = isinstance(default, int)
    kinds = int if whole else (int, float) if number else type(default)
    if (
        not isinstance(value, kinds)
        or isinstance(value, bool)
        or (number and not 0 <= value < math.inf)
        or (name == 'timeout_s' and not value)
    ):
      what = 'a whole number' if whole else 'a number'
      least = 'above' if name == 'timeout_s' else 'at least'
      what = f'{what}, {least} 0' if number else f'a {type(default).__name__}'
      raise GraderError(f'{path}={value!r} must be {what}')
  return kind(**given)


def make(
    path: str,
    given: Mapping[str, Any] | None,
    problems: Sequence[records.Problem],
) -> Grader:
  """Return the grader that a config names; it imports and requests nothing yet.

  Args:
    path: Dotted path of a function or class, or 'openai'.
    given: Its options. All graders have `range`, the lowest and the highest
      score; `threshold`, the lowest score of a solved problem, by default the
      highest score; and `columns`, {name: dtype} of values to store beside the
      score, from the dict that the function returns or from TRL's log_extra.
      The others are those of `functions.Options` and `judge.Options`.
    problems: All problems that it will grade.

  Raises:
    GraderError: If a name, an option or a value is invalid.
  """
  given = dict(given or {})
  low, high = read_range(
      'domain.kwargs.grader_options.range', given.pop('range', (0.0, 1.0))
  )
  threshold = given.pop('threshold', high)
  if not isinstance(threshold, int | float) or not low < threshold <= high:
    raise GraderError(
        f'domain.kwargs.grader_options.threshold={threshold!r} must be a score'
        f' above {low:g}, up to {high:g}: the range'
    )
  columns = _columns(given.pop('columns', {}))
  # Imported on use: most runs have none of them.
  if path == 'openai':
    from evojax.domains import judge

    scorer = judge.Judge(options(judge.Options, given), low, high)
  else:
    from evojax.domains import functions

    scorer = functions.Function(
        path, options(functions.Options, given), problems
    )
  return Grader(path, scorer, low, high, float(threshold), columns)


@dataclasses.dataclass(frozen=True)
class Scale:
  """The meaning of the rewards of a third-party environment."""

  low: float
  high: float
  threshold: float  # The lowest reward of a solved problem.

  @classmethod
  def read(cls, ends: Any, threshold: float | int | None) -> 'Scale':
    """Return the scale of domain.kwargs.range and domain.kwargs.threshold.

    Args:
      ends: The lowest and the highest reward.
      threshold: The lowest reward of a solved problem; None is the highest
        reward.

    Raises:
      GraderError: If an argument is not valid.
    """
    low, high = read_range('domain.kwargs.range', ends)
    threshold = high if threshold is None else threshold
    if not low < threshold <= high:
      raise GraderError(
          f'domain.kwargs.threshold={threshold!r} must be a reward above'
          f' {low:g}, up to {high:g}: the range'
      )
    return cls(low, high, float(threshold))

  def grade(self, who: str, reward: float) -> tuple[bool, float]:
    """Return whether a reward solves a problem, and its partial credit 0..1.

    Raises:
      GraderError: If it is out of range; the message names its source, `who`.
    """
    slack = _TOLERANCE * max(1.0, abs(self.low), abs(self.high))
    if not self.low - slack <= reward <= self.high + slack:
      raise GraderError(
          f'{who} gave the reward {reward:g}; rewards lie in [{self.low:g},'
          f' {self.high:g}]. Declare what it gives with'
          ' domain.kwargs.range=(low, high)'
      )
    share = (reward - self.low) / (self.high - self.low)
    return reward >= self.threshold - slack, min(max(share, 0.0), 1.0)


def read_range(field: str, given: Any) -> tuple[float, float]:
  """Return the lowest and the highest score.

  Raises:
    GraderError: If `given`, the value of `field`, is not such a pair.
  """
  pair = list(given) if isinstance(given, list | tuple) else []
  if (
      len(pair) != 2
      or not all(isinstance(x, int | float) and math.isfinite(x) for x in pair)
      or pair[0] >= pair[1]
  ):
    raise GraderError(
        f'{field}={given!r} must be the lowest and the highest score, e.g.'
        ' (0.0, 1.0)'
    )
  return float(pair[0]), float(pair[1])


def _columns(given: Any) -> tuple[schema.Column, ...]:
  """Return the grader's own columns, which only people read."""
  if not isinstance(given, Mapping) or not all(
      dtype in DTYPES for dtype in given.values()
  ):
    raise GraderError(
        f'domain.kwargs.grader_options.columns={given!r} must be a table of'
        f" names and types such as {{'acc': 'bool'}}; types are {DTYPES}"
    )
  try:
    return tuple(
        schema.Column(
            name,
            dtype,
            doc=f'{name!r} of the grader.',
            nullable=True,
            readers=('report',),
        )
        for name, dtype in given.items()
    )
  except ValueError as error:
    raise GraderError(
        f'domain.kwargs.grader_options.columns: {error}'
    ) from error
