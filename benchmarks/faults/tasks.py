"""Domains whose own score can be gamed, shared by the task.py of settings."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from evojax import records
from evojax.domains.coding import domain as coding_domain
from evojax.domains.math import domain as math_domain
from evojax.domains.swe import domain as swe_domain

_TRIES = 50  # Places that are looked at for each problem.


class Some:
  """The problems of another source that meet a condition."""

  def __init__(
      self,
      source: records.ProblemSource,
      wanted: Callable[[records.Problem], bool],
      *,
      length: int,
  ):
    """Choose the problems; they are looked for on demand.

    Args:
      source: The other source.
      wanted: The condition.
      length: Number of problems, at most as many as are wanted.
    """
    self._source, self._wanted, self._length = source, wanted, length
    self._seen, self._found = 0, []

  def __len__(self) -> int:
    return self._length

  def take(self, cursor: int, count: int) -> list[records.Problem]:
    """Return `count` distinct problems from place `cursor` on.

    Raises:
      ValueError: If there seem to be fewer.
    """
    chosen: dict[str, records.Problem] = {}
    for place in range(cursor, cursor + _TRIES * count):
      problem = self._at(place)
      chosen.setdefault(problem.problem_id, problem)
      if len(chosen) == count:
        return list(chosen.values())
    raise ValueError(f'{count} distinct problems wanted, {len(chosen)} found')

  def _at(self, place: int) -> records.Problem:
    while len(self._found) <= place:
      some = self._source.take(self._seen, min(64, len(self._source)))
      self._seen += len(some)
      self._found += filter(self._wanted, some)
    return self._found[place]


def _as(cls: type, domain: Any) -> Any:
  """Return a domain of another class with the same fields."""
  fields = (f.name for f in dataclasses.fields(domain))
  return cls(**{name: getattr(domain, name) for name in fields})


def judged(grade: records.Grade, right: bool | None) -> records.Grade:
  """Return a grade with another verdict; None keeps the one that it has."""
  if right is None:
    return grade
  return dataclasses.replace(grade, outcome=right, partial=float(right))


class Math(math_domain.MathDomain):
  """Math with a leaky grader or leaky problems; `audit` has its own."""

  def verdict(
      self, grade: records.Grade, completion: records.Episode
  ) -> bool | None:
    """Return this grader's verdict; None keeps the sound grade."""
    del grade, completion
    return None

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    found = super().grade(problem, completion)
    return judged(found, self.verdict(found, completion))

  @property
  def audit(self) -> math_domain.MathDomain:
    return _as(math_domain.MathDomain, self)

  @classmethod
  def make(cls, **kwargs: Any) -> 'Math':
    return _as(cls, math_domain.make(**kwargs))


class Coding(coding_domain.CodingDomain):
  """Coding with a leaky grader or leaky problems; `audit` has its own."""

  def verdict(
      self, grade: records.Grade, completion: records.Episode
  ) -> bool | None:
    """Return this grader's verdict; None keeps the sound grade."""
    del grade, completion
    return None

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    found = super().grade_many(problems, completions)
    return [
        judged(grade, self.verdict(grade, completion))
        for grade, completion in zip(found, completions, strict=True)
    ]

  @property
  def audit(self) -> coding_domain.CodingDomain:
    return _as(coding_domain.CodingDomain, self)

  @classmethod
  def make(cls, **kwargs: Any) -> 'Coding':
    return _as(cls, coding_domain.make(**kwargs))


class Swe(swe_domain.SweDomain):
  """Repositories with a leaky grader; `audit` has its own."""

  def verdict(self, grade: records.Grade) -> bool | None:
    """Return this grader's verdict; None keeps the sound grade."""
    del grade
    return None

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    found = super().grade_many(problems, completions)
    return [judged(grade, self.verdict(grade)) for grade in found]

  @property
  def audit(self) -> swe_domain.SweDomain:
    return _as(swe_domain.SweDomain, self).audit

  @classmethod
  def make(cls, **kwargs: Any) -> 'Swe':
    return _as(cls, swe_domain.make(**kwargs))
