"""A domain with one more column: a language model's score of each episode.

    config.domain.judge = {'url': 'http://localhost:30000/v1', 'model': 'NAME'}

A frozen model behind an OpenAI-compatible server scores every episode against a
rubric, without the reference answer. The score is the column `judge`, which
rewards, filters and diagnostics can read. The domain's own grader still decides
whether a problem is solved. EvoTrainer's best version paid a tenth of such a
score (arXiv:2606.03108, v8).

Replies are cached by a hash of the request, see `judge`. If the judge gives no
score, the episode is not graded, since its reward is unknown.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.domains import graders
from evojax.domains import judge as judge_lib
from evojax.evidence import schema

FIELD = 'domain.judge'
COLUMN = schema.Column(
    'judge',
    'float32',
    doc='Score of the language model that config.domain.judge names.',
    unit='0..1',
)
TEMPLATE = """Judge how an assistant worked on a task.

The task:
{question}

Its work """ + judge_lib.MARKED
RUBRIC = (
    'The best score is for work that does all that the task asks for and'
    ' nothing that it forbids, the lowest one for work that ignores it.'
)


@dataclasses.dataclass(frozen=True)
class Options(judge_lib.Options):
  """The options of a judge; see `judge.Options`.

  The default template does not show the reference answer.
  """

  template: str = TEMPLATE
  rubric: str = RUBRIC


class Judged(base.Domain):
  """Another domain with a judge's score for each episode."""

  def __init__(
      self, domain: base.Domain, judge: judge_lib.Judge, low: float, high: float
  ):
    """Wrap a domain; no request is made yet.

    Args:
      domain: Has no column `judge`.
      judge: Scores from `low` to `high`.
      low: The lowest score, which becomes 0.
      high: The highest score, which becomes 1.
    """
    self._domain, self._judge = domain, judge
    self._low, self._high = low, high
    self.name = domain.name
    self.columns = _declare(domain.columns)
    self.surface_fields = domain.surface_fields
    self.demonstrations = domain.demonstrations
    self.limits = domain.limits

  def __getattr__(self, name: str) -> Any:
    """Return other attributes of the wrapped domain, such as `grader`."""
    if name.startswith('_'):  # `_domain` may not be set yet.
      raise AttributeError(name)
    return getattr(self._domain, name)

  @property
  def levels(self) -> tuple[tuple[str, int], ...]:
    return self._domain.levels

  def demonstrated(self, seed: int) -> records.ProblemSource:
    return self._domain.demonstrated(seed)

  def source(self, split: str, seed: int) -> records.ProblemSource:
    return self._domain.source(split, seed)

  def reward_parts(self, e: Any) -> Mapping[str, np.ndarray]:
    return self._domain.reward_parts(e)

  def environment(
      self, problem: records.Problem
  ) -> environments.Environment | None:
    return self._domain.environment(problem)

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    return self._domain.perturb(problem)

  @property
  def perturbs(self) -> bool:
    return self._domain.perturbs

  @property
  def audit(self) -> base.Domain:
    return Judged(self._domain.audit, self._judge, self._low, self._high)

  def attempts(
      self, problem: records.Problem
  ) -> Sequence[str | records.Episode]:
    return self._domain.attempts(problem)

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    return self.grade_many([problem], [completion])[0]

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b, and ask the judge.

    The judge does not score completions that could not be graded.

    Raises:
      graders.NoGradesError: If the judge scores none of them.
    """
    grades = self._domain.grade_many(problems, completions)
    items = {
        b: graders.Item(p, dataclasses.replace(c, text=transcript(c)))
        for b, (p, c) in enumerate(zip(problems, completions, strict=True))
        if grades[b].status != records.INFRA_ERROR
    }
    scores = self._judge(list(items.values())) if items else []
    failed = [score for score in scores if score.score is None]
    if failed and len(failed) == len(scores):
      raise graders.NoGradesError(
          f'config.{FIELD} gave no score to any of {len(items)} episodes. The'
          f' first: {failed[0].note}. The same command continues the run'
      )
    known = dict(zip(items, scores, strict=True))
    return [
        self._with_score(grade, known.get(b, graders.Scored()))
        for b, grade in enumerate(grades)
    ]

  def _with_score(
      self, grade: records.Grade, score: graders.Scored
  ) -> records.Grade:
    value, status = 0.0, grade.status
    if score.score is None:
      status = records.INFRA_ERROR
    else:
      value = (score.score - self._low) / (self._high - self._low)
    columns = {**grade.columns, COLUMN.name: value}
    return dataclasses.replace(grade, status=status, columns=columns)


def transcript(episode: records.Episode) -> str:
  """Return an episode as text: the policy's turns and the replies to them."""
  if len(episode.turns) == 1:
    return episode.text
  lines = []
  for number, turn in enumerate(episode.turns, start=1):
    lines.append(f'[turn {number}]\n{turn.text}')
    if turn.observation:
      lines.append(f'[answer]\n{turn.observation}')
  return '\n'.join(lines)


def wrap(domain: base.Domain, given: Mapping[str, Any]) -> base.Domain:
  """Return a domain with the judge that config.domain.judge describes.

  Args:
    domain: Any domain.
    given: The fields of `Options`, and `range`, the lowest and the highest
      score that the judge is asked for, by default (0, 10). If it is empty,
      the domain is returned unchanged.

  Raises:
    ValueError: If an option is missing, unknown or invalid, or if the domain
      has a column of that name.
  """
  if not given:
    return domain
  given = dict(given)
  low, high = graders.read_range(
      f'{FIELD}.range', given.pop('range', (0.0, 10.0))
  )
  options = graders.options(Options, given, FIELD, ('range',))
  if any(column.name == COLUMN.name for column in domain.columns):
    raise ValueError(
        f'{FIELD}: the domain {domain.name!r} has a column {COLUMN.name!r}'
        ' already; leave the field empty'
    )
  return Judged(domain, judge_lib.Judge(options, low, high, FIELD), low, high)


def _declare(columns: Sequence[schema.Column]) -> tuple[schema.Column, ...]:
  """Add the judge's column, and a status for episodes without a score."""
  codes = schema.codes_of(columns, 'grade_status')
  if records.INFRA_ERROR not in codes:
    codes[records.INFRA_ERROR] = 1 + max(codes.values(), default=-1)
  status = schema.with_codes('grade_status', codes)
  others = (column for column in columns if column.name != 'grade_status')
  return (status, *others, COLUMN)
