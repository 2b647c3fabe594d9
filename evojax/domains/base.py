"""The interface of a domain: problems, a grader, reward parts and columns."""

import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import time
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import environments
from evojax.evidence import schema
from evojax.harness import surface

# Templates of completions, filled with a reference answer: one for each common
# answer format, and some without the answer.
ATTEMPTS = (
    '{}',
    'So 1 + 1 = 2. <answer>{}</answer>',
    '<answer>0</answer>',
    '\\boxed{{{}}}',
    '#### {}',
    'The answer is {}.',
    'I cannot say.',
    '',
)


@dataclasses.dataclass(frozen=True)
class Demonstrations:
  """The supervised data for training a domain's base policy."""

  # Writes a completion of a problem; all randomness comes from the generator.
  demonstrate: Callable[
      [records.Problem, np.random.Generator], records.Demonstration
  ]
  tokens: tuple[str, ...] = ()  # Strings that are single tokens.
  words: bool = False  # No other token spans several words, as suits code.

  def batch(
      self, source: records.ProblemSource, seed: int, step: int, count: int
  ) -> list[records.Demonstration]:
    """Return the demonstrations of one step, a pure function of the arguments.

    Args:
      source: See `Domain.demonstrated`.
      seed: Seeds the random generator together with `step`.
      step: >= 0; the step takes problems step * count and following.
      count: Number of demonstrations per step, constant in a run.
    """
    rng = np.random.default_rng([seed, step])
    # A small source repeats its problems, but not within one `take`.
    most, end = len(source), (step + 1) * count
    return [
        self.demonstrate(problem, rng)
        for cursor in range(step * count, end, most)
        for problem in source.take(cursor, min(most, end - cursor))
    ]


class Domain(abc.ABC):
  """A task for training a policy, without a train loop of its own.

  A subclass sets `name` and defines `source`, `grade` and `reward_parts`.
  Everything else has a default. Its module has a function `make(**kwargs)` that
  returns an instance; kwargs are config.domain.kwargs.

  The package of a domain may contain these folders: seed_harness/ and
  seed_blind/ (harness directories), base_policy/ (a Hugging Face directory,
  config.model.path='package:NAME').
  """

  name: str
  # The domain's own evidence columns, and the statuses of its grades.
  columns: tuple[schema.Column, ...] = (
      schema.with_codes('grade_status', {'ok': 0}),
  )
  # Fields that a proposal may change besides those of the config; they lie
  # below domain.kwargs, where the config has their values.
  surface_fields: tuple[surface.Field, ...] = ()
  # Training data of the base policy; None: there is no warm start.
  demonstrations: Demonstrations | None = None
  # Limits of an episode. With more than one turn, `environment` replies to each
  # turn, and the table of statuses has records.INFRA_ERROR.
  limits = environments.Limits()

  @property
  def levels(self) -> tuple[tuple[str, int], ...]:
    """The (family, level) pairs of the training problems.

    `config.data.families` can name each of them. Empty if the problems have no
    families.
    """
    return ()

  def demonstrated(self, seed: int) -> records.ProblemSource:
    """Return the problems for demonstrations, of the train split.

    If problems are few, these should differ from the training problems: from a
    problem that it has often seen, a base policy learns nothing.
    """
    return self.source('train', seed)

  @abc.abstractmethod
  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Return the problems of 'train', 'dev' or 'sealed'.

    The splits are disjoint by problem_id.
    """

  @abc.abstractmethod
  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade a completion. Must not raise on hostile or malformed text."""

  @abc.abstractmethod
  def reward_parts(self, e: Any) -> Mapping[str, np.ndarray]:
    """Return named reward parts, float32 [P, G], from an evidence view."""

  def environment(
      self, problem: records.Problem
  ) -> environments.Environment | None:
    """Return the environment of a new episode; called from many threads.

    It is not called if `limits.turns` is 1. An error ends the episode without a
    grade.

    Returns:
      The environment; None for a problem whose first turn ends the episode.
    """
    return None

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b.

    A domain that can grade in parallel overrides this method. A grade without
    `seconds` gets an equal share of the call's wall time. In training this is
    called in a thread other than the main one, which may be abandoned when the
    run is to stop; it must not use devices.
    """
    grades = []
    for problem, completion in zip(problems, completions, strict=True):
      start = time.perf_counter()
      grade = self.grade(problem, completion)
      # The caller refuses anything else.
      if isinstance(grade, records.Grade) and grade.seconds is None:
        grade = dataclasses.replace(grade, seconds=time.perf_counter() - start)
      grades.append(grade)
    return grades

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    """Return a changed problem with its own right answer.

    The meta-loop keeps only changes that help on such problems too, see
    `eval.perturb`. New numbers or constants are the best test: a policy that
    does not derive the answer from the question is then wrong. The result is a
    function of the problem alone and has a problem_id of its own.

    Returns:
      The changed problem; None if nothing can be changed, or if the new problem
      would belong to the sealed split.
    """
    return None

  @property
  def perturbs(self) -> bool:
    """True if the domain overrides `perturb`."""
    return type(self).perturb is not Domain.perturb

  @property
  def audit(self) -> 'Domain':
    """Return the domain with a stricter judge, if there is one.

    A policy may exploit the grader of its training, for example one that only
    runs visible tests, fails open, or favours long answers. A domain with a
    stricter judge, which is too expensive or too valuable to train on, returns
    a domain here that grades with that judge and has the same columns. The
    meta-loop applies it to a change before keeping it (on problems changed by
    `perturb`, if possible) and to the sealed problems at the end. Arms and
    proposers never see its verdicts.
    """
    return self

  def attempts(
      self, problem: records.Problem
  ) -> Sequence[str | records.Episode]:
    """Return right and wrong completions, the same number per problem.

    A string is an episode of one turn; episodes of several turns are given as
    episodes.

    The gate runs a harness's functions on them before any training is paid for,
    see `episodes.synthetic`.
    """
    return [form.format(problem.answer) for form in ATTEMPTS]


def source_of(domain: Domain, split: str, seed: int) -> records.ProblemSource:
  """Return the problems of a split; check what a domain's `source` returns.

  Raises:
    ValueError: If it returns something else.
  """
  source = domain.source(split, seed)
  if not all(hasattr(source, name) for name in ('take', '__len__')):
    raise ValueError(
        f'domain {domain.name!r}: source({split!r}, {seed}) returned'
        f' {type(source).__name__!r}, not an evojax.records.ProblemSource;'
        ' make one of a list of problems by'
        ' evojax.domains.sources.FiniteSource(problems, split, seed)'
    )
  return source


def draw_behaviour(
    behaviours: Mapping[str, float], rng: np.random.Generator
) -> str:
  """Return a random key of `behaviours`, which maps names to probabilities."""
  names = list(behaviours)
  return names[rng.choice(len(names), p=list(behaviours.values()))]


def draw_filler(
    sentences: Sequence[str], count: int, rng: np.random.Generator
) -> list[str]:
  """Return `count` random sentences, drawn with replacement."""
  return [sentences[i] for i in rng.integers(len(sentences), size=count)]
