"""Evidence on which the gate tests a function, and changes of this evidence.

The changes are metamorphic tests: groups in another order, other groups, more
padding. None of them may alter the numbers of a group.
"""

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any

import numpy as np

from evojax.harness import calls as calls_lib
from evojax.harness import derive

# Name prefix of evidence of the size of a training step.
STEP = 'random columns of'
EACH = ('parts', 'weight', 'keep')  # These answer for each completion.
_LARGEST = 4096  # Completions of the largest case, at most.
# Bytes of its columns, at most, unless the synthetic evidence has more.
_LARGEST_BYTES = 4 << 20
_GROUPS = 8  # Groups of the evidence that changes are applied to, at most.
_SCRAMBLED = (6, 5)  # (P, G) of the evidence with random columns.
_FEWER = 2  # Groups of a step's evidence that are also tested alone.
# Completions needed to judge whether a number is constant; evidence of smaller
# steps is sampled several times.
_ENOUGH, _DRAWS = 48, 8
_MOST_IN_A_ROW = 1024  # Calls of `keep` in a row.
# Suffix of a case's name -> description for a message.
_IN_WORDS = {
    'synthetic': 'synthetic evidence',
    'groups': 'groups in another order',
    'within': 'completions in another order',
    'others': 'other groups',
    'padded': 'evidence with more entries that are not valid',
    'scrambled': 'evidence of random columns',
    'more': 'evidence with a group more',
    'rare': 'evidence of rare values: all or none solved, log-probs of 0 and'
    ' -40, one token, one valid completion',
    'uniform': 'evidence where all completions have one and the same value',
}


@dataclasses.dataclass(frozen=True)
class Case:
  """One piece of evidence; for a backtest a pair, before and after."""

  name: str  # 'scrambled', 'scrambled: padded 0'.
  tables: tuple[derive.Table, ...]
  # False for random columns, which may contradict each other: numbers need not
  # be finite then.
  finite: bool = dataclasses.field(kw_only=True)
  # False if the only requirement is that the function ends.
  judged: bool = dataclasses.field(default=True, kw_only=True)
  # Index into the unchanged evidence for the comparison: the completions at
  # these places, or the groups that were not changed.
  places: Any = ...

  @property
  def kind(self) -> str:
    """The kind of evidence, as in `Cases.kinds`."""
    return self.name.partition(': ')[0]

  @property
  def change(self) -> str:
    """The kind of change: 'groups', 'padded', ...; '' if unchanged."""
    return self.name.partition(': ')[2].rstrip(' 012')

  def __str__(self) -> str:
    what = self.change or self.name.rstrip(' 01234567')
    return _IN_WORDS.get(what, what)


class Cases:
  """The cases of one source.

  Attributes:
    all: Every case except the largest.
    largest: Up to _LARGEST completions, to measure time and memory.
    kinds: The kinds of evidence to which changes were applied: 'synthetic',
      'scrambled', 'recorded' if there is any, 'tied', 'rare', and STEP with the
      size of each step.
    sizes: Those of the kinds that have the size of a step.
    copies: Names of cases with a part of such evidence; each also exists as
      '<name>, copied'.
    in_a_row: Number of consecutive calls of `keep` in a run, with the evidence
      for these calls.
  """

  def __init__(
      self,
      source: str,
      function: str,
      base: Any,
      recorded: Any | None,
      shapes: Sequence[tuple[int, int]],
      steps: int,
      across: bool,
      rng: np.random.Generator,
  ):
    """Make all cases.

    Args:
      source: Text of the function's file; its names say which columns it reads.
      function: parts | keep | weight | measure | predict.
      base: Synthetic evidence.
      recorded: Evidence of a run, or None.
      shapes: (P, G) of the training steps that the function is for.
      steps: Number of steps of a run.
      across: Whether one of its numbers may compare groups.
      rng: Random number generator.
    """
    self._source, self._function, self._rng = source, function, rng
    self._steps, self._across = steps, across
    self.kinds: list[str] = []
    self.sizes: list[str] = []
    self.copies: list[str] = []
    real = self._table(base)
    real = derive.in_order(real, np.arange(min(_GROUPS, len(real.valid))))
    self.all = list(self._cases(real, recorded, shapes))
    self.largest = self._make_largest(real)
    named = {case.name: case for case in self.all}
    first = named[self.sizes[0] if self.sizes else 'synthetic']
    self.in_a_row = first, min(steps, _MOST_IN_A_ROW)

  def _table(self, view: Any) -> derive.Table:
    wanted = calls_lib.read(self._source, view.columns)
    if self._function == 'weight':  # n_turns determines the answer's shape.
      wanted = [*dict.fromkeys([*wanted, 'n_turns'])]
    return derive.table(view, wanted)

  def _make_largest(self, base: derive.Table) -> Case:
    """Return up to _LARGEST completions: copies of the first case's groups.

    A copy must get the same numbers as the group that it copies: a function
    must not behave differently on much evidence.
    """
    p, g = base.valid.shape
    size = sum(a.nbytes for a in base.arrays.values()) / max(1, base.valid.size)
    count = int(min(_LARGEST, max(p * g, _LARGEST_BYTES / max(1, size))))
    prompts = max(1, count // g)
    groups = self._rng.permutation(np.arange(prompts) % p)[:, None]
    order = np.broadcast_to(np.arange(g), (prompts, g))
    places = groups, self._rng.permuted(order, axis=1)
    large = self._pair(derive.rows(base, *places))
    return Case(f'{prompts * g} completions', large, places, finite=True)

  def _cases(
      self,
      real: derive.Table,
      recorded: Any | None,
      shapes: Sequence[tuple[int, int]],
  ) -> Iterator[Case]:
    """Yield every kind of evidence, unchanged and with all changes.

    A proposer may know the size and the values of a training step, so some
    cases look like one.
    """
    rng = self._rng
    scrambled = derive.scrambled(real, *_SCRAMBLED, rng, self._steps)
    yield from self._changed('synthetic', real)
    yield from self._changed('scrambled', scrambled)
    if recorded is not None:
      yield from self._changed('recorded', self._table(recorded))
    yield from self._changed('tied', derive.tied(scrambled, rng))
    yield from self._changed('rare', derive.rare(real, rng))
    for p, g in shapes:
      t = derive.resized(real, p, g, rng)
      yield Case(f'{p} x {g} completions', self._pair(t), finite=True)
      yield from self._step(f'{STEP} {p} x {g} completions', real, p, g)
    for name, t in (
        ('groups of one answer', derive.collapsed(real)),
        ('groups of one', derive.alone(real, 1)),
        ('nothing valid', derive.alone(real, 0)),
        *((f'uniform {i}', t) for i, t in enumerate(derive.uniform(real, rng))),
    ):
      yield Case(name, self._pair(t), finite=True)
    far = self._pair(derive.far(real, rng))
    yield Case('far', far, finite=False, judged=False)

  def _step(self, kind: str, real: derive.Table, p: int, g: int):
    """Yield random evidence of the size of a step, and changes of its size."""

    def sample() -> derive.Table:
      t = derive.scrambled(real, p, g, self._rng, self._steps)
      return dataclasses.replace(t, valid=np.ones_like(t.valid))

    t = sample()
    self.sizes.append(kind)
    yield from self._changed(kind, t)
    for i in range(1, min(_DRAWS, -(-_ENOUGH // (p * g)))):
      yield Case(f'{kind}: again {i}', self._pair(sample()), finite=False)
    each = self._function in EACH
    if self._across or not each:
      for few in {min(4, p // 2), p // 2} - {0, 1}:
        yield from self._copies(f'{kind}: {few} groups', t, 0, few)
    if not each:
      return
    few = min(_FEWER, p)
    alone = self._pair(derive.fewer(t, few))
    yield Case(f'{kind}: fewer', alone, np.arange(few), finite=False)
    # Two numbers, one of them odd, since a function may depend on parity.
    for few in {g // 2, g - 1} - {0, 1}:
      yield from self._copies(f'{kind}: {few} completions', t, 1, few)

  def _copies(self, name: str, t: derive.Table, axis: int, few: int):
    """Yield a part of the evidence, and copies of it at the full size."""
    some, many = derive.copies(t, axis, few)
    places = np.s_[:, :few] if axis else np.arange(few)
    yield Case(name, self._pair(some), places, finite=False)
    yield Case(f'{name}, copied', self._pair(many), finite=False)
    self.copies.append(name)

  def _changed(self, kind: str, t: derive.Table) -> Iterator[Case]:
    """Yield one kind of evidence and all changes of it."""
    rng = self._rng
    pair = self._pair(t)
    p, g = t.valid.shape
    order = rng.permutation(p)
    inner = rng.permuted(np.broadcast_to(np.arange(g), (p, g)), axis=1)
    stays = np.arange(p) % 2 == 0
    self.kinds.append(kind)
    finite = kind in ('synthetic', 'recorded', 'rare')

    def case(what, places, change, *args):
      tables = tuple(change(one, *args) for one in pair)
      fine = finite and not what.startswith('others')
      return Case(f'{kind}: {what}', tables, places, finite=fine)

    yield Case(kind, pair, finite=finite)
    yield case('groups', order, derive.in_order, order)
    yield case('within', (np.arange(p)[:, None], inner), derive.within, inner)
    if kind == 'tied':  # Equal values test nothing but their order.
      return
    # A number over all groups, such as a mean, may change with another group.
    if self._function in EACH:
      yield case('more', ..., derive.in_order, np.arange(p + 1) % p)
    drawn = [derive.anywhere(t, (p + 1, g + 1), rng)]
    if kind in ('synthetic', 'scrambled'):
      # Groups and padding are also filled with copies of one extreme.
      drawn += list(derive.extremes(t, rng))
    for i, places in enumerate(drawn):
      yield case(f'padded {i}', ..., derive.padded, places)
      if places.ndim > 1:
        places = places[:p, :g]
      yield case(f'others {i}', stays, derive.others, stays, places)

  def _pair(self, t: derive.Table) -> tuple[derive.Table, ...]:
    """Return the evidence; for a backtest, the same completions twice."""
    if self._function != 'predict':
      return (t,)
    after = dict(t.arrays)
    for name, array in after.items():
      if name in ('reward', 'advantage') or name.startswith('part_'):
        # A function of each completion alone, so that a permuted pair is still
        # a pair.
        after[name] = np.where(np.isfinite(array), 0.5 * array - 0.1, array)
    return t, dataclasses.replace(t, arrays=after)
