"""Where problems come from: streams that are functions of their position.

Shared by the domains: what a config selects, generated problems, data sets and
their splits.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import math
import random
from typing import Any

from evojax import records
from evojax.domains import splits

_ATTEMPTS = 1000  # Candidates of one stream position.

# Family -> its levels.
Levels = Mapping[str, Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Entry:
  """One level of a family and its share of the stream."""

  family: str
  level: int
  weight: float  # > 0; shares are relative to the sum.


@dataclasses.dataclass(frozen=True)
class Draft:
  """A candidate: its identity, and what makes a problem of it."""

  problem_id: str
  # Called where the identity is wanted; None: a candidate that is refused.
  build: Callable[[], records.Problem | None]


def select(
    families: str | Sequence[str],
    weights: Sequence[float],
    counts: Mapping[str, int],
    sets: Mapping[str, Levels],
) -> tuple[Entry, ...]:
  """Levels and their weights from a config.

  Args:
    families: Names, a tuple or one comma-separated string. Each is a key of
      `sets`, a family such as 'gcd' (all its levels), 'gcd:1' or 'gcd:0-2'.
    weights: One per name, > 0; equal if empty. A name's weight is shared
      equally by its families, a family's by its levels.
    counts: Family -> number of its levels.
    sets: Names of their own for several families.

  Raises:
    ValueError: If a name, a level or a weight is impossible.
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
      or not all(isinstance(w, int | float) for w in weights)
      or not all(0 < w < math.inf for w in weights)
  ):
    raise ValueError(
        f'domain.kwargs.weights={weights!r} must be one positive number for'
        f' each of the {len(names)} names in families={names}'
    )
  entries = []
  for name, weight in zip(names, weights, strict=True):
    levels = sets[name] if name in sets else _levels(name, counts, sets)
    for family, numbers in levels.items():
      share = weight / len(levels) / len(numbers)
      entries.extend(Entry(family, level, share) for level in numbers)
  return tuple(entries)


def _levels(
    name: str, counts: Mapping[str, int], sets: Mapping[str, Levels]
) -> Levels:
  """Levels of 'family', 'family:level' or 'family:first-last'."""
  family, colon, numbers = name.partition(':')
  if family not in counts:
    raise ValueError(
        f'domain.kwargs.families: {name!r} is not {", ".join(sets)}, or one of'
        f' {sorted(counts)}, with :LEVEL or :FIRST-LAST after it'
    )
  count = counts[family]
  first, dash, last = (numbers if colon else f'0-{count - 1}').partition('-')
  last = last if dash else first
  if not (
      first.isdecimal() and last.isdecimal() and int(first) <= int(last) < count
  ):
    raise ValueError(
        f'domain.kwargs.families: {name!r} asks for levels that {family!r} does'
        f' not have; it has 0 to {count - 1}'
    )
  return {family: range(int(first), int(last) + 1)}


def check_capacity(
    family: str, level: int, count: int, least: int, about: str = ''
) -> int:
  """Return `count`, the distinct problems of a level.

  Args:
    family: Of the level.
    level: Of the family.
    count: Distinct problems.
    least: Distinct problems that the smallest split must hold.
    about: 'about ' where `count` is an estimate.

  Raises:
    ValueError: If the smallest split would hold fewer.
  """
  smallest = min(splits.SHARES.values())
  if count * smallest < 100 * least:
    raise ValueError(
        f'family {family!r} level {level} has only {about}{count} distinct'
        f' problems, {count * smallest // 100} in a split of {smallest} %;'
        f' disjoint splits need {least} there. Leave it out of'
        ' domain.kwargs.families, or take a harder level'
    )
  return count


def make_problem(
    messages: Sequence[records.Message],
    answer: str,
    family: str,
    system_prompt: str = '',
    difficulty: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> records.Problem:
  """A problem; its id is that of its messages without the system prompt."""
  text = '\n'.join(message['content'] for message in messages)
  if system_prompt:
    messages = ({'role': 'system', 'content': system_prompt}, *messages)
  return records.Problem(
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
      draft: Callable[[Entry, int, int], Draft],
      capacity: Callable[[str, int], int],
  ):
    """Nothing is drawn here.

    Args:
      entries: Levels and weights, see `select`.
      split: One of splits.SHARES.
      seed: Another seed is another stream of the same split.
      draft: (entry, stream, index) -> a candidate, a pure function; all
        (stream, index) pairs are independent draws.
      capacity: (family, level) -> distinct problems of all splits, or a lower
        bound; raises ValueError if they are too few.
    """
    self._split = splits.check(split)
    self._entries = tuple(entries)
    self._cumulative = list(itertools.accumulate(e.weight for e in entries))
    self._stream = uniform64(f'{seed}/{split}')
    self._draft = draft
    levels = dict.fromkeys((e.family, e.level) for e in entries)
    distinct = sum(capacity(family, level) for family, level in levels)
    self._distinct = distinct * splits.SHARES[split] // 100

  def __len__(self) -> int:
    return self._distinct

  def take(self, cursor: int, count: int) -> list[records.Problem]:
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
      self, position: int, taken: Mapping[str, records.Problem]
  ) -> records.Problem:
    share = uniform64(f'{self._stream}/{position}') / 2**64
    point = share * self._cumulative[-1]
    # Rounding may put the point on the end of the last interval.
    entry = self._entries[
        min(bisect.bisect(self._cumulative, point), len(self._entries) - 1)
    ]
    for attempt in range(_ATTEMPTS):
      draft = self._draft(entry, self._stream, position * _ATTEMPTS + attempt)
      identity = draft.problem_id
      if splits.split_of(identity) == self._split and identity not in taken:
        problem = draft.build()
        if problem is not None:
          return problem
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

  def __init__(
      self, problems: Sequence[records.Problem], split: str, seed: int
  ):
    """Shuffle `problems`, distinct by id, by (seed, split, epoch)."""
    self._problems = tuple(problems)
    self._split = splits.check(split)
    self._seed = seed
    # A training run walks through its epochs; two cover every crossing.
    self._permutation = functools.lru_cache(maxsize=2)(self._shuffle)

  def __len__(self) -> int:
    return len(self._problems)

  def take(self, cursor: int, count: int) -> list[records.Problem]:
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


def check_system_prompt(value: Any) -> None:
  """Check the argument of a domain that is the first message of its problems.

  Raises:
    ValueError: If it is no text.
  """
  if not isinstance(value, str):
    raise ValueError(
        f'domain.kwargs.system_prompt={value!r} must be text; empty is none'
    )


def filled(
    **tables: Mapping[str, Any] | None,
) -> dict[str, dict[str, Any]]:
  """The fields of arguments such as jsonl, without those left empty.

  A config declares fields so that a command line can set them.

  Args:
    **tables: Argument of a domain -> its fields, all texts, or None.

  Raises:
    ValueError: If one is no table of texts.
  """
  for name, table in tables.items():
    if table is not None and not isinstance(table, Mapping):
      raise ValueError(
          f"domain.kwargs.{name}={table!r} must be a table such as {{'train':"
          ' ...}'
      )
    for field, value in (table or {}).items():
      if value and not isinstance(value, str):
        raise ValueError(f'domain.kwargs.{name}.{field}={value!r} must be text')
  return {
      name: {k: v for k, v in (table or {}).items() if v}
      for name, table in tables.items()
  }


def divide(
    given: Mapping[str, Sequence[records.Problem]],
) -> dict[str, tuple[records.Problem, ...]]:
  """Fill every split: what is not given is carved out of train by hash.

  Args:
    given: 'train', and 'dev' and 'sealed' where they have data of their own.

  Returns:
    Problems of train, dev and sealed.

  Raises:
    ValueError: If a problem is in two given splits, or a split is empty.
  """
  owner = {}
  for split, members in given.items():
    shared = [p for p in members if p.problem_id in owner]
    if shared:
      raise ValueError(
          f'{len(shared)} problems of {split!r} are also in'
          f' {owner[shared[0].problem_id]!r}, e.g. {shared[0].question[:80]!r}.'
          ' A split must not leak into another: remove them from one of the two'
      )
    owner.update((p.problem_id, split) for p in members)
  carved = {split: [] for split in splits.SHARES if split not in given}
  divided = {split: list(members) for split, members in given.items()}
  if carved:
    divided['train'] = []
    for problem in given['train']:
      split = splits.split_of(problem.problem_id)
      carved.get(split, divided['train']).append(problem)
  divided |= carved
  for split, members in divided.items():
    if not members:
      raise ValueError(
          f'split {split!r} is empty: {len(given["train"])} problems in train,'
          f' of which {splits.SHARES[split]} % go there by hash. Give more'
          ' problems, or a file for each of train, dev and sealed'
      )
  return {split: tuple(divided[split]) for split in splits.SHARES}


def uniform64(text: str) -> int:
  """Uniform 64-bit integer, a hash of the text."""
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big')
