"""Calls of a harness's functions in the box; only arrays come back.

    functions = Functions(harness)
    parts = functions.parts(view)

Every answer is checked here: any failure of a function is a `FunctionError`
with a status, never a number; a failure of the box is an `InfraError`. Each
call runs in a fresh process, so nothing is remembered but the state that `keep`
returns. Groups and completions are shuffled before a call and put back after
it, so that a position carries no information, whatever the gate has not tried.
"""

import ast
from collections.abc import Mapping, Sequence
import hashlib
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from evojax.harness import calls as calls_lib
from evojax.harness import shipped
from evojax.harness import spec
from evojax.harness import syntax

STATUSES = calls_lib.STATUSES
FunctionError = calls_lib.FunctionError
InfraError = calls_lib.InfraError
MAX_STATE_BYTES = 4 << 10
# Layers of a diagnosis, from the outcome to its causes; alerts sort by them.
LAYERS = ('score', 'signal', 'behaviour', 'version')
State = Mapping[str, np.ndarray]  # Name -> float32 array.

_META = ('LAYER', 'UNIT', 'WARN', 'CRITICAL', 'CALLS_FOR')


class Functions:
  """The functions of one harness; thread-safe, and nothing to close."""

  def __init__(self, harness: spec.Harness, *, limit_seconds: float = 10.0):
    """Read the sources; nothing is started before the first call.

    Args:
      harness: The harness, admitted by the gate.
      limit_seconds: CPU time of one call, beyond which it is a hang.
    """
    self._files = harness.files
    self._limits = calls_lib.limits(limit_seconds)

  # ------------------------------------------------------------ what there is

  def has(self, name: str) -> bool:
    """Return whether the harness has a function.

    Args:
      name: 'reward', 'keep', 'weight', 'diagnostic:NAME' or 'backtest:NAME'.
    """
    return self._path(name) in self._files

  @property
  def diagnostics(self) -> tuple[str, ...]:
    """Names that `measure` takes, sorted."""
    return self._in_folder('diagnostics/')

  @property
  def backtests(self) -> tuple[str, ...]:
    """Names that `predict` takes, sorted."""
    return self._in_folder('backtests/')

  def is_shipped(self, name: str) -> bool:
    """Return whether the diagnostic of this name comes with the package."""
    path = self._path(f'diagnostic:{name}')
    return shipped.is_shipped(path, self._source(path))

  def _in_folder(self, folder: str) -> tuple[str, ...]:
    return tuple(
        path.removeprefix(folder).removesuffix('.py')
        for path in sorted(self._files)
        if path.startswith(folder)
    )

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
    shuffled = _Shuffled(view)
    answer = self._call('reward.py', 'parts', [shuffled])
    return parts_of(view, {n: shuffled.in_place(a) for n, a in answer.items()})

  def init(self) -> dict[str, np.ndarray]:
    """Return the first state of `keep`: {} where keep.py has no `init`.

    Raises:
      FunctionError: If it fails, or the state is too large.
    """
    if not calls_lib.defines(self._files.get('keep.py', ''), 'init'):
      return {}
    return state_of(self._call('keep.py', 'init', []))

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
    shuffled = _Shuffled(view)
    answer = self._call('keep.py', 'keep', [shuffled], state)
    return mask_of(view, answer | {'': shuffled.in_place(answer[''])})

  def weight(self, view: Any) -> Float[np.ndarray, 'P G A'] | None:
    """Return the credit of each turn, or None without a weight.py.

    A is the number of turns of the longest episode of the view.

    Raises:
      FunctionError: If it fails, or the answer is not finite or not [P, G, A].
    """
    if 'weight.py' not in self._files:
      return None
    shuffled = _Shuffled(view)
    answer = self._call('weight.py', 'weight', [shuffled])
    return weight_of(view, {n: shuffled.in_place(a) for n, a in answer.items()})

  def measure(self, name: str, view: Any) -> dict[str, float]:
    """Return the numbers of a diagnostic by name.

    Raises:
      FunctionError: If it fails, or a number is not finite.
    """
    path = self._path(f'diagnostic:{name}')
    return numbers_of(path, self._call(path, 'measure', [_Shuffled(view)]))

  def measure_all(
      self, view: Any
  ) -> dict[str, dict[str, float] | FunctionError]:
    """Return the numbers of every diagnostic, or how it failed.

    All of them run in one request. Where the process died, each is called once
    more alone, since another diagnostic may have been at fault.
    """
    paths = {n: self._path(f'diagnostic:{n}') for n in self.diagnostics}
    shuffled = _Shuffled(view)
    requests = [
        calls_lib.call(path, 'measure', [shuffled]) for path in paths.values()
    ]
    answers = calls_lib.exchange(self._files, requests, self._limits)
    found = {}
    for (name, path), answer in zip(paths.items(), answers, strict=True):
      try:
        if not isinstance(answer, FunctionError):
          found[name] = numbers_of(path, answer)
        elif answer.alone:
          found[name] = answer
        else:
          found[name] = self.measure(name, view)
      except FunctionError as error:
        found[name] = error
    return found

  def predict(self, name: str, before: Any, after: Any) -> dict[str, float]:
    """Return the statistics of a backtest on two views of the same rollouts.

    Raises:
      FunctionError: If it fails, or a number is not finite.
    """
    path = self._path(f'backtest:{name}')
    views = [_Shuffled(before), _Shuffled(after, order=before)]
    return numbers_of(path, self._call(path, 'predict', views))

  def meta(self, name: str) -> dict[str, Any]:
    """Return what a diagnostic declares; its source is read, not run.

    Returns:
      LAYER, UNIT, and, empty where the file does not have them, WARN and
      CRITICAL ({name: ('>' or '<', number)}) and CALLS_FOR, the intervention
      classes that its alerts call for.

    Raises:
      FunctionError: If a declaration is missing, not literal or not valid.
    """
    path = self._path(f'diagnostic:{name}')
    found = {}
    try:
      for statement in syntax.parse(path, self._source(path)).body:
        targets = []
        if isinstance(statement, ast.Assign):
          targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value:
          targets = [statement.target]
        for target in targets:
          if isinstance(target, ast.Name) and target.id in _META:
            found[target.id] = ast.literal_eval(statement.value)
    except syntax.SourceError as error:
      raise FunctionError('crash', path, str(error)) from error
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
      message = (
          f'line {statement.lineno}: {target.id} is not written down as a'
          ' constant'
      )
      raise FunctionError('crash', path, message) from error
    _check_meta(path, found)
    return found

  # ------------------------------------------------------------- one exchange

  def _source(self, path: str) -> str:
    if path not in self._files:
      raise ValueError(
          f'the harness has no {path}; it has {", ".join(self._files)}'
      )
    return self._files[path]

  def _call(
      self,
      path: str,
      function: str,
      views: Sequence[Any],
      state: State | None = None,
  ) -> dict[str, np.ndarray]:
    """Call one function and return its arrays by name."""
    self._source(path)
    call = calls_lib.call(path, function, views, state)
    (answer,) = calls_lib.exchange(self._files, [call], self._limits)
    if isinstance(answer, FunctionError):
      raise answer
    return answer


class _Shuffled:
  """A view whose groups and completions stand in a shuffled order.

  The order follows from a hash of the content, so that equal evidence gives
  equal answers, and cannot be foreseen by whoever writes a function.
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
    self._columns: dict[str, np.ndarray] = {}

  @property
  def max_tokens(self) -> int:
    return self._view.max_tokens

  @property
  def columns(self) -> tuple[str, ...]:
    return self._view.columns

  @property
  def codes(self) -> Mapping[str, Mapping[str, int]]:
    return self._view.codes

  def __getattr__(self, name: str) -> np.ndarray:
    if name.startswith('_'):
      raise AttributeError(name)
    if name not in self._columns:
      array = getattr(self._view, name)
      self._columns[name] = array[self._groups, self._within]
    return self._columns[name]

  def in_place(self, array: np.ndarray) -> np.ndarray:
    """Return an array of each completion in the view's own order.

    An array of any other shape is returned as it is.
    """
    if array.shape[:2] != self._view.valid.shape:
      return array
    back = np.empty_like(array)
    back[self._groups, self._within] = array
    return back


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
  mask = arrays['']  # The empty name cannot be one of the state's.
  _check_shape('keep.py', 'keep', mask, view.valid.shape)
  if mask.dtype != np.bool_:
    raise FunctionError(
        'wrong_type', 'keep.py', f'keep has dtype {mask.dtype}, not bool'
    )
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
    raise FunctionError(
        'wrong_shape', path, f'{name} has shape {array.shape}, not {shape}'
    )


def _as_float32(
    path: str, name: str, array: np.ndarray, valid: np.ndarray
) -> np.ndarray:
  """Return the array as finite float32, 0 where not valid."""
  _check_shape(path, name, array, valid.shape)
  with np.errstate(over='ignore'):
    array = np.where(valid, array.astype(np.float32), np.float32(0))
  bad = np.argwhere(~np.isfinite(array)).tolist()
  if bad:
    raise FunctionError(
        'non_finite',
        path,
        f'{name} is {array[tuple(bad[0])]} at {bad[0]} and {len(bad) - 1} other'
        ' places',
    )
  return array


def state_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return the state of `keep` as float32 arrays.

  Raises:
    FunctionError: If it is too large, empty, or not finite.
  """
  size = sum(len(name) + 4 * array.size for name, array in arrays.items())
  if size > MAX_STATE_BYTES:
    raise FunctionError(
        'too_large',
        'keep.py',
        f'the state takes {size} bytes with its names; at most'
        f' {MAX_STATE_BYTES} are kept',
    )
  if empty := [name for name, array in arrays.items() if not array.size]:
    raise FunctionError(
        'wrong_shape', 'keep.py', f'state {empty[0]} is an array of nothing'
    )
  return {
      name: _as_float32('keep.py', name, array, np.ones(array.shape, bool))
      for name, array in arrays.items()
  }


def numbers_of(path: str, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Return single finite numbers by name.

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
  """Fill in what may be left out; refuse a declaration that is not valid."""
  for name, default in (('WARN', {}), ('CRITICAL', {}), ('CALLS_FOR', ())):
    found.setdefault(name, default)
  problem = ''
  calls_for = found['CALLS_FOR']
  if found.get('LAYER') not in LAYERS:
    problem = f'LAYER={found.get("LAYER")!r} is not one of {LAYERS}'
  elif not isinstance(found.get('UNIT'), str):
    problem = f'UNIT={found.get("UNIT")!r} is not text'
  elif not isinstance(calls_for, tuple) or not all(
      isinstance(name, str) for name in calls_for
  ):
    problem = (
        f"CALLS_FOR={calls_for!r} is not a tuple of texts such as ('reward',)"
    )
  for name in ('WARN', 'CRITICAL'):
    table = found[name]
    if not isinstance(table, dict) or not all(
        isinstance(key, str) and _is_bound(bound)
        for key, bound in table.items()
    ):
      problem = f"{name}={table!r} is not {{name: ('>' or '<', number)}}"
  if problem:
    raise FunctionError('wrong_type', path, problem)


def _is_bound(bound: Any) -> bool:
  """Return whether it is a threshold: ('>', 0.3) is too high above 0.3."""
  return (
      isinstance(bound, tuple)
      and len(bound) == 2
      and bound[0] in ('<', '>')
      and isinstance(bound[1], int | float)
  )
