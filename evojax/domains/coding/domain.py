"""The coding domain: where problems come from, and how they are judged."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.coding import datasets
from evojax.domains.coding import demonstrations
from evojax.domains.coding import grade
from evojax.domains.coding import perturb
from evojax.domains.coding import problems
from evojax.harness.library.seed import reward


@dataclasses.dataclass(frozen=True)
class CodingDomain(base.Domain):
  """See `make`. Either `entries` or `data` is empty."""

  entries: tuple[sources.Entry, ...]  # Generated problems.
  data: Mapping[str, tuple[records.Problem, ...]]  # Split -> given problems.
  system_prompt: str  # First message of generated problems; empty is none.
  partial: bool  # Whether the share of tests passed is partial credit.
  slots: int  # Programs at the same time.

  name = 'coding'
  columns = grade.COLUMNS
  reward_parts = staticmethod(reward.parts)
  demonstrations = base.Demonstrations(
      demonstrations.demonstrate, demonstrations.TOKENS
  )

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Problems of 'train', 'dev' or 'sealed'; disjoint by problem_id.

    Raises:
      ValueError: If the split is unknown, or a family is too small for it.
    """
    splits.check(split)
    if self.data:
      return sources.FiniteSource(self.data[split], split, seed)
    return problems.stream(self.entries, split, seed, self.system_prompt)

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
    """Completions of every kind: those of demonstrations, and some more."""
    rng = np.random.default_rng(0)
    behaviours = (
        demonstrations.BEHAVIOURS
        if 'parameters' in problem.metadata
        else ('constant', 'endless')
    )
    return (
        *(demonstrations.act(problem, b, rng) for b in behaviours),
        '```python\nprint(1 / 0)\n```',
        '```python\nprint(\n```',
        'I cannot say.',
        '',
    )

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    """The problem written otherwise, see `perturb.perturb`."""
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
  """Build the domain; reads its files and counts what its families hold.

  Nothing is run yet: the box is opened by the first program that is judged.

  Args:
    families: Generated problems, see `problems.select`; all if none is named.
    weights: One per name in families; equal if empty.
    system_prompt: First message of every problem; empty is none. It is no part
      of a problem's identity.
    jsonl: 'train', and optionally 'dev' and 'sealed': paths of files of
      LiveCodeBench's or TACO's shape, see `datasets.read_jsonl`. A split
      without a path takes its share of train, by hash.
    partial: Whether every test is run, and the share that passes is partial
      credit. If not, a program is judged up to the first test that it fails,
      and partial credit is the outcome.
    slots: Programs that run at the same time; 0: one per core.

  Raises:
    ValueError: If an argument is impossible, a file is broken, or a family is
      too small for disjoint splits.
  """
  if type(slots) is not int or slots < 0:
    raise ValueError(
        f'domain.kwargs.slots={slots!r} must be a number of programs at the'
        ' same time, or 0 for one per core'
    )
  if not isinstance(partial, bool):
    raise ValueError(f'domain.kwargs.partial={partial!r} must be True or False')
  sources.check_system_prompt(system_prompt)
  paths = sources.filled(jsonl=jsonl)['jsonl']
  if (paths and families) or (weights and not families):
    raise ValueError(
        'domain.kwargs: problems come from families or jsonl (weights belong to'
        f' families); given are {families=}, {weights=}, jsonl={paths}'
    )
  unknown = sorted(set(paths) - set(splits.SHARES))
  if paths and (unknown or 'train' not in paths):
    raise ValueError(
        f'domain.kwargs.jsonl: {unknown=}, given {sorted(paths)}; it takes'
        f' {", ".join(splits.SHARES)}, and needs train'
    )
  entries, data = (), {}
  if paths:
    data = sources.divide(
        {
            split: datasets.read_jsonl(path, system_prompt=system_prompt)
            for split, path in paths.items()
        }
    )
  else:
    entries = problems.select(families or 'all', weights)
    for entry in entries:
      problems.check_capacity(entry.family, entry.level)
  return CodingDomain(entries, data, system_prompt, partial, slots or _cores())


def _cores() -> int:
  """Cores that this process may use; macOS does not tell, and has them all."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
