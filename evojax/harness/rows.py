"""Consecutive calls of `keep`: the behaviour of a filter late in a run.

A filter has a state, so it may behave differently at any step. The gate calls
it as often as a run does, on evidence of the size of a step, and tests it from
early and late states of this sequence.
"""

from collections.abc import Iterator
import itertools

import numpy as np

from evojax.harness import calls as calls_lib
from evojax.harness import cases as cases_lib
from evojax.harness import run


class Rows:
  """Consecutive calls of `keep`, as many as in a run, and their results."""

  def __init__(self, path: str, source: str, made: cases_lib.Cases):
    self._path = path
    self.has_init = calls_lib.defines(source, 'init')
    self.case, self.times = made.in_a_row
    n = self.times
    # A state may trigger anything at any time, so each kind of evidence comes
    # after a different number of calls.
    counts = itertools.cycle((n, 16, n // 2, 64, n, 32, 128, 8))
    self._counts = dict(zip(made.kinds, counts, strict=False))
    self.answered = False
    self.wrong: run.FunctionError | None = None
    self._answer: dict[str, np.ndarray] = {}

  def count(self, case: cases_lib.Case) -> int:
    """Return the number of calls before a case."""
    return max(1, min(self._counts.get(case.kind, self.times), self.times))

  def answer(self, first: calls_lib.Answer, several: calls_lib.Answer) -> None:
    """Store the state of `init` and the joint answer of the calls."""
    self.answered = True
    try:
      self._check(first, several)
    except run.FunctionError as error:
      self.wrong = error
    else:
      self._answer = several

  def _check(self, first: calls_lib.Answer, several: calls_lib.Answer) -> None:
    for answer in (first, several):
      if isinstance(answer, run.FunctionError):
        raise answer
    count = several[''].shape[:1]
    if count < (1,) or any(a.shape[:1] != count for a in several.values()):
      message = 'the answer cannot be read'
      raise run.FunctionError('crash', self._path, message)
    fine = np.ones(count, bool)
    for array in several.values():
      with np.errstate(all='ignore'):
        flat = array.astype(np.float32).reshape(*count, -1)
      fine &= np.isfinite(flat).all(1)
    before = {n: a.shape for n, a in run.state_of(first).items()}
    for i in (0, int(np.argmin(fine))):
      one = {name: np.asarray(array[i]) for name, array in several.items()}
      _, state = run.mask_of(self.case.tables[0], one)
    shapes = {n: a.shape for n, a in state.items()}
    if before and before != shapes:
      change = f'the state is {_text(shapes)} after {_text(before)}'
      message = f'{change}; a state keeps its names and shapes'
      raise run.FunctionError('wrong_shape', self._path, message)

  def state(self, count: int) -> run.State | None:
    """Return the state after `count` calls; None if there is none."""
    if self.wrong:
      return None
    return {
        name: np.array(array[:count][-1], np.float32)
        for name, array in self._answer.items()
        if name
    }

  def pauses(self) -> Iterator[str]:
    """Yield a reason if nothing is kept from some call on, or for a while."""
    if self.wrong:
      return
    kept = self._answer[''].reshape(len(self._answer['']), -1).mean(1)
    if kept.any() and not kept.all():
      at = int(np.argmin(kept)) if kept[0] else 0
      yield (
          f'{self._path}: keeps no completion at call {at + 1} of'
          f' {self.times} in a row, as a run makes them, and'
          f' {100 * kept.max():.0f} % of them at call {np.argmax(kept) + 1} on'
          ' the same evidence; let no counter of the state end the training'
      )


def _text(shapes: dict[str, tuple[int, ...]]) -> str:
  return ', '.join(f'{name} {list(s)}' for name, s in shapes.items()) or '{}'
