"""Perturbed problems, on which a gain in skill remains and a trick fails."""

from collections.abc import Callable, Mapping

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.evidence import views

SPLITS = ('dev', 'sealed')  # Perturbed problems are scored, never trained on.
_MOST_PER_ONE = 50  # Maximum problems examined for each one that is perturbed.
Fits = Callable[[records.Problem], bool]
_CHUNK = 64  # Fixed, so that the stream does not depend on `count`.


class TooFewError(ValueError):
  """The domain cannot perturb as many problems as requested."""


class Perturbed(base.Domain):
  """A domain with perturbed problems of another domain.

  Grading and columns are those of the other domain.
  """

  def __init__(self, domain: base.Domain, fits: Fits = lambda problem: True):
    """Wrap a domain that defines `perturb`.

    Args:
      domain: The domain of the problems.
      fits: Returns whether a perturbed problem can be used; an added sentence
        may make a prompt too long.

    Raises:
      ValueError: If the domain does not define `perturb`.
    """
    if not domain.perturbs:
      raise ValueError(
          f'domain {domain.name!r} has no perturb(problem), so its problems'
          ' cannot be perturbed'
      )
    self._domain, self._fits = domain, fits
    self.name, self.columns = domain.name, domain.columns
    self.grade_many = domain.grade_many

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Return the perturbed problems of 'dev' or 'sealed', in the split's order.

    Raises:
      ValueError: If the split is not one of SPLITS.
    """
    if split not in SPLITS:
      raise ValueError(
          f'{split=}: perturbed problems are of {SPLITS}; they are scored,'
          ' never trained on'
      )
    return _Source(self._domain, split, seed, self._fits)

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    return self._domain.grade(problem, completion)

  def reward_parts(self, e: views.View) -> Mapping[str, np.ndarray]:
    return self._domain.reward_parts(e)


class _Source:
  """The problems of a split that can be perturbed, each perturbed."""

  def __init__(self, domain: base.Domain, split: str, seed: int, fits: Fits):
    self._source = domain.source(split, seed)
    self._perturb, self._fits = domain.perturb, fits
    self._what = f'split {split!r} of domain {domain.name!r}'

  def __len__(self) -> int:
    """Return the number that `take` can rely on; it refuses fewer."""
    return len(self._source) // _MOST_PER_ONE

  def take(self, cursor: int, count: int) -> list[records.Problem]:
    """Return problems cursor .. cursor + count - 1, all distinct.

    Raises:
      TooFewError: If the split has too few, or fewer than 1 in 50 of its
        problems can be perturbed.
    """
    wanted = cursor + count
    size = len(self._source)
    # The limit reports a domain that can perturb hardly any problem early, not
    # after a split of millions was generated.
    limit = min(size, _MOST_PER_ONE * wanted)
    found: dict[str, records.Problem] = {}
    for start in range(0, limit, _CHUNK):
      if len(found) >= wanted:
        break
      # Two problems may become the same one.
      for problem in self._source.take(start, min(_CHUNK, size - start)):
        changed = self._perturb(problem)
        if changed is not None and self._fits(changed):
          found.setdefault(changed.problem_id, changed)
    if len(found) < wanted:
      raise TooFewError(
          f'{self._what}: {len(found)} of its first {limit} problems (it has'
          f' {size}) can be perturbed, {wanted} were asked for; ask for fewer'
      )
    return list(found.values())[cursor:wanted]


def has_perturbations(
    domain: base.Domain,
    problems: int = 1,
    *,
    split: str = 'dev',
    seed: int = 0,
    fits: Fits = lambda problem: True,
) -> bool:
  """Return whether a domain can perturb that many problems of a split."""
  if not domain.perturbs:
    return False
  # A domain may define `perturb` and still be unable to perturb any problem.
  try:
    Perturbed(domain, fits).source(split, seed).take(0, problems)
  except TooFewError:
    return False
  return True
