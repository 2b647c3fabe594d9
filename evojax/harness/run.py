"""Calls of a harness's functions in the box; only arrays come back.

    functions = Functions(harness)
    parts = functions.parts(view)

Every answer is checked here: any failure of a function is a `FunctionError`
with a status, never a number; a failure of the box is an `InfraError`. Each
request runs in a fresh process, and each call of it in a fresh namespace, so
nothing is remembered except the state that `keep` returns. Groups and
completions are shuffled before a call and restored after it, so that positions
carry no information, even for a function that the gate wrongly let pass.
"""

import ast
from collections.abc import Mapping
import hashlib
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from evojax.harness import calls as calls_lib
from evojax.harness import library
from evojax.harness import spec
from evojax.harness import syntax
from evojax.runtime import numerals

STATUSES = calls_lib.STATUSES
FunctionError = calls_lib.FunctionError
InfraError = calls_lib.InfraError
MAX_STATE_BYTES = 4 << 10
# Layers of a diagnosis, from the outcome to its causes; the order of alerts.
LAYERS = ('score', 'signal', 'behaviour', 'version')
State = Mapping[str, np.ndarray]  # Name -> float32 array.

_META = ('LAYER', 'UNIT', 'WARN', 'CRITICAL', 'CALLS_FOR')


class Functions:
  """The functions of one harness; thread-safe, needs no closing."""

  def __init__(self, harness: spec.Harness, *, limit_seconds: float = 10.0):
    """Read the sources; nothing is started before the first call.

    Args:
      harness: The harness, admitted by the gate.
      limit_seconds: CPU time of one call; a longer one has the status hang.
    """
    self._files = harness.files
    # The names for `measure` and `predict`, sorted.
    self.diagnostics, self.backtests = (
        tuple(
            path.removeprefix(folder).removesuffix('.py')
            for path in sorted(self._files)
            if path.startswith(folder)
        )
        for folder in ('diagnostics/', 'backtests/')
    )
    self._limits = calls_lib.limits(limit_seconds)

  # ------------------------------------------------------------ what there is

  def has(self, name: str) -> bool:
    """Return whether the harness has a function.

    Args:
      name: 'reward', 'keep', 'weight', 'diagnostic:NAME' or 'backtest:NAME'.
    """
    return self._path(name) in self._files

  def is_shipped(self, name: str) -> bool:
    """Return whether the diagnostic of this name is shipped unchanged."""
    path = self._path(f'diagnostic:{name}')
    return library.is_shipped(path, self._source(path))

  def _path(self, name: str) -> str:
    kind, colon, stem = name.partition(':')
    return f'{kind}s/{stem}.py' if colon else f'{kind}.py'

  # ---------------------------------------------------------------- the calls

  def parts(self, view: Any) -> dict[str, Float[np.ndarray, 'P G']]:
    """Return the reward parts before their weights, 0 where not valid.

    Args:
      view: An evidence view, or an object with its attributes.

    Raises:
      FunctionError: If it fails, or a part is not finite or not [P, G].
    """
    return parts_of(view, self._each('reward.py', 'parts', view))

  def init(self) -> dict[str, np.ndarray]:
    """Return the first state of `keep`; {} if keep.py has no `init`.

    Raises:
      FunctionError: If it fails, or the state is too large.
    """
    if not calls_lib.defines(self._files.get('keep.py', ''), 'init'):
      return {}
    return state_of(self._call('keep.py', 'init'))

  def keep(
      self, view: Any, state: State
  ) -> tuple[Bool[np.ndarray, 'P G'], dict[str, np.ndarray]]:
    """Return which completions enter the update, and the next state.

    Args:
      view: An evidence view, or an object with its attributes.
      state: The state from `init` or from the previous call.

    Raises:
      FunctionError: If it fails, or the answer is not bool [P, G] and a state.
    """
    return mask_of(view, self._each('keep.py', 'keep', view, state))

  def weight(self, view: Any) -> Float[np.ndarray, 'P G A'] | None:
    """Return the credit of each turn, or None without a weight.py.

    A is the number of turns of the longest episode of the view.

    Raises:
      FunctionError: If it fails, or the answer is not finite or not [P, G, A].
    """
    if 'weight.py' not in self._files:
      return None
    return weight_of(view, self._each('weight.py', 'weight', view))

  def measure(self, name: str, view: Any) -> dict[str, float]:
    """Return the numbers of a diagnostic by name.

    Raises:
      FunctionError: If it fails, or a number is not finite.
    """
    path = self._path(f'diagnostic:{name}')
    return numbers_of(path, self._call(path, 'measure', _Shuffled(view)))

  def measure_all(
      self, view: Any
  ) -> dict[str, dict[str, float] | FunctionError]:
    """Return the numbers of every diagnostic, or how it failed.

    All of them run in one request. If the process dies, each is called again
    alone, since another diagnostic may have been at fault.
    """
    views = [_Shuffled(view)]
    paths = [self._path(f'diagnostic:{name}') for name in self.diagnostics]
    requests = [calls_lib.Call(path, 'measure', views) for path in paths]
    answers = calls_lib.exchange(self._files, requests, self._limits)
    found = {}
    for name, path, answer in zip(
        self.diagnostics, paths, answers, strict=True
    ):
      try:
        if not isinstance(answer, FunctionError):
          answer = numbers_of(path, answer)
        elif not answer.alone:
          answer = self.measure(name, view)
      except FunctionError as error:
        answer = error
      found[name] = answer
    return found

  def predict(self, name: str, before: Any, after: Any) -> dict[str, float]:
    """Return the statistics of a backtest on two views of the same rollouts.

    Raises:
      FunctionError: If it fails, or a number is not finite.
    """
    path = self._path(f'backtest:{name}')
    views = [_Shuffled(before), _Shuffled(after, order=before)]
    return numbers_of(path, self._call(path, 'predict', *views))

  def meta(self, name: str) -> dict[str, Any]:
    """Return the declarations of a diagnostic; its source is parsed, not run.

    Returns:
      LAYER and UNIT, and, empty if the file lacks them, WARN and CRITICAL
      ({name: ('>' or '<', number)}) and CALLS_FOR, the intervention classes
      that its alerts call for.

    Raises:
      FunctionError: If a declaration is missing, not literal or not valid.
    """
    path = self._path(f'diagnostic:{name}')
    found = {}
    try:
      for statement in syntax.parse(path, self._source(path)).body:
        for target in syntax.targets(statement):
          if isinstance(target, ast.Name) and target.id in _META:
            found[target.id] = ast.literal_eval(statement.value)
    except syntax.SourceError as error:
      raise FunctionError('crash', path, str(error)) from error
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
      what = f'{target.id} is not a literal constant'
      message = f'line {statement.lineno}: {what}'
      raise FunctionError('crash', path, message) from error
    _check_meta(path, found)
    return found

  # ------------------------------------------------------------- one exchange

  def _source(self, path: str) -> str:
    if path not in self._files:
      listed = ', '.join(self._files)
      raise ValueError(f'the harness has no {path}; it has {listed}')
    return self._files[path]

  def _each(
      self, path: str, function: str, view: Any, state: State | None = None
  ) -> dict[str, np.ndarray]:
    """Return an answer with per-completion values in their original places.

    A state of `keep` is not reordered, whatever its shape.
    """
    shuffled = _Shuffled(view)
    answer = self._call(path, function, shuffled, state=state)
    return {
        name: array if function == 'keep' and name else shuffled.in_place(array)
        for name, array in answer.items()
    }

  def _call(
      self, path: str, function: str, *views: Any, state: State | None = None
  ) -> dict[str, np.ndarray]:
    """Call one function and return its arrays by name."""
    self._source(path)
    call = calls_lib.Call(path, function, views, state)
    (answer,) = calls_lib.exchange(self._files, [call], self._limits)
    if isinstance(answer, FunctionError):
      raise answer
    return answer


class _Shuffled:
  """A view with its groups and completions in a shuffled order.

  The order is seeded by a hash of the content. Equal evidence therefore gives
  equal answers, but the author of a function cannot predict the order.
  """

  def __init__(self, view: Any, order: Any = None):
    """Choose the order.

    Args:
      view: The evidence.
      order: The view whose content seeds the order; by default `view` itself.
    """
    self._view = view
    content = hashlib.sha256()
    order = view if order is None else order
    says = sorted({'n_tokens', 'outcome'} & set(order.columns))
    for name in ('valid', *says):
      content.update(np.ascontiguousarray(getattr(order, name)).tobytes())
    rng = np.random.default_rng(list(content.digest()))
    p, g = view.valid.shape
    self._groups = rng.permutation(p)[:, None]
    within = np.broadcast_to(np.arange(g), (p, g))
    self._within = rng.permuted(within, axis=1)
    self.max_tokens, self.codes = view.max_tokens, view.codes
    self.columns: tuple[str, ...] = view.columns

  def __getattr__(self, name: str) -> np.ndarray:
    if name.startswith('_'):
      raise AttributeError(name)
    array = getattr(self._view, name)[self._groups, self._within]
    setattr(self, name, array)  # Cached as an attribute for the next read.
    return array

  def in_place(self, array: np.ndarray) -> np.ndarray:
    """Return per-completion values in the view's original order.

    An array of any other shape is returned unchanged.
    """
    if array.shape[:2] != self._view.valid.shape:
      return array
    back = np.empty_like(array)
    back[self._groups, self._within] = array
    return back


def is_busy(reason: str) -> bool:
  """Return whether a reason is the machine's load, not the function."""
  return f': {calls_lib.BUSY}:' in f'{reason}:'


# ---------------------------------------------------------------- the contract


def parts_of(
    view: Any, arrays: Mapping[str, np.ndarray]
) -> dict[str, Float[np.ndarray, 'P G']]:
  """Return the answer of `parts` for a view as finite float32.

  Raises:
    FunctionError: If there is no part, or one is not finite or not [P, G].
  """
  if not arrays:
    raise FunctionError('wrong_type', 'reward.py', 'parts returned no part')
  return {
      name: _as_float32('reward.py', name, array, view.valid)
      for name, array in arrays.items()
  }


def mask_of(
    view: Any, arrays: Mapping[str, np.ndarray]
) -> tuple[Bool[np.ndarray, 'P G'], dict[str, np.ndarray]]:
  """Return the answer of `keep` for a view: a mask and a state.

  Raises:
    FunctionError: If it is not bool [P, G] and a state.
  """
  mask = arrays['']  # The mask is unnamed; names belong to the state.
  _check_shape('keep.py', 'keep', mask, view.valid.shape)
  if mask.dtype != np.bool_:
    message = f'keep has dtype {mask.dtype}, not bool'
    raise FunctionError('wrong_type', 'keep.py', message)
  return mask, state_of({n: array for n, array in arrays.items() if n})


def weight_of(
    view: Any, arrays: Mapping[str, np.ndarray]
) -> Float[np.ndarray, 'P G A']:
  """Return the answer of `weight` for a view, 0 where not valid.

  Raises:
    FunctionError: If it is not finite or not [P, G, A].
  """
  turns = max(1, int(np.where(view.valid, view.n_turns, 0).max(initial=0)))
  valid = np.repeat(view.valid[..., None], turns, axis=-1)
  return _as_float32('weight.py', 'weight', arrays['weight'], valid)


def _check_shape(
    path: str, name: str, array: np.ndarray, shape: tuple[int, ...]
) -> None:
  if array.shape != shape:
    axes = {0: 'one number', 2: '[P, G]', 3: '[P, G, turns]'}
    message = (
        f'{name} has shape {array.shape}, not {shape} = {axes[len(shape)]}'
    )
    raise FunctionError('wrong_shape', path, message)


def _as_float32(
    path: str, name: str, array: np.ndarray, valid: np.ndarray
) -> np.ndarray:
  """Return the array as finite float32, 0 where not valid."""
  _check_shape(path, name, array, valid.shape)
  with np.errstate(over='ignore'):
    array = np.where(valid, array.astype(np.float32), np.float32(0))
  bad = np.argwhere(~np.isfinite(array)).tolist()
  if bad:
    message = f'{name} is {array[tuple(bad[0])]} at {bad[0]}'
    if others := len(bad) - 1:
      message += f' and {numerals.counted(others, "other place")}'
    raise FunctionError('non_finite', path, message)
  return array


def state_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return the state of `keep` as float32 arrays.

  Raises:
    FunctionError: If it is too large or not finite, or an array is empty.
  """
  size = sum(len(name) + 4 * array.size for name, array in arrays.items())
  if size > MAX_STATE_BYTES:
    taken = f'the state takes {size} bytes with its names'
    message = f'{taken}; at most {MAX_STATE_BYTES} are kept'
    raise FunctionError('too_large', 'keep.py', message)
  if empty := [name for name, array in arrays.items() if not array.size]:
    message = f'state {empty[0]} is an empty array'
    raise FunctionError('wrong_shape', 'keep.py', message)
  return {
      name: _as_float32('keep.py', name, array, np.ones(array.shape, bool))
      for name, array in arrays.items()
  }


def numbers_of(path: str, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Return the numbers by name, each finite.

  Raises:
    FunctionError: If one is an array, or not finite.
  """
  found = {}
  for name, array in arrays.items():
    _check_shape(path, name, array, ())
    if not np.isfinite(array):
      raise FunctionError('non_finite', path, f'{name} is {array}')
    found[name] = float(array)
  return found


def _check_meta(path: str, found: dict[str, Any]) -> None:
  """Fill in optional declarations; refuse invalid ones."""
  for name, default in (('WARN', {}), ('CRITICAL', {}), ('CALLS_FOR', ())):
    found.setdefault(name, default)
  called = found['CALLS_FOR']
  texts = isinstance(called, tuple) and all(isinstance(c, str) for c in called)
  bounds = "{name: ('>' or '<', number)}"
  for name, fine, needed in (
      ('CRITICAL', _are_bounds(found['CRITICAL']), bounds),
      ('WARN', _are_bounds(found['WARN']), bounds),
      ('LAYER', found.get('LAYER') in LAYERS, f'one of {LAYERS}'),
      ('UNIT', isinstance(found.get('UNIT'), str), 'text'),
      ('CALLS_FOR', texts, "a tuple of texts such as ('reward',)"),
  ):
    if not fine:
      message = f'{name}={found.get(name)!r} is not {needed}'
      raise FunctionError('wrong_type', path, message)


def _are_bounds(table: Any) -> bool:
  """Return whether a value maps names to thresholds.

  The threshold ('>', 0.3) raises an alert above 0.3.
  """
  return isinstance(table, dict) and all(
      isinstance(key, str)
      and isinstance(bound, tuple)
      and len(bound) == 2
      and bound[0] in ('<', '>')
      and isinstance(bound[1], int | float)
      for key, bound in table.items()
  )
