"""The math domain: its problems and their grading."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.domains import sourced
from evojax.domains.math import datasets
from evojax.domains.math import demonstrations
from evojax.domains.math import grade
from evojax.domains.math import perturb
from evojax.domains.math import problems
from evojax.domains.math import python_tool
from evojax.domains.math import scoring
from evojax.evidence import schema
from evojax.harness import surface
from evojax.harness.library.seed import reward

TOOLS = {python_tool.NAME: python_tool.SCHEMA}


@dataclasses.dataclass(frozen=True)
class MathDomain(sourced.SourcedDomain):
  """Problems with one right answer, see `make`."""

  answer_format: str  # One of grade.ANSWER_FORMATS.
  max_turns: int = 1  # With more than 1, a harness may switch tools on and off.

  name = 'math'
  reward_parts = staticmethod(reward.parts)
  catalogue = problems.CATALOGUE
  readers = datasets.READERS
  demonstrations = base.Demonstrations(
      demonstrations.demonstrate, demonstrations.TOKENS
  )

  @property
  def columns(self) -> tuple[schema.Column, ...]:
    """The columns of the math grader, plus those of the user's own grader."""
    columns = grade.COLUMNS
    if self.max_turns > 1:
      columns = (*columns, *python_tool.COLUMNS)
    return self.grader.declare(columns) if self.grader else columns

  @property
  def limits(self) -> environments.Limits:
    """The limits; more than one turn only if there is a tool."""
    return environments.Limits(self.max_turns if self.problems.tools else 1)

  @property
  def surface_fields(self) -> tuple[surface.Field, ...]:
    """The list of tools, which a harness may change if max_turns > 1."""
    field = surface.Field(
        intervention_class='tools',
        path='domain.kwargs.tools',
        kind='names',
        choices=tuple(TOOLS),
    )
    return (field,) if self.max_turns > 1 else ()

  def environment(
      self, problem: records.Problem
  ) -> environments.ToolEnvironment:
    """Return the environment of an episode with tools."""
    return python_tool.environment()

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade a completion. Never raises on hostile or malformed text."""
    form = problem.metadata.get('answer_form', 'value')
    if self.grader or form == scoring.FORM:
      return self.grade_many([problem], [completion])[0]
    return self._grade(problem.answer, completion, form)

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b."""
    if self.grader:
      grades = self.grader.grade_many(problems, completions)
      # These columns depend on the text only, not on the grader.
      shown = (self._grade('', c, 'text').columns for c in completions)
      return [
          dataclasses.replace(found, columns={**columns, **found.columns})
          for found, columns in zip(grades, shown, strict=True)
      ]
    scored = [p.metadata.get('answer_form') == scoring.FORM for p in problems]
    by_value = [not s for s in scored]
    in_box, here = (
        [list(itertools.compress(v, which)) for v in (problems, completions)]
        for which in (scored, by_value)
    )
    found = iter(scoring.grade_many(*in_box, self.answer_format))
    rest = iter(super().grade_many(*here))
    return [next(found if s else rest) for s in scored]

  def _grade(
      self, answer: str, completion: records.Episode, form: str
  ) -> records.Grade:
    cut = completion.finish_reason == 'length'
    return grade.grade(answer, completion.text, self.answer_format, cut, form)

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    """Return the changed problem, see `perturb.perturb`.

    A sealed problem is never the result, since it would open that split early.
    """
    changed = perturb.perturb(problem)
    if changed and self.is_sealed(changed) and not self.is_sealed(problem):
      return None
    return changed and dataclasses.replace(changed, tools=problem.tools)


def make(
    *,
    families: str | Sequence[str] = (),
    weights: Sequence[float] = (),
    answer_format: str = 'tag',
    system_prompt: str = '',
    jsonl: Mapping[str, Any] | None = None,
    parquet: Mapping[str, Any] | None = None,
    tfds: Mapping[str, Any] | None = None,
    grader: str = '',
    grader_options: Mapping[str, Any] | None = None,
    tools: Sequence[str] = (),
    max_turns: int = 1,
) -> MathDomain:
  """Build the domain, read its files and measure its families.

  All problems come from one source: families, jsonl, parquet or tfds; by
  default from the family set 'small'.

  Args:
    families: Generated problems: 'small' (the levels that a tiny policy can
      learn), 'all' (every level of every family that is large enough and graded
      by value), 'scored' (families that reasoning-gym's own scorers judge in
      the box, with partial credit), or families with levels, see
      `sources.Catalogue.select`.
    weights: One per name in families; equal if empty.
    answer_format: The markup of an answer, one of grade.ANSWER_FORMATS.
    system_prompt: First message of every problem; '' for none. It does not
      count for a problem's identity.
    jsonl: 'train', and optionally 'dev' and 'sealed': paths, see
      `datasets.read_jsonl`; 'question_field', 'answer_field'. A split without
      a path gets its share of train, by hash. 'skip_broken': True leaves broken
      lines out.
    parquet: The same for Parquet files, such as verl's.
    tfds: 'name'; 'train', 'dev', 'sealed' as for jsonl: splits of the data
      set; 'data_dir', 'module', 'question_field', 'answer_field', see
      `datasets.read_tfds`.
    grader: The user's own grader for the problems of a data set: the dotted
      path of a function, or 'openai', see `graders`; '' compares answers by
      value.
    grader_options: Its options, see `graders.make`.
    tools: Tools that the policy may call, names from TOOLS. The chat template
      of the policy must describe them.
    max_turns: Maximum number of turns in an episode. With more than 1, a
      harness may switch tools on and off; config.rollout.turn_tokens is the
      length of a turn.

  Raises:
    ValueError: If an argument is invalid, a file is broken, or a family is
      too small for disjoint splits.
  """
  if answer_format not in grade.ANSWER_FORMATS:
    raise ValueError(
        f'domain.kwargs.answer_format={answer_format!r} is not one of'
        f' {grade.ANSWER_FORMATS}'
    )
  selected = MathDomain.select(
      families,
      weights,
      'small',
      system_prompt,
      grader,
      grader_options,
      jsonl=jsonl,
      parquet=parquet,
      tfds=tfds,
  )
  if isinstance(tools, str) or set(tools) - set(TOOLS):
    raise ValueError(
        f'domain.kwargs.tools={tools!r} must be a list of names from'
        f' {list(TOOLS)}'
    )
  if type(max_turns) is not int or max_turns < 1 or (tools and max_turns == 1):
    raise ValueError(
        f'domain.kwargs.max_turns={max_turns!r} with tools={list(tools)}:'
        ' it must be an integer of at least 1, or of at least 2 with tools,'
        ' since a call and its answer take 2 turns'
    )
  schemas = tuple(TOOLS[name] for name in dict.fromkeys(tools))
  if schemas:
    selected = selected.with_tools(schemas)
  return MathDomain(selected, answer_format, max_turns)
