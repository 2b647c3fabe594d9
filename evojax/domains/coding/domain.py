"""The coding domain: its problems and the grading of programs."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import sourced
from evojax.domains.coding import datasets
from evojax.domains.coding import demonstrations
from evojax.domains.coding import grade
from evojax.domains.coding import perturb
from evojax.domains.coding import problems
from evojax.harness.library.seed import reward
from evojax.sandbox import processes


@dataclasses.dataclass(frozen=True)
class CodingDomain(sourced.SourcedDomain):
  """Problems that ask for a program, see `make`."""

  partial: bool  # Whether the share of tests passed is partial credit.
  slots: int  # Number of programs that run concurrently.

  name = 'coding'
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
    return self.grade_many([problem], [completion])[0]

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b, in the box."""
    return grade.grade_many(
        problems, completions, partial=self.partial, slots=self.slots
    )

  def attempts(self, problem: records.Problem) -> tuple[str, ...]:
    """Return completions of every kind: demonstrations and broken programs."""
    rng = np.random.default_rng(0)
    behaviours = demonstrations.BEHAVIOURS
    if 'parameters' not in problem.metadata:
      behaviours = ('constant', 'endless')
    return (
        *(demonstrations.act(problem, b, rng) for b in behaviours),
        '```python\nprint(1 / 0)\n```',
        '```python\nprint(\n```',
        'I cannot say.',
        '',
    )

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    """Return the changed problem, see `perturb.perturb`."""
    return perturb.perturb(problem)


def make(
    *,
    families: str | Sequence[str] = (),
    weights: Sequence[float] = (),
    system_prompt: str = '',
    jsonl: Mapping[str, Any] | None = None,
    partial: bool = False,
    slots: int = 0,
) -> CodingDomain:
  """Build the domain, read its files and count the problems of its families.

  Nothing is run yet; grading the first program opens the box.

  Args:
    families: Generated problems: 'all', or families with levels such as
      'sums:0-1', see `sources.Catalogue.select`; all if empty.
    weights: One per name in families; equal if empty.
    system_prompt: First message of every problem; '' for none. It does not
      count for a problem's identity.
    jsonl: 'train', and optionally 'dev' and 'sealed': paths of files in the
      format of LiveCodeBench or TACO, see `datasets.read_jsonl`. A split
      without a path gets its share of train, by hash. 'skip_broken': True
      leaves broken lines out.
    partial: If True, every test is run, and the passing share is partial
      credit. If False, a program is run up to its first failing test, and
      partial credit equals the outcome.
    slots: Number of programs that run concurrently; 0: one per core.

  Raises:
    ValueError: If an argument is invalid, a file is broken, or a family is
      too small for disjoint splits.
  """
  if type(slots) is not int or slots < 0:
    raise ValueError(
        f'domain.kwargs.slots={slots!r} must be a number of programs at the'
        ' same time, or 0 for one per core'
    )
  if not isinstance(partial, bool):
    raise ValueError(f'domain.kwargs.partial={partial!r} must be True or False')
  selected = CodingDomain.select(
      families, weights, 'all', system_prompt, jsonl=jsonl
  )
  return CodingDomain(selected, partial, slots or processes.cores())
