"""Domains whose problems are generated or read from a data set."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any, ClassVar

from evojax import records
from evojax.domains import base
from evojax.domains import datasets
from evojax.domains import graders
from evojax.domains import sources
from evojax.domains import splits


@dataclasses.dataclass(frozen=True)
class Problems:
  """The problems that a config selects: either generated or given ones."""

  entries: tuple[sources.Entry, ...] = ()  # Generated problems.
  # Split -> problems of a data set.
  data: Mapping[str, tuple[records.Problem, ...]] | None = None
  system_prompt: str = ''  # First message of generated problems; empty: none.
  grader: graders.Grader | None = None  # The user's own, for given problems.
  tools: tuple[Mapping[str, Any], ...] = ()  # Schemas, see `records.Problem`.

  def with_tools(self, tools: tuple[Mapping[str, Any], ...]) -> 'Problems':
    """Return a copy in which all problems have the tools."""
    data = self.data and {
        split: tuple(dataclasses.replace(p, tools=tools) for p in given)
        for split, given in self.data.items()
    }
    return dataclasses.replace(self, data=data, tools=tools)


@dataclasses.dataclass(frozen=True)
class SourcedDomain(base.Domain):
  """A domain with generated problems and readers of data sets."""

  problems: Problems

  catalogue: ClassVar[sources.Catalogue]
  readers: ClassVar[Mapping[str, datasets.Reader]]  # By argument of `make`.

  @classmethod
  def select(
      cls,
      families: str | Sequence[str],
      weights: Sequence[float],
      default: str,
      system_prompt: str,
      grader: str = '',
      grader_options: Mapping[str, Any] | None = None,
      **tables: Mapping[str, Any] | None,
  ) -> Problems:
    """Select problems by the arguments of `make`.

    All problems come from one source: families or one of the data sets.

    Args:
      families: Generated problems, see `sources.Catalogue.select`.
      weights: One per name in families; equal if empty.
      default: The families to use if no problems are named.
      system_prompt: First message of every problem; '' for none. It does not
        count for a problem's identity.
      grader: The user's own grader for the problems of a data set, see
        `graders.make`; '' for the domain's.
      grader_options: Its options.
      **tables: Key of `readers` -> the fields of its data set.

    Raises:
      ValueError: If an argument is invalid, a file is broken, or a family
        is too small for disjoint splits.
    """
    if not isinstance(system_prompt, str):
      raise ValueError(
          f'domain.kwargs.system_prompt={system_prompt!r} must be text; empty'
          ' is none'
      )
    given = datasets.given(tables)
    if len(given) + bool(families) > 1 or (weights and not families):
      raise ValueError(
          'domain.kwargs: problems come from one of families,'
          f' {", ".join(tables)} (weights belong to families); given are'
          f' {families=}, {weights=}, {given}'
      )
    if (grader or grader_options) and not (grader and given):
      raise ValueError(
          f'domain.kwargs: {grader=} with grader_options={grader_options}:'
          ' grader names your own grader, which judges the problems of a data'
          f' set: also give one of {", ".join(tables)}'
      )
    for name, fields in given.items():
      more = {'system_prompt': system_prompt}
      if grader:
        more['own_grader'] = True
      data = datasets.read(name, cls.readers[name], fields, **more)
      own = None
      if grader:
        everything = list(itertools.chain(*data.values()))
        own = graders.make(grader, grader_options, everything)
      return Problems(data=data, grader=own)
    entries = cls.catalogue.select(families or default, weights)
    for entry in entries:
      cls.catalogue.check_capacity(entry.family, entry.level)
    return Problems(entries, system_prompt=system_prompt)

  @property
  def grader(self) -> graders.Grader | None:
    """The user's own grader, if there is one."""
    return self.problems.grader

  @property
  def levels(self) -> tuple[tuple[str, int], ...]:
    """The families of generated problems; none of a data set."""
    return tuple((e.family, e.level) for e in self.problems.entries)

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Return the problems of 'train', 'dev' or 'sealed', disjoint by id.

    Raises:
      ValueError: If the split is unknown, or a family is too small for it.
    """
    splits.check(split)
    chosen = self.problems
    if chosen.data:
      return sources.FiniteSource(chosen.data[split], split, seed)
    return sources.ProceduralSource(
        self.catalogue,
        chosen.entries,
        split,
        seed,
        chosen.system_prompt,
        chosen.tools,
    )

  def is_sealed(self, problem: records.Problem) -> bool:
    """Return whether a problem belongs to the sealed split."""
    identity = problem.problem_id
    if self.problems.data:
      return any(p.problem_id == identity for p in self.problems.data['sealed'])
    return splits.split_of(identity) == 'sealed'
