"""Streams of problems: a problem is a function of its position alone."""

import bisect
import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import math
import random
from typing import Any

from evojax import types
from evojax.domains.math import generators
from evojax.domains.math import splits

MIN_DISTINCT = 100  # Distinct problems that a level must have in every split.
_CAPACITY_DRAWS = 400
_ATTEMPTS = 1000  # Candidates of one stream position.


@dataclasses.dataclass(frozen=True)
class Entry:
  """One level of a family and its share of the stream."""

  family: str
  level: int
  weight: float  # > 0; shares are relative to the sum.


def select(
    families: str | Sequence[str], weights: Sequence[float] = ()
) -> tuple[Entry, ...]:
  """Levels and their weights from a config.

  Args:
    families: Names, a tuple or one comma-separated string. Each is 'small'
      (the levels that a tiny policy can learn), 'all' (every level of every
      family that is large enough), 'gcd' (all levels of a family), 'gcd:1' or
      'gcd:0-2'.
    weights: One per name, > 0; equal by default. A name's weight is shared
      equally by its families, a family's by its levels.

  Raises:
    ValueError: If a name, a level or a weight is impossible.
  """
  if isinstance(families, str):
    families = families.split(',')
  names = [name.strip() for name in families]
  weights = tuple(weights) or (1.0,) * len(names)
  if len(weights) != len(names) or not all(0 < w < math.inf for w in weights):
    raise ValueError(
        f'domain.kwargs.weights={weights} must be one positive number for each'
        f' of the {len(names)} names in families={names}'
    )
  entries = []
  for name, weight in zip(names, weights, strict=True):
    levels = _levels(name)
    for family, numbers in levels.items():
      share = weight / len(levels) / len(numbers)
      entries.extend(Entry(family, level, share) for level in numbers)
  return tuple(entries)


def _levels(name: str) -> Mapping[str, Sequence[int]]:
  """Family -> levels of one name of `select`."""
  if name == 'small':
    return {f: range(len(ls)) for f, ls in generators.SMALL.items()}
  if name == 'all':
    return {
        f: range(len(ls))
        for f, ls in generators.FAMILIES.items()
        if f not in generators.TOO_SMALL
    }
  family, _, numbers = name.partition(':')
  if family not in generators.FAMILIES:
    raise ValueError(
        f'domain.kwargs.families: {name!r} is not small, all, or one of'
        f' {sorted(generators.FAMILIES)}, with :LEVEL or :FIRST-LAST after it'
    )
  count = len(generators.FAMILIES[family])
  first, _, last = (numbers or f'0-{count - 1}').partition('-')
  last = last or first
  if not (
      first.isdecimal() and last.isdecimal() and int(first) <= int(last) < count
  ):
    raise ValueError(
        f'domain.kwargs.families: {name!r} asks for levels that {family!r} does'
        f' not have; it has 0 to {count - 1}'
    )
  return {family: range(int(first), int(last) + 1)}


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
  """Returns `capacity`.

  Raises:
    ValueError: If the smallest split would hold fewer than MIN_DISTINCT.
  """
  count = capacity(family, level)
  smallest = min(splits.SHARES.values())
  if count * smallest < 100 * MIN_DISTINCT:
    raise ValueError(
        f'family {family!r} level {level} has only about {count} distinct'
        f' problems, {count * smallest // 100} in a split of {smallest} %;'
        f' disjoint splits need {MIN_DISTINCT} there. Leave it out of'
        ' domain.kwargs.families, or take a harder level'
    )
  return count


def make_problem(
    messages: Sequence[types.Message],
    answer: str,
    family: str,
    system_prompt: str = '',
    difficulty: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> types.Problem:
  """A problem; its id is that of its messages without the system prompt."""
  text = '\n'.join(message['content'] for message in messages)
  if system_prompt:
    messages = ({'role': 'system', 'content': system_prompt}, *messages)
  return types.Problem(
      problem_id=splits.problem_id(text),
      family=family,
      messages=tuple(messages),
      answer=answer,
      difficulty=difficulty,
      metadata=metadata or {},
  )


class ProceduralSource:
  """An endless stream of generated problems of one split.

  Every position draws its family and level, then candidates of its own until
  one falls into the split and has not occurred in the same `take`. So a
  problem is a function of (seed, split, position) and of the earlier positions
  of the same `take` where it would have been a repetition; no call depends on
  another, and a resumed run regenerates nothing.
  """

  def __init__(
      self,
      entries: Sequence[Entry],
      split: str,
      seed: int,
      system_prompt: str = '',
  ):
    """Measures every level.

    Args:
      entries: Levels and weights, see `select`.
      split: One of splits.SHARES.
      seed: Another seed is another stream of the same split.
      system_prompt: First message of every problem; empty is none.

    Raises:
      ValueError: If a level is too small for disjoint splits.
    """
    self._split = splits.check(split)
    self._entries = tuple(entries)
    self._cumulative = list(itertools.accumulate(e.weight for e in entries))
    self._stream = _hash(f'{seed}/{split}')
    self._system_prompt = system_prompt
    counts = {
        (e.family, e.level): check_capacity(e.family, e.level) for e in entries
    }
    self._distinct = sum(counts.values()) * splits.SHARES[split] // 100

  def __len__(self) -> int:
    return self._distinct

  def take(self, cursor: int, count: int) -> list[types.Problem]:
    """Problems cursor .. cursor + count - 1, all distinct.

    Raises:
      ValueError: If a level has too few distinct problems for `count`.
    """
    problems = {}
    for position in range(cursor, cursor + count):
      problem = self._draw(position, problems)
      problems[problem.problem_id] = problem
    return list(problems.values())

  def _draw(
      self, position: int, taken: Mapping[str, types.Problem]
  ) -> types.Problem:
    point = _hash(f'{self._stream}/{position}') / 2**64 * self._cumulative[-1]
    # Rounding may put the point on the end of the last interval.
    entry = self._entries[
        min(bisect.bisect(self._cumulative, point), len(self._entries) - 1)
    ]
    for attempt in range(_ATTEMPTS):
      question, answer, metadata = generators.generate(
          entry.family,
          entry.level,
          self._stream,
          position * _ATTEMPTS + attempt,
      )
      identity = splits.problem_id(question)
      if splits.split_of(identity) == self._split and identity not in taken:
        form = generators.FORMS.get(entry.family, 'value')
        return make_problem(
            ({'role': 'user', 'content': question},),
            answer,
            entry.family,
            self._system_prompt,
            entry.level,
            {**metadata, 'answer_form': form},
        )
    raise ValueError(
        f'{_ATTEMPTS} draws of family {entry.family!r} level {entry.level} gave'
        f' no further problem of split {self._split!r} after {len(taken)}'
        ' distinct ones. Take fewer at once, or add families'
    )


class FiniteSource:
  """A data set in shuffled epochs, without end.

  Position p is problem p % n of epoch p // n, each epoch a permutation of its
  own. A `take` that crosses into the next epoch passes over what it already
  holds, so that it never repeats a problem.
  """

  def __init__(self, problems: Sequence[types.Problem], split: str, seed: int):
    """Shuffles `problems`, distinct by id, by (seed, split, epoch)."""
    self._problems = tuple(problems)
    self._split = splits.check(split)
    self._seed = seed
    # A training run walks through its epochs; two cover every crossing.
    self._permutation = functools.lru_cache(maxsize=2)(self._shuffle)

  def __len__(self) -> int:
    return len(self._problems)

  def take(self, cursor: int, count: int) -> list[types.Problem]:
    """Problems cursor .. cursor + count - 1, all distinct.

    Raises:
      ValueError: If the split has fewer than `count` problems.
    """
    size = len(self._problems)
    if count > size:
      raise ValueError(
          f'split {self._split!r} has {size} problems, {count} were asked for'
          ' at once; lower grpo.prompts or eval.problems, or add data'
      )
    epoch, offset = divmod(cursor, size)
    chosen = self._permutation(epoch)[offset : offset + count]
    for index in self._permutation(epoch + 1) if len(chosen) < count else ():
      if len(chosen) == count:
        break
      if index not in chosen:
        chosen.append(index)
    return [self._problems[index] for index in chosen]

  def _shuffle(self, epoch: int) -> list[int]:
    order = list(range(len(self._problems)))
    random.Random(f'{self._seed}/{self._split}/{epoch}').shuffle(order)
    return order


def _hash(text: str) -> int:
  """Uniform 64-bit integer."""
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big')
