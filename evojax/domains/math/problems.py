"""Which generated problems a config selects, and the stream of them."""

import collections
from collections.abc import Sequence
import functools
import math

from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import generators

MIN_DISTINCT = 100  # Distinct problems that a level must have in every split.
_CAPACITY_DRAWS = 400

# Names of `select` for several families.
_SETS = {
    'small': {f: range(len(ls)) for f, ls in generators.SMALL.items()},
    'all': {
        f: range(len(ls))
        for f, ls in generators.FAMILIES.items()
        if f not in generators.TOO_SMALL
    },
}


def select(
    families: str | Sequence[str], weights: Sequence[float] = ()
) -> tuple[sources.Entry, ...]:
  """Levels and their weights from a config, see `sources.select`.

  Args:
    families: 'small' (the levels that a tiny policy can learn), 'all' (every
      level of every family that is large enough), or families with levels.
    weights: One per name, > 0; equal if empty.

  Raises:
    ValueError: If a name, a level or a weight is impossible.
  """
  counts = {family: len(ls) for family, ls in generators.FAMILIES.items()}
  return sources.select(families, weights, counts, _SETS)


@functools.cache
def capacity(family: str, level: int) -> int:
  """Distinct problems of a level, a lower bound estimated from collisions.

  n draws from D equally likely problems collide in n(n-1) / 2D pairs on
  average; an uneven draw collides more, so that D counts the problems that
  matter. The bound takes the upper end (about two standard deviations) of the
  Poisson number of collisions. A fixed sample makes it the same everywhere.
  """
  counts = collections.Counter(
      splits.normalise(generators.generate(family, level, -1, index)[0])
      for index in range(_CAPACITY_DRAWS)
  )
  collisions = sum(n * (n - 1) // 2 for n in counts.values())
  pairs = _CAPACITY_DRAWS * (_CAPACITY_DRAWS - 1) / 2
  return int(pairs / (collisions + 2 * math.sqrt(collisions) + 3))


def check_capacity(family: str, level: int) -> int:
  """Return `capacity`.

  Raises:
    ValueError: If the smallest split would hold fewer than MIN_DISTINCT.
  """
  count = capacity(family, level)
  return sources.check_capacity(family, level, count, MIN_DISTINCT, 'about ')


def stream(
    entries: Sequence[sources.Entry],
    split: str,
    seed: int,
    system_prompt: str = '',
) -> sources.ProceduralSource:
  """An endless stream of generated problems; measures every level.

  Args:
    entries: Levels and weights, see `select`.
    split: One of splits.SHARES.
    seed: Another seed is another stream of the same split.
    system_prompt: First message of every problem; empty is none.

  Raises:
    ValueError: If a level is too small for disjoint splits.
  """
  draft = functools.partial(_draft, system_prompt)
  return sources.ProceduralSource(entries, split, seed, draft, check_capacity)


def _draft(
    system_prompt: str, entry: sources.Entry, seed: int, index: int
) -> sources.Draft:
  question, answer, metadata = generators.generate(
      entry.family, entry.level, seed, index
  )
  form = generators.FORMS.get(entry.family, 'value')
  return sources.Draft(
      splits.problem_id(question),
      lambda: sources.make_problem(
          ({'role': 'user', 'content': question},),
          answer,
          entry.family,
          system_prompt,
          entry.level,
          {**metadata, 'answer_form': form},
      ),
  )
