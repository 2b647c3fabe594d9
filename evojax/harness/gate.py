"""The gate for one source: what a function must be before it may run.

Layers, each of which stops what the others do not:

    language    what may be written at all, see `language`
    answer      shapes, dtypes, finite numbers, wherever evidence is thin
    repeat      another process gives the same bits, whatever ran before
    order       completions and groups in another order: the same of each
    groups      other groups change: a group's numbers do not
    padding     entries that are not valid change: nothing does
    copies      many groups: each has the numbers that it has among few
    constant    some number differs from another (proposals alone)
    cost        time and memory on the largest evidence

The box (see `calls`) contains whatever gets that far. No answer is trusted:
numbers of a function are only ever compared here.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import functools
import hashlib
from typing import Any

import numpy as np

from evojax.harness import calls as calls_lib
from evojax.harness import cases as cases_lib
from evojax.harness import compare
from evojax.harness import derive
from evojax.harness import language
from evojax.harness import run
from evojax.harness import syntax

LAYERS = (
    'language',
    'answer',
    'repeat',
    'order',
    'groups',
    'padding',
    'copies',
    'constant',
    'cost',
)
CPU_SECONDS = 0.5  # CPU time of all calls in one process.
MEMORY_BYTES = 512 << 20
# Factor on CPU_SECONDS for a source that was admitted before, perhaps on a
# faster machine.
_SLACK = 2
_KEPT_STEPS = 16  # Calls of `keep` in a row, since a state may grow.

Answer = calls_lib.Answer
# Name of a case -> the case and the answers to it.
_Found = dict[str, tuple[cases_lib.Case, list[dict[str, np.ndarray]]]]


def reasons(
    path: str,
    source: str,
    base: Any,
    recorded: Any | None = None,
    *,
    columns: Collection[str],
    shapes: Sequence[tuple[int, int]] = (),
    without: Collection[str] = (),
) -> list[str]:
  """Return why a source is refused, one line each; [] if it may run.

  Args:
    path: Path in the harness, e.g. 'reward.py'.
    source: Text of the file.
    base: Synthetic evidence, open to diagnostics, for every source.
    recorded: Evidence of the run that a proposal is about; None for a source
      that was admitted before and need not be useful here.
    columns: Names of all columns of the evidence.
    shapes: (P, G) of the training steps that the function is for.
    without: Layers to leave out; for tests, which show what each one stops.

  Raises:
    calls.InfraError: If the box failed, which says nothing about the source.
  """
  if 'language' not in without:
    found = language.reasons(path, source, columns)
    if found:
      return found
  try:
    across = syntax.across(path, source)
  except syntax.SourceError as error:
    return [str(error)]
  gate = _Gate(path, source, across, frozenset(LAYERS) - frozenset(without))
  found = list(dict.fromkeys(gate.reasons(base, recorded, shapes)))
  return found[: language.MAX_REASONS]


class _Gate:
  """The trial of one source."""

  def __init__(
      self,
      path: str,
      source: str,
      across: Sequence[str],
      layers: frozenset[str],
  ):
    self._path, self._source = path, source
    self._across, self._layers = across, layers
    digest = hashlib.sha256(f'{path}\n{source}'.encode()).digest()
    # The evidence is seeded by the source, so that nobody can write a function
    # for the evidence that it is tried on.
    self._rng = np.random.default_rng(int.from_bytes(digest[:8], 'big'))
    function = {'reward.py': 'parts', 'keep.py': 'keep', 'weight.py': 'weight'}
    measures = 'measure' if path.startswith('diagnostics/') else 'predict'
    self._function = function.get(path, measures)
    self._each = self._function in cases_lib.EACH
    self._has_init = calls_lib.defines(source, 'init')

  # -------------------------------------------------------------------- running

  def reasons(
      self,
      base: Any,
      recorded: Any | None,
      shapes: Sequence[tuple[int, int]],
  ) -> Iterator[str]:
    """Yield every reason."""
    made = cases_lib.Cases(
        self._source, self._function, base, recorded, shapes, self._rng
    )
    cases, largest = made.all, made.largest
    seconds = CPU_SECONDS * (1 if recorded is not None else _SLACK)
    first = cases[0].tables
    answers = self._ask(first, [case.tables for case in cases], seconds, 0)
    again = self._ask(
        first,
        [largest.tables, *(case.tables for case in cases[::-1])],
        seconds,
        1,
    )
    yield from self._cost(largest, answers, again[0])
    said = set()
    for case, answer in zip(
        [*cases, largest],
        [*answers, [a for a in again[0] if not _is_costly(a)]],
        strict=True,
    ):
      for error in self._problems(case, answer):
        if str(error) not in said:
          plain = not said and case.name in ('synthetic', 'recorded')
          where = '' if plain or not error.alone else f' (on {case})'
          yield f'{error}{where}'
        said.add(str(error))
    if said:
      return
    if 'repeat' in self._layers:
      yield from self._repeat(answers, again[:0:-1])
    found = {
        case.name: (case, [self._contract(case, a) for a in answer])
        for case, answer in zip(cases, answers, strict=True)
    }
    for kind, orders in made.orders.items():
      sized = kind.startswith(cases_lib.STEP)
      if said and sized:
        break  # The fault shows without the sizes of a training step.
      for reason in self._compare(kind, orders, found, sized):
        # Two reasons that differ only in the numbers they show are one.
        what = reason.partition(' (')[0]
        if what not in said:
          said.add(what)
          yield reason
    if not said and 'copies' in self._layers:
      yield from self._copies(made, found['synthetic'][1], again[0])
    if recorded is not None and 'constant' in self._layers:
      yield from self._constant(found)

  def _ask(
      self,
      first: tuple[derive.Table, ...],
      evidence: Sequence[tuple[derive.Table, ...]],
      seconds: float,
      box: int,
  ) -> list[list[Answer]]:
    """Return the function's answers to each evidence, from one process.

    `keep` answers three times: from the state of `init`, from the state after
    that call, and from the state after many steps on `first`. An error on the
    way to that last state is the last answer.
    """
    sent: list[calls_lib.Call] = []
    call = functools.partial(calls_lib.call, self._path)

    def send(function, tables=(), after=None):
      sent.append(call(function, tables, state_of=after))
      return len(sent) - 1

    start, steps = None, []
    if self._function == 'keep':
      if self._has_init:
        start = send('init')
      last = start
      for _ in range(_KEPT_STEPS):
        last = send('keep', first, last)
        steps.append(last)
    places = []
    for tables in evidence:
      if self._function != 'keep':
        places.append([send(self._function, tables)])
        continue
      once = send('keep', tables, start)
      places.append([once, send('keep', tables, once)])
      places[-1].append(send('keep', tables, steps[-1]))
    found = calls_lib.exchange(
        {self._path: self._source},
        sent,
        calls_lib.limits(seconds, MEMORY_BYTES),
        box,
    )
    answers = [[found[i] for i in place] for place in places]
    if self._function == 'keep':
      states = [found[i] for i in (start, *steps) if i is not None]
      wrong = self._wrong_state(states)
      for answer in answers if wrong is not None else ():
        answer[-1] = wrong
    return answers

  def _wrong_state(self, answers: Sequence[Answer]) -> run.FunctionError | None:
    """Return what is wrong with successive states; `init`'s may come first."""
    shapes = None
    for answer in answers:
      try:
        if isinstance(answer, run.FunctionError):
          raise answer
        state = run.state_of({n: a for n, a in answer.items() if n})
      except run.FunctionError as error:
        return error
      before, shapes = shapes, {n: a.shape for n, a in state.items()}
      if before and before != shapes:
        return run.FunctionError(
            'wrong_shape',
            self._path,
            f'the state is {_shapes(shapes)} after {_shapes(before)}; a state'
            ' keeps its names and shapes',
        )
    return None

  # ------------------------------------------------------------------- verdicts

  def _cost(
      self,
      case: cases_lib.Case,
      answers: list[list[Answer]],
      largest: list[Answer],
  ) -> Iterator[str]:
    """Yield a reason if the largest evidence takes too much time or memory."""
    if 'cost' not in self._layers:
      return
    first = answers[0][0]
    if isinstance(first, run.FunctionError) and not first.alone:
      return  # `_problems` reports it for every case.
    answer = next(filter(_is_costly, largest), None)
    if answer is not None:
      yield (
          f'{self._path}: on {case}: {answer.status}: {answer.message}; at most'
          f' {CPU_SECONDS:g} s of CPU time and {MEMORY_BYTES >> 20} MiB; use'
          ' array operations'
      )

  def _problems(
      self, case: cases_lib.Case, answer: list[Answer]
  ) -> Iterator[run.FunctionError]:
    """Yield what is wrong with the answers to a case."""
    if 'answer' not in self._layers:
      return
    for one in answer:
      try:
        if isinstance(one, run.FunctionError):
          raise one
        self._checked(case, one)
      except run.FunctionError as error:
        if error.status != 'non_finite' or case.finite:
          yield error

  def _checked(
      self, case: cases_lib.Case, answer: dict[str, np.ndarray]
  ) -> None:
    """Check shapes, dtypes and numbers of an answer.

    Raises:
      FunctionError: If it breaks the contract of its function.
    """
    view = case.tables[0]
    if self._function == 'parts':
      run.parts_of(view, answer)
    elif self._function == 'keep':
      run.mask_of(view, answer)
    elif self._function == 'weight':
      run.weight_of(view, answer)
    else:
      run.numbers_of(self._path, answer)

  def _contract(
      self, case: cases_lib.Case, answer: Answer
  ) -> dict[str, np.ndarray]:
    """Return what is compared: numbers by name, 0 where not valid."""
    if isinstance(answer, run.FunctionError):
      return {}
    valid = case.tables[0].valid
    found = {}
    for name, array in answer.items():
      array = np.asarray(array)
      per_completion = self._function in ('parts', 'weight') or name == ''
      if per_completion and array.shape[:2] == valid.shape:
        mask = valid.reshape(valid.shape + (1,) * (array.ndim - 2))
        array = np.where(mask, array, array.dtype.type(0))
      found[name] = array
    return found

  def _repeat(
      self,
      answers: list[list[Answer]],
      again: list[list[Answer]],
  ) -> Iterator[str]:
    for first, second in zip(answers, again, strict=True):
      for one, other in zip(first, second, strict=True):
        failed = [isinstance(a, run.FunctionError) for a in (one, other)]
        if failed == [True, True] or _is_costly(other):
          continue
        if any(failed) or compare.bits(one) != compare.bits(other):
          text = (
              compare.difference(one, other)
              if not any(failed)
              else (f'one failed: {one if failed[0] else other}')
          )
          yield (
              f'{self._path}: two processes give two answers to one input'
              f' ({text}); use nothing but the arguments'
          )
          return

  def _compare(
      self, kind: str, orders: cases_lib.Orders, found: _Found, sized: bool
  ) -> Iterator[str]:
    """Compare the answers to one kind of evidence with those to its changes.

    Args:
      kind: Kind of the evidence, see `cases.Cases`.
      orders: How it was changed.
      found: All answers.
      sized: Whether only the size makes this kind special.
    """
    rows = np.arange(len(orders.within))[:, None]
    case, base = found[kind]
    p, g = case.tables[0].valid.shape
    everything = lambda a: a
    where = f' of {kind}' if sized else ''
    checks: list[tuple[str, str, Callable, Callable, str]] = []
    if 'order' in self._layers:
      checks += [
          (
              'groups',
              f'groups{where} change places',
              lambda a: a[orders.groups],
              everything,
              'use no positions of groups',
          ),
          (
              'within',
              f'the completions of a group{where} change places',
              lambda a: a[rows, orders.within],
              everything,
              'use no positions of completions; where values are equal, count'
              ' how many are smaller: (x[:, :, None] > x[:, None, :]).sum(-1)',
          ),
      ]
    if 'padding' in self._layers:
      checks += [
          (
              name.removeprefix(f'{kind}: '),
              f'entries{where} that are not valid change',
              everything,
              lambda a: a[:p, :g],
              'count with e.valid only',
          )
          for name in found
          if name.startswith(f'{kind}: padded')
      ]
    for what, said, expected, got, remedy in checks:
      _, changed = found[f'{kind}: {what}']
      remedy = 'use no sizes of the evidence' if sized else remedy
      yield from self._same(base, changed, expected, got, said, remedy)
    if 'groups' in self._layers and self._each:
      yield from self._independent(kind, orders.stays, base[0], found)
      _, more = found[f'{kind}: more']
      yield from self._same(
          [self._own(base[0])],
          [self._own(more[0])],
          everything,
          lambda a: a[:p],
          f'there is a group more{where}',
          'use no sizes of the evidence',
      )

  def _same(
      self,
      base: list[dict[str, np.ndarray]],
      changed: list[dict[str, np.ndarray]],
      expected: Callable[[np.ndarray], np.ndarray],
      got: Callable[[np.ndarray], np.ndarray],
      said: str,
      remedy: str,
  ) -> Iterator[str]:
    """Yield where answers differ that should be the same."""
    for one, other in zip(base, changed, strict=True):
      if one.keys() != other.keys():
        yield (
            f'{self._path}: answers {compare.listed(one)}, but'
            f' {compare.listed(other)} when {said}; {remedy}'
        )
        return
      for name in one:
        per = self._each and (self._function != 'keep' or name == '')
        a = expected(one[name]) if per else one[name]
        b = got(other[name]) if per else other[name]
        if not compare.close(a, b):
          yield (
              f'{self._path}: {self._called(name)} changes when {said}'
              f' ({compare.difference({name: a}, {name: b})}); {remedy}'
          )
          return

  def _own(self, answer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n: array for n, array in answer.items() if self._is_own(n)}

  def _is_own(self, name: str) -> bool:
    """Return whether a group's numbers must follow from the group alone."""
    if self._function == 'keep' and name:
      return False  # A state.
    waived = name if self._function == 'parts' else self._function
    return waived not in self._across

  def _independent(
      self,
      kind: str,
      stays: np.ndarray,
      base: dict[str, np.ndarray],
      found: _Found,
  ) -> Iterator[str]:
    """Refuse numbers of a group that follow from other groups, undeclared."""
    for case, (_, changed) in found.items():
      if not case.startswith(f'{kind}: others'):
        continue
      for name, array in self._own(base).items():
        other = changed[0].get(name)
        if self._function == 'weight' and other is not None:
          # The longest episode may have been in another group.
          turns = min(array.shape[-1], other.shape[-1])
          array, other = array[..., :turns], other[..., :turns]
        if other is None or not compare.close(array[stays], other[stays]):
          text = ''
          if other is not None:
            one, two = {name: array[stays]}, {name: other[stays]}
            text = f' ({compare.difference(one, two)})'
          waived = name if self._function == 'parts' else self._function
          yield (
              f'{self._path}: {self._called(name)} of a group changes when only'
              f' other groups change{text}; compare within a group (axis 1), or'
              f' declare {language.ACROSS} = ({waived!r},)'
          )

  def _copies(
      self,
      made: cases_lib.Cases,
      few: list[dict[str, np.ndarray]],
      many: list[Answer],
  ) -> Iterator[str]:
    """Refuse a group's numbers that change where there is much evidence.

    Functions that compare groups are left out: they see other groups there.
    """
    if not self._each:
      return
    at = made.copied[:, None], made.copied_within
    other = self._contract(made.largest, many[0])
    for name, array in self._own(few[0]).items():
      if name in other and not compare.close(array[at], other[name]):
        one, two = {name: array[at]}, {name: other[name]}
        yield (
            f'{self._path}: {self._called(name)} of a group changes on'
            f' {made.largest} ({compare.difference(one, two)}); use no sizes of'
            ' the evidence'
        )

  def _constant(self, found: _Found) -> Iterator[str]:
    """Refuse numbers that are the same for all completions of a group."""
    if self._function == 'keep':
      if not any(answer[0][''].any() for _, answer in found.values()):
        yield f'{self._path}: keeps no completion on any evidence'
      return
    if self._function not in ('parts', 'weight'):
      if not any(
          found[name][1][0] for name in ('recorded', 'synthetic', 'scrambled')
      ):
        yield f'{self._path}: returned no number on any evidence'
      return
    for name in found['recorded'][1][0]:
      said = []
      for kind in ('recorded', 'scrambled'):
        case, (answer,) = found[kind]
        array, valid = answer.get(name), case.tables[0].valid
        if array is None:
          continue
        array = array.reshape(*valid.shape, -1)[..., 0].astype(np.float64)
        low = np.where(valid, array, np.inf).min(1)
        high = np.where(valid, array, -np.inf).max(1)
        groups = valid.sum(1) >= 2
        spread = (high - low)[groups]
        if self._function == 'weight' and groups.any():
          # A weight may differ between groups instead.
          spread = np.array([high[groups].max() - low[groups].min()])
        varies = int((spread > 1e-6).sum())
        if varies:
          break
        values = array[valid]
        said.append(
            f'{varies} of {int(groups.sum())} groups on {_EVIDENCE[kind]},'
            f' where it is {values.min(initial=np.inf):.4g} to'
            f' {values.max(initial=-np.inf):.4g}'
        )
      else:
        yield (
            f'{self._path}: {self._called(name)} tells no two completions'
            f' apart: it varies in {" and in ".join(said)}; a constant teaches'
            ' nothing'
        )

  def _called(self, name: str) -> str:
    """Return a name of an answer in the words of the function's author."""
    if self._function == 'parts':
      return f'part {name}'
    if self._function == 'keep':
      return f'state {name}' if name else 'keep'
    return name


_EVIDENCE = {'recorded': 'recorded evidence', 'scrambled': 'random evidence'}


def _shapes(shapes: dict[str, tuple[int, ...]]) -> str:
  return ', '.join(f'{name} {list(s)}' for name, s in shapes.items()) or '{}'


def _is_costly(answer: Answer) -> bool:
  """Return whether a call ended for want of time or memory."""
  return isinstance(answer, run.FunctionError) and (
      not answer.alone or 'MemoryError' in answer.message
  )
