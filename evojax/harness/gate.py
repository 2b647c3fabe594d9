"""The gate for one source: the requirements for a function to run.

Each layer stops what the others do not:

    language    the syntax that may be used, see `language`
    answer      shapes, dtypes, finite numbers, also on sparse evidence
    repeat      another process gives the same bits, whatever ran before
    order       completions and groups are reordered: each keeps its numbers
    groups      other groups change or are absent: a group keeps its numbers
    padding     entries that are not valid change: nothing else does
    copies      the same completions many times over, in a group or as groups:
                numbers stay, or keep their order if groups are compared
    constant    some number differs from another, on evidence as large as a
                step of the run and at every step of it (only for proposals)
    cost        time and memory on the largest evidence

A function is tested under the conditions of training: with as many prompts and
completions as a step has, on values at the edge of what may occur, and, since
`keep` has a state, after as many calls as a run makes.

A function that passes still runs in the box only (see `calls`). No answer is
trusted: the numbers of a function are only compared here.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
import hashlib
import re
from typing import Any

import numpy as np

from evojax.harness import calls as calls_lib
from evojax.harness import cases as cases_lib
from evojax.harness import compare
from evojax.harness import constancy
from evojax.harness import language
from evojax.harness import parts as parts_lib
from evojax.harness import rows as rows_lib
from evojax.harness import run
from evojax.harness import syntax

LAYERS = tuple(
    'language answer repeat order groups padding copies constant cost'.split()
)
CPU_SECONDS = 0.5  # CPU time for all calls in one process.
MEMORY_BYTES = 512 << 20
# Factor on CPU_SECONDS for a source that was admitted before, perhaps on a
# faster machine.
_SLACK = 2
# Minimum correlation of numbers with those for the same completions repeated:
# if groups are compared, and within a group, where counts may matter.
_LEAST_ACROSS, _LEAST_WITHIN = 0.25, -0.25

Answer = calls_lib.Answer
_Numbers = dict[str, np.ndarray]
_Found = constancy.Found
# Checks of the answers, except of functions that return numbers.
_CHECKS = {'parts': run.parts_of, 'keep': run.mask_of, 'weight': run.weight_of}


def reasons(
    path: str,
    source: str,
    base: Any,
    recorded: Any | None = None,
    *,
    columns: Collection[str],
    shapes: Sequence[tuple[int, int]] = (),
    steps: int = 64,
    without: Collection[str] = (),
) -> list[str]:
  """Return the reasons to refuse a source, one line each; [] if it may run.

  Args:
    path: Path in the harness, e.g. 'reward.py'.
    source: Text of the file.
    base: Synthetic evidence, readable by diagnostics, for every source.
    recorded: Evidence of the run, for a proposal; None for a source that was
      admitted before and need not be useful here.
    columns: Names of all columns of the evidence.
    shapes: (P, G) of the training steps that the function is for.
    steps: Number of calls of `keep` in a run.
    without: Layers to leave out; for tests that show what each layer stops.

  Raises:
    calls.InfraError: If the box failed, which says nothing about the source.
  """
  if 'language' not in without:
    found = language.reasons(path, source, columns)
    found = found or _misshapen(path, source)
    if found:
      return found
  try:
    across = parts_lib.across(path, source)
  except syntax.SourceError as error:
    return [str(error)]
  gate = _Gate(path, source, across, frozenset(LAYERS) - frozenset(without))
  found = list(dict.fromkeys(gate.reasons(base, recorded, shapes, steps)))
  return found[: language.MAX_REASONS]


# Function -> its arguments and its return value.
_FORMS = {
    'keep': ('e, state', '(bool [P, G], state)'),
    'weight': ('e', 'float32 [P, G, turns]'),
    'measure': ('e', '{name: number}'),
    'predict': ('before, after', '{name: number}'),
}


def _misshapen(path: str, source: str) -> list[str]:
  """Return why a source lacks the function that its file has to define."""
  name = calls_lib.function_of(path)
  if name not in _FORMS:
    return []  # `parts.take_apart` reports what a reward.py lacks.
  arguments, answer = _FORMS[name]
  count = arguments.count(',') + 1
  for node in syntax.parse(path, source).body:
    if isinstance(node, ast.FunctionDef) and node.name == name:
      most = len(node.args.args) + len(node.args.posonlyargs)
      if most - len(node.args.defaults) <= count <= most:
        return []
  return [
      f'{path}: it must define {name}({arguments}), which returns {answer};'
      ' see "A harness" in docs/your_own.md'
  ]


class _Gate:
  """The test of one source."""

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
    # The evidence is seeded by the source, so that a function cannot be written
    # for the evidence that it is tested on.
    self._rng = np.random.default_rng(int.from_bytes(digest[:8], 'big'))
    self._function = calls_lib.function_of(path)
    self._each = self._function in cases_lib.EACH

  # -------------------------------------------------------------------- running

  def reasons(
      self,
      base: Any,
      recorded: Any | None,
      shapes: Sequence[tuple[int, int]],
      steps: int,
  ) -> Iterator[str]:
    """Yield every reason to refuse the source."""
    made = cases_lib.Cases(
        self._source,
        self._function,
        base,
        recorded,
        shapes,
        steps,
        bool(self._across),
        self._rng,
    )
    cases, largest = made.all, made.largest
    seconds = CPU_SECONDS * (1 if recorded is not None else _SLACK)
    rows = None
    if self._function == 'keep':
      rows = rows_lib.Rows(self._path, self._source, made)
    answers = self._ask(cases, seconds, 0, rows)
    # Another process, in reverse order: earlier calls must not matter.
    backwards = [largest, *cases[::-1]]
    most, *again = (
        self._ask(backwards, seconds, 1, rows)
        if not _is_busy(answers[0][0])
        else [answers[0]] * len(backwards)
    )
    if _is_busy(most[0]):
      yield str(most[0])
      return
    if 'answer' in self._layers and _is_hang(answers[0][0]):
      yield self._hang(cases[0], answers[0][0], seconds)
      return
    if 'cost' in self._layers:
      yield from self._cost(largest, answers[0][0], most)
    said = set()
    cheap = [a for a in most if not _is_costly(a)]
    for case, answer in zip([*cases, largest], [*answers, cheap], strict=True):
      for error in self._problems(case, answer) if case.judged else ():
        what = str(error)
        # Other sizes, and other places of a NaN, give the same reason.
        if error.status == 'wrong_shape':
          what = re.sub(r'\d+', '', what)
        elif error.status == 'non_finite':
          what = what.partition(' at [')[0]
        if what not in said:
          plain = not said and case.name in ('synthetic', 'recorded')
          where = '' if plain or not error.alone else f' (on {case})'
          yield f'{error}{where}'
        said.add(what)
    if said:
      return
    if 'repeat' in self._layers:
      yield from self._repeat(answers, again[::-1])
    found = {
        case.name: (case, [self._contract(case, a) for a in answer])
        for case, answer in zip(cases, answers, strict=True)
    }
    for kind in made.kinds:
      sized = kind.startswith(cases_lib.STEP)
      if said and sized:
        break  # The fault shows even without the sizes of a training step.
      for reason in self._compare(kind, found, sized):
        # Reasons that differ only in the numbers that they show are reported
        # once.
        what = reason.partition(' (')[0]
        if what not in said:
          said.add(what)
          yield reason
    if not said and 'copies' in self._layers:
      if not _is_costly(most[0]):
        yield from self._copies(largest, found, most)
      yield from self._more(made.copies, found)
    if recorded is not None and 'constant' in self._layers:
      said_of = constancy.reasons(self._function, made, found, self._called)
      yield from (f'{self._path}: {reason}' for reason in said_of)
      yield from rows.pauses() if rows else ()

  def _ask(
      self,
      cases: Sequence[cases_lib.Case],
      seconds: float,
      box: int,
      rows: rows_lib.Rows | None,
  ) -> list[list[Answer]]:
    """Return the function's answers to each case, from one process.

    `keep` answers three times: from the state of `init`, from the state after
    that call, and from the state after many steps. If an error occurs before
    that last state, it is the last answer.
    """
    sent: list[calls_lib.Call] = []

    def send(function, case=None, after=None, times=None):
      views = case.tables if case else ()
      sent.append(calls_lib.Call(self._path, function, views, after, times))
      return len(sent) - 1

    places = []
    if rows:
      first = send('init') if rows.has_init else None
      if not rows.answered:
        together = send('keep', rows.case, first, rows.times)
      for case in cases:
        once = send('keep', case, first)
        twice = send('keep', case, once)
        count = rows.count(case)
        # The second process gets the state as numbers, as training does.
        late = rows.state(count) if rows.answered else (together, count)
        places.append([once, twice, send('keep', case, late)])
    else:
      places = [[send(self._function, case)] for case in cases]
    limits = calls_lib.limits(seconds, MEMORY_BYTES)
    files = {self._path: self._source}
    found = calls_lib.exchange(files, sent, limits, box)
    answers = [[found[i] for i in place] for place in places]
    if rows and not rows.answered:
      rows.answer({} if first is None else found[first], found[together])
    if rows and rows.wrong:
      for answer in answers:
        answer[-1] = rows.wrong
    return answers

  # ------------------------------------------------------------------- verdicts

  def _hang(
      self, first: cases_lib.Case, error: run.FunctionError, seconds: float
  ) -> str:
    """Return the reason for a function that does not end."""
    where = ''
    if not _is_hang(self._ask([first], seconds, 0, None)[0][0]):
      where = (
          f'; it ends on {first} alone, so the cause is the sum of all calls, a'
          ' rare value (a log-prob of 0 or -40, all or none solved, one token)'
          ' or a late step of a run'
      )
    return f'{error}{where}; loop over `range(n)` of a small n, or use arrays'

  def _cost(
      self, case: cases_lib.Case, first: Answer, answers: list[Answer]
  ) -> Iterator[str]:
    """Yield a reason if the largest evidence takes too much time or memory."""
    if isinstance(first, run.FunctionError) and not first.alone:
      return  # `_problems` reports it for every case.
    answer = next(filter(_is_costly, answers), None)
    if answer is not None:
      yield (
          f'{self._path}: on {case}: {answer.status}: {answer.message}; at most'
          f' {CPU_SECONDS:g} s of CPU time and {MEMORY_BYTES >> 20} MiB; use'
          ' array operations'
      )

  def _problems(
      self, case: cases_lib.Case, answer: list[Answer]
  ) -> Iterator[run.FunctionError]:
    """Yield the errors in the answers to a case."""
    if 'answer' not in self._layers:
      return
    for one in answer:
      try:
        if isinstance(one, run.FunctionError):
          raise one
        if check := _CHECKS.get(self._function):
          check(case.tables[0], one)
        else:
          run.numbers_of(self._path, one)
      except run.FunctionError as error:
        if error.status != 'non_finite' or case.finite:
          yield error

  def _contract(self, case: cases_lib.Case, answer: Answer) -> _Numbers:
    """Return the numbers to compare, by name; 0 where not valid."""
    if isinstance(answer, run.FunctionError):
      return {}
    valid = case.tables[0].valid
    found = {}
    for name, array in answer.items():
      if self._has_places(name) and array.shape[:2] == valid.shape:
        mask = valid.reshape(valid.shape + (1,) * (array.ndim - 2))
        array = np.where(mask, array, array.dtype.type(0))
      found[name] = array
    return found

  def _has_places(self, name: str) -> bool:
    """Return whether an answer has a value per completion; a state has none."""
    return self._each and (self._function != 'keep' or name == '')

  def _repeat(
      self, answers: list[list[Answer]], again: list[list[Answer]]
  ) -> Iterator[str]:
    for first, second in zip(answers, again, strict=True):
      for one, other in zip(first, second, strict=True):
        failed = [a for a in (one, other) if isinstance(a, run.FunctionError)]
        if len(failed) == 2 or _is_costly(other):
          continue
        if failed or compare.bits(one) != compare.bits(other):
          text = f'one failed: {failed[0]}' if failed else ''
          text = text or compare.difference(one, other)
          yield (
              f'{self._path}: two processes give two answers to one input'
              f' ({text}); use nothing but the arguments'
          )
          return

  def _compare(self, kind: str, found: _Found, sized: bool) -> Iterator[str]:
    """Compare the answers to one kind of evidence with those to its changes.

    Args:
      kind: Kind of the evidence, see `cases.Cases`.
      found: All answers.
      sized: Whether only its size distinguishes this kind.
    """
    _, base = found[kind]
    where = f' of {kind}' if sized else ''
    for case, changed in found.values():
      layer, said, remedy = _CHANGES.get(case.change, ('', '', ''))
      if case.kind == kind and layer in self._layers:
        remedy = f'{remedy}; {_NO_SIZES}' if sized else remedy
        yield from self._same(base, changed, case.places, said % where, remedy)
    if 'groups' in self._layers and self._each:
      yield from self._independent(kind, base[0], found)
      for name, said in (
          ('more', f'there is a group more{where}'),
          ('fewer', f'its group is one of few{where}'),
      ):
        if f'{kind}: {name}' in found:
          case, changed = found[f'{kind}: {name}']
          own = [[self._own(a[0])] for a in (base, changed)]
          yield from self._same(*own, case.places, said, _NO_SIZES)

  def _more(self, names: Sequence[str], found: _Found) -> Iterator[str]:
    """Refuse numbers that change if evidence of a step is copied."""
    for name in names:
      case, (few, *_) = found[name]
      _, (many, *_) = found[f'{name}, copied']
      kind, _, some = name.partition(': ')
      where = f'{some}, copied to {kind}'
      if not self._each:
        yield from self._copied_numbers(where, few, many)
        continue
      least = _LEAST_ACROSS if some.endswith('groups') else _LEAST_WITHIN
      for key in few.keys() & many.keys():
        across = self._declared(key) in self._across
        if self._has_places(key) and (across or least == _LEAST_WITHIN):
          a, b = (x[key][case.places] for x in (few, many))
          yield from self._agree(key, a, b, least, f'on {where}')

  def _agree(
      self, name: str, a: np.ndarray, b: np.ndarray, least: float, where: str
  ) -> Iterator[str]:
    """Refuse numbers whose order changes."""
    correlation = compare.correlation(a, b)
    if correlation < least:
      yield (
          f'{self._path}: {self._called(name)} is ordered differently {where}:'
          f' the correlation is {correlation:.2f}, not {least:g} or more;'
          ' compare by shares and ranks, not by how many there are'
      )

  def _same(
      self,
      base: list[_Numbers],
      changed: list[_Numbers],
      places: Any,
      said: str,
      remedy: str,
  ) -> Iterator[str]:
    """Yield the first difference between answers that should be the same."""
    for one, other in zip(base, changed, strict=True):
      if one.keys() != other.keys():
        yield (
            f'{self._path}: answers {compare.listed(one)}, but'
            f' {compare.listed(other)} when {said}; {remedy}'
        )
        return
      for name, a in one.items():
        b = other[name]
        if self._has_places(name):
          a, b = self._same_turns(a[places], b)
          b = b[tuple(map(slice, a.shape[:2]))]  # Drop what was added.
        if not compare.close(a, b):
          yield (
              f'{self._path}: {self._called(name)} changes when {said}'
              f' ({compare.values(a, b)}); {remedy}'
          )
          return

  def _same_turns(
      self, a: np.ndarray, b: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Return weights of the turns that both have; other numbers as they are."""
    if self._function != 'weight':
      return a, b
    # The longest episode may have been in another group.
    turns = min(a.shape[-1], b.shape[-1])
    return a[..., :turns], b[..., :turns]

  def _own(self, answer: _Numbers) -> _Numbers:
    """Return the numbers that must depend on each group alone."""
    return {
        name: array
        for name, array in answer.items()
        if self._has_places(name) and self._declared(name) not in self._across
    }

  def _declared(self, name: str) -> str:
    """Return the name to declare if a number may compare groups."""
    return name if self._function == 'parts' else self._function

  def _independent(
      self, kind: str, base: _Numbers, found: _Found
  ) -> Iterator[str]:
    """Refuse numbers of a group that depend on other groups, undeclared."""
    for case, (changed, *_) in found.values():
      if (case.kind, case.change) != (kind, 'others'):
        continue
      for name, array in self._own(base).items():
        other = changed.get(name)
        if other is not None:
          array, other = self._same_turns(array, other)
          other = other[case.places]
        array = array[case.places]
        if other is None or not compare.close(array, other):
          yield (
              f'{self._path}: {self._called(name)} of a group changes when only'
              f' other groups change ({compare.values(array, other)}); compare'
              f' within a group (axis 1), or declare {language.ACROSS} ='
              f' ({self._declared(name)!r},)'
          )

  def _copies(
      self, case: cases_lib.Case, found: _Found, most: list[Answer]
  ) -> Iterator[str]:
    """Refuse numbers that change on much evidence."""
    few, many = found['synthetic'][1][0], self._contract(case, most[0])
    if not self._each:
      where = f'{case}, copies of the former'
      yield from self._copied_numbers(where, few, many)
      return
    own = self._own(few)
    for name, array in few.items():
      other = many.get(name)
      if other is None or not self._has_places(name):
        continue
      array = array[case.places]
      if name not in own:
        where = f'on {case}, copies of fewer groups'
        yield from self._agree(name, array, other, _LEAST_ACROSS, where)
      elif not compare.close(array, other):
        yield (
            f'{self._path}: {self._called(name)} of a group changes on {case}'
            f' ({compare.values(array, other)}); {_NO_SIZES}'
        )

  def _copied_numbers(
      self, where: str, few: _Numbers, many: _Numbers
  ) -> Iterator[str]:
    """Refuse a diagnostic or backtest that changes on much evidence.

    Counts and standard errors do change there, but keep their sign.
    """
    if missing := few.keys() - many.keys():
      yield (
          f'{self._path}: returns {min(missing)} on some completions, but not'
          f' on {where}; {_NO_SIZES}'
      )
    for name in few.keys() & many.keys():
      if few[name].ndim or many[name].ndim:
        continue  # Not a number; `_problems` reports it.
      one, other = float(few[name]), float(many[name])
      if one * other < 0 and min(abs(one), abs(other)) > 1e-6:
        yield (
            f'{self._path}: {name} is {one:.6g} on some completions, and'
            f' {other:.6g} on {where}; {_NO_SIZES}'
        )

  def _called(self, name: str) -> str:
    """Return a name of an answer in the terms of the function's author."""
    if self._function == 'keep' and not name:
      return 'keep'
    word = {'parts': 'part ', 'keep': 'state '}.get(self._function, '')
    return word + name


_NO_SIZES = 'use no sizes of the evidence'
# Change of the evidence -> its layer, a description, and the remedy.
_CHANGES = {
    'groups': ('order', 'groups%s change places', 'use no positions of groups'),
    'within': (
        'order',
        'the completions of a group%s change places',
        'use no positions of completions; where values are equal, count how'
        ' many are smaller: (x[:, :, None] > x[:, None, :]).sum(-1)',
    ),
    'padded': (
        'padding',
        'entries%s that are not valid change',
        'count with e.valid only: x.mean(1, keepdims=True, where=e.valid), and'
        ' groups where e.valid.any(1)',
    ),
}


def _is_busy(answer: Answer) -> bool:
  """Return whether a call got no answer because the machine is busy."""
  return (
      isinstance(answer, run.FunctionError) and answer.status == calls_lib.BUSY
  )


def _is_hang(answer: Answer) -> bool:
  """Return whether a call, and all others with it, used up the time limit."""
  return isinstance(answer, run.FunctionError) and (
      answer.status == 'hang' and not answer.alone
  )


def _is_costly(answer: Answer) -> bool:
  """Return whether a call ended because of its time or memory limit."""
  return isinstance(answer, run.FunctionError) and (
      not answer.alone or 'MemoryError' in answer.message
  )
