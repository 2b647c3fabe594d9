"""Calls a harness's functions in a worker process; only arrays come back.

    with Functions(harness) as functions:
      parts = functions.parts(view)

What a function returns is checked here: a failure of any kind is a
`FunctionError` with a status, never a number, and the next call works. The
worker has a short list of environment variables, limits on memory, CPU and
file size, and the columns of the view that are open to the function.
"""

import ast
from collections.abc import Mapping, Sequence
import json
import math
import os
import pathlib
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Any
import weakref

from jaxtyping import Bool, Float
import numpy as np

from evojax.evidence import schema
from evojax.harness import spec

STATUSES = (
    'crash',
    'hang',
    'wrong_shape',
    'non_finite',
    'wrong_type',
    'too_large',
)
MAX_STATE_BYTES = 4 << 10
LAYERS = ('score', 'signal', 'behaviour', 'version')  # Of diagnostics.
State = Mapping[str, np.ndarray]  # Name -> float32 array.

_START_SECONDS = 60.0  # Importing numpy, on a busy machine.
_MAX_HEADER_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 64 << 20
_LENGTH = struct.Struct('<I')
_WORKER = pathlib.Path(__file__).with_name('worker.py')
# All that a worker gets of the environment: no token, no proxy, no PYTHONPATH.
_INHERITED = ('LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH', 'LANG', 'LC_ALL')
_ENVIRONMENT = {
    'PYTHONHASHSEED': '0',  # The order of a set of strings is the same again.
    # One thread: sums in the same order, and little memory per worker.
    'OMP_NUM_THREADS': '1',
    'OPENBLAS_NUM_THREADS': '1',
    'MKL_NUM_THREADS': '1',
    'VECLIB_MAXIMUM_THREADS': '1',
}
# A source that uses one of these may read any column.
_ANY_COLUMN = frozenset(
    ('columns', 'getattr', 'vars', '__dict__', 'attrgetter')
)
_META = ('LAYER', 'UNIT', 'WARN', 'CRITICAL')
# Views that the worker holds at once: a backtest compares two.
_VIEWS = 2


class FunctionError(ValueError):
  """A function of a harness failed; there is no number.

  Attributes:
    status: One of STATUSES.
    function: Its file, e.g. 'diagnostics/groups.py'.
    message: One line, with the line of the source where there is one.
  """

  def __init__(self, status: str, function: str, message: str):
    super().__init__(f'{function}: {status}: {message}')
    self.status, self.function, self.message = status, function, message


class Functions:
  """The functions of one harness, in a process of their own; thread-safe."""

  def __init__(self, harness: spec.Harness, *, limit_seconds: float = 10.0):
    """limit_seconds: Wall time of one call, beyond which it is a hang."""
    self._files = harness.files
    self._limit_seconds = limit_seconds
    self._lock = threading.Lock()
    self._process: subprocess.Popen[bytes] | None = None
    self._finalizer: weakref.finalize | None = None
    self._calls = self._key = 0
    # Newest last: key -> (view, names of the columns the worker holds).
    self._views: dict[int, tuple[Any, set[str]]] = {}
    self._named = {n: _names(text) for n, text in harness.files.items()}

  def __enter__(self) -> 'Functions':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends the worker; a later call would start another."""
    with self._lock:
      self._stop()

  # ------------------------------------------------------------ what there is

  def has(self, name: str) -> bool:
    """'reward', 'keep', 'weight', 'diagnostic:NAME' or 'backtest:NAME'."""
    return self._path(name) in self._files

  @property
  def diagnostics(self) -> tuple[str, ...]:
    """Names for `measure`, sorted."""
    return self._in_folder('diagnostics/')

  @property
  def backtests(self) -> tuple[str, ...]:
    """Names for `predict`, sorted."""
    return self._in_folder('backtests/')

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
    """Reward parts before their weights, 0 where not valid.

    Args:
      view: An evidence view, or what has its attributes.

    Raises:
      FunctionError: If it fails, or a part is not finite or not [P, G].
    """
    found = self._call('reward.py', 'parts', 'reward', [view])
    if not found:
      raise FunctionError('wrong_type', 'reward.py', 'parts returned no part')
    return {
        name: _as_float32('reward.py', name, array, view.valid)
        for name, array in found.items()
    }

  def init(self) -> dict[str, np.ndarray]:
    """The first state of `keep`: {} where keep.py has no `init`.

    Raises:
      FunctionError: If it fails, or the state is too large.
    """
    if 'init' not in self._named.get('keep.py', ()):
      return {}
    return _state(self._call('keep.py', 'init', 'filter', []))

  def keep(
      self, view: Any, state: State
  ) -> tuple[Bool[np.ndarray, 'P G'], dict[str, np.ndarray]]:
    """Which completions enter the update, and the next state.

    Args:
      view: An evidence view, or what has its attributes.
      state: From `init` or the call before.

    Raises:
      FunctionError: If it fails, or the answer is not bool [P, G] and a state.
    """
    found = self._call('keep.py', 'keep', 'filter', [view], state)
    mask = found.pop('')  # No name of a state.
    _check_shape('keep.py', 'keep', mask, view.valid.shape)
    if mask.dtype != np.bool_:
      raise FunctionError(
          'wrong_type', 'keep.py', f'keep has dtype {mask.dtype}, not bool'
      )
    return mask, _state(found)

  def weight(self, view: Any) -> Float[np.ndarray, 'P G A'] | None:
    """Credit of each turn, A = the most turns of an episode; or no weight.py.

    Raises:
      FunctionError: If it fails, or the answer is not finite or not [P, G, A].
    """
    if 'weight.py' not in self._files:
      return None
    array = self._call('weight.py', 'weight', 'reward', [view])['weight']
    turns = max(1, int(np.where(view.valid, view.n_turns, 0).max(initial=0)))
    valid = np.repeat(view.valid[..., None], turns, axis=-1)
    return _as_float32('weight.py', 'weight', array, valid)

  def measure(self, name: str, view: Any) -> dict[str, float]:
    """The numbers of a diagnostic.

    Raises:
      FunctionError: If it fails, or a number is not finite.
    """
    path = self._path(f'diagnostic:{name}')
    return _numbers(path, self._call(path, 'measure', 'diagnostic', [view]))

  def predict(self, name: str, before: Any, after: Any) -> dict[str, float]:
    """The statistics of a backtest on two views of the same rollouts.

    Raises:
      FunctionError: If it fails, or a number is not finite.
    """
    path = self._path(f'backtest:{name}')
    views = [before, after]
    return _numbers(path, self._call(path, 'predict', 'diagnostic', views))

  def meta(self, name: str) -> dict[str, Any]:
    """LAYER, UNIT, WARN and CRITICAL of a diagnostic, read and not run.

    Raises:
      FunctionError: If one is missing or not literal.
    """
    path = self._path(f'diagnostic:{name}')
    found = {}
    try:
      for statement in ast.parse(self._source(path)).body:
        if isinstance(statement, ast.Assign):
          for target in statement.targets:
            if isinstance(target, ast.Name) and target.id in _META:
              found[target.id] = ast.literal_eval(statement.value)
    except (SyntaxError, ValueError) as error:
      line = getattr(error, 'lineno', None) or statement.lineno
      raise FunctionError('crash', path, f'line {line}: {error}') from error
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
      reader: str,
      views: Sequence[Any],
      state: State | None = None,
  ) -> dict[str, np.ndarray]:
    """The arrays that a function returns, by name."""
    request = dict(
        file=path,
        function=function,
        reader=reader,
        source=self._source(path),
        limit_seconds=self._limit_seconds,
    )
    with self._lock:
      if self._process is None or self._process.poll() is not None:
        self._start()
      payload: list[bytes] = []
      self._add_views(request, payload, views)
      request['state'] = _layout(state or {}, payload)
      self._calls += 1
      request['call'] = self._calls
      in_step = False
      try:
        header, arrays = self._exchange(request, payload)
        in_step = True
      except _LateError:
        raise FunctionError(
            'hang', path, f'no answer within {self._limit_seconds:g} s'
        ) from None
      except _TooLargeError as error:
        raise FunctionError('too_large', path, str(error)) from None
      except (EOFError, BrokenPipeError):
        raise FunctionError('crash', path, self._last_words()) from None
      finally:
        if not in_step:  # A Ctrl-C in between included.
          self._stop()
    if header['status']:
      raise FunctionError(header['status'], path, header['message'])
    return arrays

  def _add_views(
      self, request: dict[str, Any], payload: list[bytes], views: Sequence[Any]
  ) -> None:
    """Adds the columns that the worker lacks; each goes there once per view."""
    columns = []
    for view in views:
      open_ = _open_columns(view, request['reader'])
      named = self._named[request['file']]
      needed = [n for n in open_ if n in named or named & _ANY_COLUMN]
      for name in needed:
        getattr(view, name)  # Whatever fails, fails before anything is noted.
      columns.append((needed, open_))
    request['views'], request['evidence'] = [], []
    for view, (needed, open_) in zip(views, columns, strict=True):
      key = next((k for k, (v, _) in self._views.items() if v is view), None)
      arrays = {}
      if key is None:
        self._key += 1
        key, held = self._key, set()
        arrays['valid'] = view.valid
      else:
        held = self._views.pop(key)[1]
      arrays.update({n: getattr(view, n) for n in needed if n not in held})
      self._views[key] = view, held | set(arrays)
      if arrays:
        request['views'].append(
            dict(
                key=key,
                max_tokens=int(view.max_tokens),
                codes={name: dict(table) for name, table in view.codes.items()},
                arrays=_layout(arrays, payload),
            )
        )
      request['evidence'].append((key, needed, open_))
    while len(self._views) > _VIEWS:
      del self._views[next(iter(self._views))]
    request['alive'] = list(self._views)

  def _exchange(
      self, request: dict[str, Any], payload: list[bytes]
  ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One round trip: header and arrays of the answer."""
    text = json.dumps(request).encode()
    deadline = time.monotonic() + self._limit_seconds
    self._write(b''.join([_LENGTH.pack(len(text)), text, *payload]), deadline)
    try:
      header, arrays = self._read(deadline)
      known = header['status'] in ('', *STATUSES)
      if not known or header['call'] != request['call']:
        raise EOFError('the answer is to another call')
      header['message'] = str(header['message'])
    except (KeyError, TypeError, ValueError) as error:
      # Something in there wrote to the pipe: nothing of it can be trusted.
      raise EOFError('the answer cannot be read') from error
    return header, arrays

  def _write(self, data: bytes, deadline: float) -> None:
    descriptor = self._process.stdin.fileno()
    rest = memoryview(data)
    while rest:
      _wait(descriptor, select.POLLOUT, deadline)
      try:
        rest = rest[os.write(descriptor, rest) :]
      except BlockingIOError:
        continue

  def _read(
      self, deadline: float
  ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of an answer.

    Raises:
      _LateError, _TooLargeError, EOFError: As they say.
      ValueError, TypeError, KeyError: If it is no answer.
    """
    (size,) = _LENGTH.unpack(self._read_bytes(_LENGTH.size, deadline))
    if size > _MAX_HEADER_BYTES:
      raise _TooLargeError(f'the answer has a header of {size} bytes')
    header = json.loads(self._read_bytes(size, deadline))
    layout = [(n, np.dtype(d), tuple(s)) for n, d, s in header['arrays']]
    if any(dtype.kind not in 'biuf' for _, dtype, _ in layout):
      raise ValueError('an array holds no numbers')
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in layout]
    if sum(sizes) > _MAX_ANSWER_BYTES:
      raise _TooLargeError(f'returned {sum(sizes)} bytes')
    return header, {
        name: np.frombuffer(self._read_bytes(n, deadline), dtype).reshape(shape)
        for (name, dtype, shape), n in zip(layout, sizes, strict=True)
    }

  def _read_bytes(self, size: int, deadline: float) -> bytes:
    descriptor = self._process.stdout.fileno()
    chunks = []
    while size:
      _wait(descriptor, select.POLLIN, deadline)
      chunk = os.read(descriptor, min(size, 1 << 20))
      if not chunk:
        raise EOFError
      chunks.append(chunk)
      size -= len(chunk)
    return b''.join(chunks)

  # -------------------------------------------------------------- the process

  def _start(self) -> None:
    """Starts a worker and waits for it.

    Raises:
      RuntimeError: If it does not come up.
    """
    self._stop()
    environment = {k: os.environ[k] for k in _INHERITED if k in os.environ}
    packages = pathlib.Path(np.__file__).parent.parent
    self._process = subprocess.Popen(
        # No site: neither .pth files nor a user's packages are read. No path
        # of the script: modules beside it must not shadow the library's.
        [sys.executable, '-P', '-s', '-S', '-B', str(_WORKER), str(packages)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, **_ENVIRONMENT},
        cwd=os.sep,
        # A group of its own: what a function starts is killed with it, and a
        # Ctrl-C in the terminal reaches the run alone.
        start_new_session=True,
    )
    self._finalizer = weakref.finalize(self, _kill, self._process)
    os.set_blocking(self._process.stdin.fileno(), False)
    try:
      self._read(time.monotonic() + _START_SECONDS)
    except (_LateError, EOFError) as error:
      self._process.kill()
      said = self._process.stderr.read().decode(errors='replace').strip()
      self._stop()
      raise RuntimeError(
          f'the worker of the harness did not start: {_WORKER} said'
          f' {said[-500:]!r}'
      ) from error

  def _stop(self) -> None:
    if self._finalizer is not None:
      self._finalizer()
    self._process = self._finalizer = None
    self._views.clear()

  def _last_words(self) -> str:
    """How the worker ended."""
    try:
      code = self._process.wait(1.0)
    except subprocess.TimeoutExpired:  # It lives, but broke the protocol.
      return 'wrote to the pipe of the worker'
    if code >= 0:
      return f'ended the process with exit code {code}'
    return f'the process was killed by {signal.Signals(-code).name}'


class _LateError(Exception):
  """The deadline has passed."""


class _TooLargeError(Exception):
  """An answer is larger than any that could be right."""


def _wait(descriptor: int, event: int, deadline: float) -> None:
  """Until a pipe is ready, or closed."""
  poll = select.poll()
  poll.register(descriptor, event)
  if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
    raise _LateError


def _kill(process: subprocess.Popen[bytes]) -> None:
  """Ends a worker and whatever it started."""
  try:
    os.killpg(process.pid, signal.SIGKILL)
  except ProcessLookupError:  # All gone already.
    pass
  process.wait()
  for pipe in (process.stdin, process.stdout, process.stderr):
    pipe.close()


def _open_columns(view: Any, reader: str) -> list[str]:
  """Columns of a view that are open to a reader, whoever the view is for."""
  closed = {c.name for c in schema.CORE if reader not in c.readers}
  observer = reader == 'diagnostic'
  return [
      name
      for name in view.columns
      if name not in closed
      and (observer or not name.startswith(schema.PART_PREFIX))
  ]


def _names(source: str) -> frozenset[str]:
  """Names, attributes, imports and functions of a source."""
  try:
    nodes = list(ast.walk(ast.parse(source)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return frozenset()  # The worker says what is wrong.
  found = set()
  for node in nodes:
    for field in ('id', 'attr', 'name'):
      value = getattr(node, field, None)
      if isinstance(value, str):
        found.add(value)
  return frozenset(found)


def _layout(
    arrays: Mapping[str, np.ndarray], payload: list[bytes]
) -> list[tuple[str, str, tuple[int, ...]]]:
  """(name, dtype, shape) of each array, whose bytes are added to payload."""
  layout = []
  for name, array in arrays.items():
    payload.append(array.tobytes())
    layout.append((name, array.dtype.str, array.shape))
  return layout


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
  """The array as finite float32, 0 where not valid."""
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


def _state(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The state of `keep` as float32 arrays."""
  size = 4 * sum(array.size for array in arrays.values())
  if size > MAX_STATE_BYTES:
    raise FunctionError(
        'too_large',
        'keep.py',
        f'the state takes {size} bytes; at most {MAX_STATE_BYTES} are kept',
    )
  everywhere = np.ones((), bool)
  return {
      name: _as_float32(
          'keep.py', name, array, np.broadcast_to(everywhere, array.shape)
      )
      for name, array in arrays.items()
  }


def _numbers(path: str, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Single finite numbers by name."""
  found = {}
  for name, array in arrays.items():
    _check_shape(path, name, array, ())
    if not np.isfinite(array):
      raise FunctionError('non_finite', path, f'{name} is {array}')
    found[name] = float(array)
  return found


def _check_meta(path: str, found: dict[str, Any]) -> None:
  """Fills in empty thresholds; refuses what is no declaration."""
  found.setdefault('WARN', {})
  found.setdefault('CRITICAL', {})
  problem = ''
  if found.get('LAYER') not in LAYERS:
    problem = f'LAYER={found.get("LAYER")!r} is not one of {LAYERS}'
  elif not isinstance(found.get('UNIT'), str):
    problem = f'UNIT={found.get("UNIT")!r} is not text'
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
  """('>', 0.3): the side that is bad, and where it begins."""
  return (
      isinstance(bound, tuple)
      and len(bound) == 2
      and bound[0] in ('<', '>')
      and isinstance(bound[1], int | float)
  )
