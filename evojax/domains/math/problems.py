"""The generated math problems that a config can choose from."""

import collections
from collections.abc import Mapping
import math
from typing import Any

from evojax import records
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import generators
from evojax.domains.math import gym
from evojax.domains.math import scoring

_LEAST = 100  # Minimum number of distinct problems of a level in every split.
_CAPACITY_DRAWS = 400
# Family -> number of distinct problems of its levels, from `measure_capacity`;
# families that are missing here have gym.MOST at every level.
_CAPACITY: Mapping[str, tuple[int, ...]] = {
    'aiw': (6_398, 13_300, 3_639),
    'calendar_arithmetic': (8_431,),
    'chain_sum': (3_099, 5_218, 26_600, 13_300, 26_600, 26_600, 26_600),
    'coin_flip': (221,),
    'decimal_chain_sum': (10_193, 26_600, 26_600),
    'dice': (10_193,),
    'fraction_simplification': (1_404, 4_129, 26_600),
    'gcd': (1_464, 6_398, 26_600, 26_600),
    'gsm_symbolic': (10_193,),
    'largest_island': (10_193,),
    'lcm': (1_230, 3_099, 3_639, 26_600),
    'leg_counting': (8_431, 26_600, 26_600, 26_600),
    'number_sequence': (889,),
    'products': (4_790, 3_867, 26_600, 26_600),
    'self_reference': (358,),
    'simple_equations': (13_300, 13_300, 26_600, 26_600),
} | {family: (count,) for family, count in gym.CAPACITY.items()}


def capacity(family: str, level: int) -> int:
  """Return the number of distinct problems of a level, measured once."""
  counts = _CAPACITY.get(family)
  return counts[level] if counts else gym.MOST


def measure_capacity(family: str, level: int) -> int:
  """Return an estimate of a level's distinct problems, from collisions.

  n draws from D equally likely problems collide in n(n-1) / 2D pairs on
  average. Unequal probabilities cause more collisions, so that rare problems
  hardly count towards D. The result is a lower bound: it uses the upper end, at
  about two standard deviations, of the Poisson number of collisions. The sample
  is fixed, so that the result is the same everywhere.
  """
  counts = collections.Counter(
      splits.normalise(generators.generate(family, level, -1, index)[0])
      for index in range(_CAPACITY_DRAWS)
  )
  collisions = sum(n * (n - 1) // 2 for n in counts.values())
  pairs = _CAPACITY_DRAWS * (_CAPACITY_DRAWS - 1) / 2
  return int(pairs / (collisions + 2 * math.sqrt(collisions) + 3))


def _draft(
    entry: sources.Entry, stream: int, index: int, system_prompt: str
) -> sources.Draft:
  question, answer, metadata = generators.generate(
      entry.family, entry.level, stream, index
  )
  form = generators.FORMS.get(entry.family, 'value')
  if entry.family in gym.SCORED:
    form = scoring.FORM
  metadata = {**metadata, 'answer_form': form}
  return splits.problem_id(question), lambda: _build(
      question, answer, entry, system_prompt, metadata
  )


def _build(
    question: str,
    answer: str,
    entry: sources.Entry,
    system_prompt: str,
    metadata: Mapping[str, Any],
) -> records.Problem | None:
  # The answer to some problems of string_manipulation is the empty string,
  # which no completion can give.
  if not answer.strip():
    return None
  return sources.make_problem(
      ({'role': 'user', 'content': question},),
      answer,
      entry.family,
      system_prompt,
      entry.level,
      metadata,
  )


CATALOGUE = sources.Catalogue(
    levels=generators.FAMILIES,
    sets={
        'small': generators.SMALL,  # The levels that a tiny policy can learn.
        # Every level of every family that is large enough, graded by value.
        'all': {
            family: levels
            for family, levels in generators.FAMILIES.items()
            if family not in (*generators.TOO_SMALL, *gym.SCORED)
        },
        # The families judged by the library's own scorer, in the box.
        'scored': {name: generators.FAMILIES[name] for name in gym.SCORED},
    },
    capacity=capacity,
    least=_LEAST,
    draft=_draft,
    estimated=True,
    left_out=gym.LEFT_OUT,
)
