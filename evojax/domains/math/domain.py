"""The math domain: its problems and how they are graded."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

from evojax import records
from evojax.domains import base
from evojax.domains import sourced
from evojax.domains.math import datasets
from evojax.domains.math import demonstrations
from evojax.domains.math import grade
from evojax.domains.math import perturb
from evojax.domains.math import problems
from evojax.domains.math import scoring
from evojax.harness.library.seed import reward


@dataclasses.dataclass(frozen=True)
class MathDomain(sourced.SourcedDomain):
  """Problems with one right answer, see `make`."""

  answer_format: str  # One of grade.ANSWER_FORMATS.

  name = 'math'
  columns = grade.COLUMNS
  reward_parts = staticmethod(reward.parts)
  catalogue = problems.CATALOGUE
  readers = datasets.READERS
  demonstrations = base.Demonstrations(
      demonstrations.demonstrate, demonstrations.TOKENS
  )

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade a completion. Never raises on hostile or malformed text."""
    cut = completion.finish_reason == 'length'
    form = problem.metadata.get('answer_form', 'value')
    if form == scoring.FORM:
      return self.grade_many([problem], [completion])[0]
    return grade.grade(
        problem.answer, completion.text, self.answer_format, cut, form
    )

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b."""
    scored = [p.metadata.get('answer_form') == scoring.FORM for p in problems]
    by_value = [not s for s in scored]
    in_box, here = (
        [list(itertools.compress(v, which)) for v in (problems, completions)]
        for which in (scored, by_value)
    )
    found = iter(scoring.grade_many(*in_box, self.answer_format))
    rest = iter(super().grade_many(*here))
    return [next(found if s else rest) for s in scored]

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    """Return the problem in another writing; None where there is none.

    No other problem becomes a sealed one, which would open that split early.
    """
    changed = perturb.perturb(problem)
    if changed and self.is_sealed(changed) and not self.is_sealed(problem):
      return None
    return changed


def make(
    *,
    families: str | Sequence[str] = (),
    weights: Sequence[float] = (),
    answer_format: str = 'tag',
    system_prompt: str = '',
    jsonl: Mapping[str, Any] | None = None,
    tfds: Mapping[str, Any] | None = None,
) -> MathDomain:
  """Build the domain, read its files and measure its families.

  Problems come from one place: families, jsonl or tfds, or from the family set
  'small' if none is named.

  Args:
    families: Generated problems: 'small' (the levels that a tiny policy can
      learn), 'all' (every level of every family that is large enough and
      graded by value), 'scored' (those that reasoning-gym's own scorers judge,
      in the box, with partial credit), or families with levels, see
      `sources.Catalogue.select`.
    weights: One per name in families; equal if empty.
    answer_format: How an answer is marked, one of grade.ANSWER_FORMATS.
    system_prompt: First message of every problem; empty is none. It is no part
      of a problem's identity.
    jsonl: 'train', and optionally 'dev' and 'sealed': paths, see
      `datasets.read_jsonl`; 'question_field', 'answer_field'. A split without
      a path takes its share of train, by hash. 'skip_broken': True leaves
      broken lines out.
    tfds: 'name'; 'train', 'dev', 'sealed' as for jsonl: splits of the data
      set; 'data_dir', 'module', 'question_field', 'answer_field', see
      `datasets.read_tfds`.

  Raises:
    ValueError: If an argument is impossible, a file is broken, or a family is
      too small for disjoint splits.
  """
  if answer_format not in grade.ANSWER_FORMATS:
    raise ValueError(
        f'domain.kwargs.answer_format={answer_format!r} is not one of'
        f' {grade.ANSWER_FORMATS}'
    )
  selected = MathDomain.select(
      families, weights, 'small', system_prompt, jsonl=jsonl, tfds=tfds
  )
  return MathDomain(selected, answer_format)
