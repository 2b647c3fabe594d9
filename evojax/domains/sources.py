"""Streams of problems, each a function of the position in the stream.

Problems are generated (`Catalogue`, `ProceduralSource`) or given
(`FiniteSource`).
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import difflib
import functools
import hashlib
import itertools
import math
import random
import re
from typing import Any

from evojax import records
from evojax.domains import splits

_ATTEMPTS = 1000  # Maximum number of candidates per position in a stream.

# A candidate whose text is not made yet: its problem_id, and a function that
# makes the problem on demand, or returns None to refuse the candidate.
Draft = tuple[str, Callable[[], records.Problem | None]]


def read_name(name: str) -> tuple[str, range | None]:
  """Return the family that a name such as 'gcd:0-2' gives, and its levels.

  The levels are None for a family alone, and empty if they are misspelled or
  the last comes before the first.
  """
  family, colon, levels = name.partition(':')
  if not colon:
    return family, None
  match = re.fullmatch(r'(\d+)(?:-(\d+))?', levels)
  first, last = match.group(1, 2) if match else ('1', '0')
  return family, range(int(first), int(last or first) + 1)


@dataclasses.dataclass(frozen=True)
class Entry:
  """One level of a family and its share of the stream."""

  family: str
  level: int
  weight: float  # > 0; shares are relative to the sum.


def make_problem(
    messages: Sequence[records.Message],
    answer: str,
    family: str,
    system_prompt: str = '',
    difficulty: int = 0,
    metadata: Mapping[str, Any] | None = None,
    identity: str = '',
) -> records.Problem:
  """Make a problem.

  Its id is a hash of `identity`, by default of its messages without the system
  prompt.
  """
  text = '\n'.join(message['content'] for message in messages)
  name = identity or splits.problem_id(text)
  if system_prompt:
    messages = ({'role': 'system', 'content': system_prompt}, *messages)
  return records.Problem(
      name, family, tuple(messages), answer, difficulty, metadata or {}
  )


class ProceduralSource:
  """An endless stream of generated problems of one split.

  Every position draws its family and level, then candidates until one belongs
  to the split and has not occurred in the same `take`. A problem is therefore a
  function of (seed, split, position); it depends on earlier positions of the
  same `take` only where it would repeat one of them. No call depends on
  another, so that a resumed run need not regenerate anything.
  """

  def __init__(
      self,
      catalogue: 'Catalogue',
      entries: Sequence[Entry],
      split: str,
      seed: int,
      system_prompt: str = '',
      tools: tuple[Mapping[str, Any], ...] = (),
  ):
    """Describe the stream; no problem is generated yet.

    Args:
      catalogue: Makes the problems.
      entries: Levels and weights, see `Catalogue.select`.
      split: One of splits.SHARES.
      seed: Each seed gives another stream of the same split.
      system_prompt: First message of every problem; '' for none.
      tools: Schemas of the tools of every problem.

    Raises:
      ValueError: If a level is too small for disjoint splits.
    """
    self._split = splits.check(split)
    self._entries = tuple(entries)
    self._cumulative = list(itertools.accumulate(e.weight for e in entries))
    self._stream = uniform64(f'{seed}/{split}')
    self._catalogue = catalogue
    self._system_prompt, self._tools = system_prompt, tools
    levels = dict.fromkeys((e.family, e.level) for e in entries)
    distinct = sum(itertools.starmap(catalogue.check_capacity, levels))
    self._distinct = distinct * splits.SHARES[split] // 100

  def __len__(self) -> int:
    return self._distinct

  def take(self, cursor: int, count: int) -> list[records.Problem]:
    """Return problems cursor .. cursor + count - 1, all distinct.

    Raises:
      ValueError: If a level has too few distinct problems for `count`.
    """
    problems = {}
    for position in range(cursor, cursor + count):
      problem = self._draw(position, problems)
      problems[problem.problem_id] = problem
    found = list(problems.values())
    if self._tools:
      found = [dataclasses.replace(p, tools=self._tools) for p in found]
    return found

  def _draw(
      self, position: int, taken: Mapping[str, records.Problem]
  ) -> records.Problem:
    share = uniform64(f'{self._stream}/{position}') / 2**64
    point = share * self._cumulative[-1]
    # Rounding may put the point beyond the last interval.
    last = len(self._entries) - 1
    entry = self._entries[bisect.bisect(self._cumulative, point, hi=last)]
    for attempt in range(_ATTEMPTS):
      index = position * _ATTEMPTS + attempt
      identity, build = self._catalogue.draft(
          entry, self._stream, index, self._system_prompt
      )
      if splits.split_of(identity) == self._split and identity not in taken:
        if (problem := build()) is not None:
          return problem
    raise ValueError(
        f'{_ATTEMPTS} draws of family {entry.family!r} level {entry.level} gave'
        f' no further problem of split {self._split!r} after {len(taken)}'
        ' distinct ones. Take fewer at once, or add families'
    )


@dataclasses.dataclass(frozen=True)
class Catalogue:
  """The families of generated problems that a domain offers."""

  levels: Mapping[str, Sequence[Any]]  # Family -> its levels.
  # Name -> the families that it stands for, with their levels from the first
  # on.
  sets: Mapping[str, Mapping[str, Sequence[Any]]]
  # (family, level) -> distinct problems of all splits, or a lower bound.
  capacity: Callable[[str, int], int]
  least: int  # Minimum number of distinct problems of a level in every split.
  # (entry, stream, index, system_prompt) -> a candidate, a pure function; all
  # pairs (stream, index) are independent.
  draft: Callable[[Entry, int, int, str], Draft]
  estimated: bool = False  # Whether `capacity` is an estimate.
  # Name of a data set that cannot be a family -> the reason.
  left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def select(
      self, families: str | Sequence[str], weights: Sequence[float] = ()
  ) -> tuple[Entry, ...]:
    """Return the levels that a config names, with their weights.

    Args:
      families: Names, a tuple or one comma-separated string. Each is a key of
        `sets`, a family such as 'gcd' (all its levels), 'gcd:1' or 'gcd:0-2'.
      weights: One per name, > 0; equal if empty. A name's weight is shared
        equally by its families, a family's by its levels.

    Raises:
      ValueError: If a name, a level or a weight is invalid.
    """
    if isinstance(families, str):
      families = families.split(',')
    if not isinstance(families, list | tuple) or not all(
        isinstance(name, str) for name in families
    ):
      raise ValueError(
          f'domain.kwargs.families={families!r} must be names, a tuple or one'
          ' comma-separated string'
      )
    names = [name.strip() for name in families]
    weights = weights or (1.0,) * len(names)
    if (
        not isinstance(weights, list | tuple)
        or len(weights) != len(names)
        or not all(
            isinstance(w, int | float) and 0 < w < math.inf for w in weights
        )
    ):
      raise ValueError(
          f'domain.kwargs.weights={weights!r} must be one positive number for'
          f' each of the {len(names)} names in families={names}'
      )
    entries = []
    for name, weight in zip(names, weights, strict=True):
      levels = self._levels(name)
      for family, numbers in levels.items():
        share = weight / len(levels) / len(numbers)
        entries.extend(Entry(family, level, share) for level in numbers)
    return tuple(entries)

  def _levels(self, name: str) -> Mapping[str, Sequence[int]]:
    """Return the levels of 'set', 'family' or 'family:level[-last level]'."""
    if name in self.sets:
      return {f: range(len(levels)) for f, levels in self.sets[name].items()}
    family, levels = read_name(name)
    if family in self.left_out:
      raise ValueError(
          f'domain.kwargs.families: {family!r} cannot be a family:'
          f' {self.left_out[family]}'
      )
    if family not in self.levels:
      near = difflib.get_close_matches(family, self.levels, n=2)
      hint = f'; did you mean {" or ".join(near)}?' if near else ''
      raise ValueError(
          f'domain.kwargs.families: {name!r} is not {", ".join(self.sets)}, or'
          f' one of {sorted(self.levels)}, with :LEVEL or :FIRST-LAST after it'
          f'{hint}'
      )
    count = len(self.levels[family])
    if levels is None:
      return {family: range(count)}
    if not levels or levels[-1] >= count:
      raise ValueError(
          f'domain.kwargs.families: {name!r} asks for levels that {family!r}'
          f' does not have; it has 0 to {count - 1}'
      )
    return {family: levels}

  def check_capacity(self, family: str, level: int) -> int:
    """Return the number of distinct problems of a level.

    Raises:
      ValueError: If the smallest split would hold fewer than `least`.
    """
    count, smallest = self.capacity(family, level), min(splits.SHARES.values())
    if count * smallest < 100 * self.least:
      about = 'about ' if self.estimated else ''
      raise ValueError(
          f'family {family!r} level {level} has only {about}{count} distinct'
          f' problems, {count * smallest // 100} in a split of {smallest} %;'
          f' disjoint splits need {self.least} there. Leave it out of'
          ' domain.kwargs.families, or take a harder level'
      )
    return count


class FiniteSource:
  """A data set, of problems or of material for them, in shuffled epochs.

  Position p is problem p % n of epoch p // n, and each epoch has its own
  permutation. A `take` that crosses into the next epoch skips the problems that
  it already has, so that it never repeats one.
  """

  def __init__(self, problems: Sequence[Any], split: str, seed: int):
    """Shuffle `problems`, which have distinct ids, by (seed, split, epoch)."""
    self._problems = tuple(problems)
    self._split = splits.check(split)
    self._seed = seed
    # A run goes from one epoch to the next, so two cached ones are enough.
    self._permutation = functools.lru_cache(maxsize=2)(self._shuffle)

  def __len__(self) -> int:
    return len(self._problems)

  def take(self, cursor: int, count: int) -> list[Any]:
    """Return problems cursor .. cursor + count - 1, all distinct.

    Raises:
      ValueError: If the split has fewer than `count` problems.
    """
    size = len(self._problems)
    if count > size:
      raise ValueError(
          f'split {self._split!r} has {size} problems, {count} were asked for'
          ' at once; lower grpo.prompts, eval.problems or evolve.problems, or'
          ' add data'
      )
    epoch, offset = divmod(cursor, size)
    chosen = self._permutation(epoch)[offset : offset + count]
    if len(chosen) < count:
      fresh = [i for i in self._permutation(epoch + 1) if i not in chosen]
      chosen += fresh[: count - len(chosen)]
    return [self._problems[index] for index in chosen]

  def _shuffle(self, epoch: int) -> list[int]:
    order = list(range(len(self._problems)))
    random.Random(f'{self._seed}/{self._split}/{epoch}').shuffle(order)
    return order


def uniform64(text: str) -> int:
  """Return a uniform 64-bit integer that is a hash of the text."""
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big')
