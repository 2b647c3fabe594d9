"""The process that harness functions run in: an entry of the box.

Every request gets a fresh process, which sees only the bytes of the request: a
list of calls on a list of views. Requests and answers have one format: the
length of a JSON header, the header, and raw array bytes. Nothing is pickled.
Columns are read-only memory, and every call runs in a fresh namespace. See
`run` and `sandbox`.
"""

import importlib
import json
import math
import re
import struct
import sys
import traceback
import types
import unicodedata  # noqa: F401 (Python normalizes names with it.)
import warnings

import numpy as np

MAX_ANSWER_BYTES = 64 << 20
MAX_NAMES = 256  # Names in the answer of a function.
MAX_NAME = 64  # Characters of a name.
ALIGNMENT = 16  # Bytes, counted from the beginning of the data.
_LENGTH = struct.Struct('<Q')
_MAX_AXES = 8
# Modules that a function may import, see `python_names`. They are loaded before
# the box forbids opening files.
MODULES = tuple(
    'bisect collections collections.abc copy dataclasses functools heapq'
    ' itertools math numpy.typing operator re statistics string typing'.split()
)
# `except Exception` catches these. Lack of memory or of stack is missing, since
# it occurs earlier on one machine than on another.
ORDINARY = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError,
    StopIteration, TypeError, ValueError,
)  # fmt: skip
_NAME = re.compile(f'[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME - 1}}}')


class CallError(Exception):
  """An answer is invalid; holds a status and a message."""


class Evidence:
  """Read-only columns of P groups of G completions, the argument e."""

  def __init__(self, view, columns, reader):
    """Take the columns of a view.

    Args:
      view: A view of the request.
      columns: The `_Columns` of the source.
      reader: reward | filter | diagnostic.
    """
    self.__dict__.update(  # The only way, as `__setattr__` refuses.
        # A new object for each call: the shape of an array can be set, and
        # would carry something to the next call.
        {name: view['arrays'][name][...] for name in columns.needed},
        max_tokens=view['max_tokens'],
        columns=columns.open,
        codes=columns.codes(view['codes']),
        _reader=reader,
    )

  # The default hash and text show a memory address, which differs between runs.
  __hash__ = None

  def __repr__(self):
    return 'evidence'

  def __setattr__(self, name, value):
    raise AttributeError(f'evidence is read-only: {name} cannot be set')

  def __delattr__(self, name):
    raise AttributeError(f'evidence is read-only: {name} cannot be deleted')

  def __getitem__(self, name):
    """Return a column by name, as in `for name in e.columns: e[name]`."""
    if name not in self.columns:
      raise AttributeError(f'evidence has no column {name!r}')
    return getattr(self, name)

  def __getattr__(self, name):
    if name.startswith('_'):
      raise AttributeError(name)
    raise AttributeError(
        f'evidence has no {name!r} for a {self._reader}; it may read'
        f' {", ".join(self.columns)}'
    )


class _Columns:
  """The columns that a source names, and those that it may read."""

  def __init__(self, needed, open_):
    self.needed, self.open = (*needed, 'valid'), tuple(open_)
    self._codes = {}  # Identity of code tables -> those that are open.

  def codes(self, tables):
    """Return the readable code tables of a view, read-only."""
    if id(tables) not in self._codes:
      found = {name: tables[name] for name in tables if name in self.open}
      self._codes[id(tables)] = _constant(found)
    return self._codes[id(tables)]


def call(source, data):
  """Answer a request.

  Args:
    source: Unused, since the header holds the sources.
    data: Read-only bytes, see `pack`.
  """
  del source
  sys.stdout = sys.stderr  # Only the answer may be written to stdout.
  warnings.simplefilter('ignore')
  request, arrays = unpack(data)
  for view in request['views']:
    view['arrays'] = {name: arrays[i] for name, i in view['arrays'].items()}
    view['codes'] = request['codes'][view['codes']]
  open_ = [_Columns(*both) for both in request['columns']]
  for one in request['calls']:
    one['evidence'] = [(i, open_[n]) for i, n in one['evidence']]
  code, headers, found, sent = {}, [], [], []
  for one in request['calls']:
    try:
      if one['file'] not in code:
        text = request['files'][one['file']]
        code[one['file']] = compile(text, one['file'], 'exec')
      match one['state']:
        case int(before):
          state = _state(found[before])
        case [before, n]:
          several = found[before].items()
          state = _state({name: np.array(a[:n][-1]) for name, a in several})
        case places:
          state = {name: arrays[i] for name, i in places.items()}
      run = _call if one['times'] is None else _in_a_row
      answer = run(code[one['file']], one, request['views'], state)
      size = sum(array.nbytes for array in answer.values())
      if size > MAX_ANSWER_BYTES:
        raise CallError('too_large', f'returned {size} bytes')
      status = message = ''
    except CallError as error:
      answer, (status, message) = {}, error.args
    # An untrusted function may raise anything, including SystemExit. The parent
    # receives a description of it.
    except BaseException as error:
      answer, status, message = {}, 'crash', _describe(error, one['file'])
    found.append(answer)
    places = {name: len(sent) + i for i, name in enumerate(answer)}
    headers.append({'status': status, 'message': message, 'arrays': places})
    sent += answer.values()
  return pack({'answers': headers}, sent)


def warm():
  """Use everything that is loaded lazily, while files can still be opened."""
  for name in MODULES:
    importlib.import_module(name)
  # Dataclasses look up the module that they were made in.
  sys.modules['harness'] = types.ModuleType('harness')
  x = np.array([[0.5, 2.0, 1.0], [1.0, 0.0, 3.0]])
  with np.errstate(all='ignore'):
    for name in ('mean', 'std', 'var', 'sum', 'min', 'max', 'any', 'all'):
      getattr(x, name)(1), getattr(np, name)(x, axis=0, keepdims=True)
    np.median(x), np.percentile(x, 30), np.corrcoef(x), np.unique(x)
    np.linalg.lstsq(x.T, x[0, :], rcond=None), np.einsum('ij,kj->ik', x, x)
    np.clip(x, 0, 1), np.round(x), np.histogram(x), np.nanmedian(x)
    np.array(['a', 'b']) == 'a', np.interp(x, x[0], x[1])
  view = {'max_tokens': 1, 'codes': 0, 'arrays': {'valid': 0}}
  source = _WARM
  one = dict(
      file='f.py',
      function='measure',
      reader='diagnostic',
      evidence=[(0, 0)],
      state={},
      times=None,
  )
  request = dict(
      files={'f.py': source},
      views=[view],
      calls=[one],
      columns=[([], [])],
      codes=[{}],
  )
  before = sys.stdout
  answer = unpack(call('', pack(request, [np.ones((1, 1), bool)])))[0]
  sys.stdout = before
  if message := answer['answers'][0]['message']:
    raise RuntimeError(message)  # A call that failed has loaded nothing.


_WARM = """
from __future__ import annotations
import collections, dataclasses, re, statistics, typing
import numpy as np

@dataclasses.dataclass(frozen=True)
class A:
  x: int = 1
  y: list = dataclasses.field(default_factory=list)

class B(typing.NamedTuple):
  x: typing.List[int]

C = collections.namedtuple('C', 'x y')

def measure(e):
  some = collections.Counter('abc').most_common(2)
  text = re.sub(r'(a+)|b', lambda m: m.group(), str(some), re.I)
  x = [1, 2.5, 4]
  for name in ('mean', 'median', 'mode', 'stdev', 'quantiles'):
    text += f'{getattr(statistics, name)(x)!s:>9}'
  slope = statistics.linear_regression(x, x).slope
  return {'x': f'{A()}{B(x)}{C(1, 2)}'.count('1') + slope}
"""


def pack(header, arrays):
  """Return a header and arrays as bytes."""
  layout, payload = [], []
  for array in arrays:
    data = np.ascontiguousarray(array).tobytes()
    layout.append((array.dtype.str, array.shape))
    payload += (data, bytes(-len(data) % ALIGNMENT))
  text = json.dumps({**header, 'layout': layout}).encode()
  text += b' ' * (-(len(text) + _LENGTH.size) % ALIGNMENT)
  return b''.join([_LENGTH.pack(len(text)), text, *payload])


def unpack(data, kinds='biufU', max_header_bytes=1 << 30):
  """Return (header, arrays) from bytes; the arrays are read-only views.

  Args:
    data: Bytes of `pack`, or of an untrusted process.
    kinds: Allowed kinds of arrays, see np.dtype.kind.
    max_header_bytes: Largest header.

  Raises:
    ValueError, KeyError, TypeError, RecursionError: If the bytes have another
      format.
  """
  view = memoryview(data)
  if len(view) < _LENGTH.size:
    raise ValueError('there is no header')
  (size,) = _LENGTH.unpack(view[: _LENGTH.size])
  if size > max_header_bytes:
    raise ValueError(f'a header of {size} bytes')
  at = _LENGTH.size + size
  header = json.loads(bytes(view[_LENGTH.size : at]))
  arrays = []
  for name, shape in header['layout']:
    # Both may be forged, so they are checked before NumPy reads them.
    if (
        not re.fullmatch(f'[<>|=][{kinds}][0-9]{{1,9}}', name)
        or len(shape) > _MAX_AXES
        or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    ):
      raise ValueError(f'{name} {shape} is no array of numbers or texts')
    dtype, shape = np.dtype(name), tuple(shape)
    count = math.prod(shape)
    if dtype.itemsize and count:
      array = np.frombuffer(view, dtype, count, at).reshape(shape)
      # A forged byte of 2 would be truthy but would not equal True.
      if dtype.kind == 'b' and array.view(np.uint8).max() > 1:
        array = np.asarray(array.view(np.uint8) != 0)
    else:  # np.frombuffer refuses empty arrays.
      array = np.zeros(shape, dtype)
    array.flags.writeable = False
    arrays.append(array)
    at += array.nbytes + -array.nbytes % ALIGNMENT
  if at != len(view):
    raise ValueError(f'{len(view)} bytes, not {at}')
  return header, arrays


def _call(code, one, views, state):
  """Run a function and return its arrays by name."""
  function = one['function']
  namespace = {
      '__name__': 'harness',
      '__builtins__': __builtins__,
      'Exception': ORDINARY,
  }
  exec(code, namespace)
  for name in namespace.keys() - {'__name__', '__builtins__', 'Exception'}:
    namespace[name] = _constant(namespace[name])
  if not callable(namespace.get(function)):
    raise CallError('wrong_type', f'there is no function {function}')
  arguments = [
      Evidence(views[i], columns, one['reader'])
      for i, columns in one['evidence']
  ]
  if function == 'keep':
    # A copy, as it may change it, and states are compared.
    arguments.append(dict(state))
  with np.errstate(all='ignore'):
    answer = namespace[function](*arguments)
  if function == 'weight':
    return {'weight': _array('weight', answer)}
  if function == 'keep':
    if not isinstance(answer, tuple) or len(answer) != 2:
      raise CallError('wrong_type', 'keep returns (bool [P, G], state)')
    mask, state = answer
    return {'': _array('keep', mask), **_named(state, 'state')}
  return _named(answer, function)


def _in_a_row(code, one, views, state):
  """Call `keep` repeatedly, each time with the previous state.

  It ends once a state equals the previous one: then nothing changes any more.
  """
  answers = []
  for _ in range(one['times']):
    answers.append(_call(code, one, views, state))
    before, state = state, _state(answers[-1])
    if before.keys() != state.keys() and len(answers) > 1:
      raise _grows(before, state)
    if _bits(before) == _bits(state):
      break
  try:
    return {name: np.stack([a[name] for a in answers]) for name in answers[0]}
  except ValueError:
    shapes = [a[''].shape for a in answers]
    if other := [s for s in shapes if s != shapes[0]]:
      what = f'keep has shape {other[0]} in one step, {shapes[0]} in another'
      raise CallError('wrong_shape', what) from None
    first, *_, last = answers
    raise _grows(_state(first), _state(last)) from None


def _grows(before, state):
  """Return an error if a state has other names or shapes than before."""
  old, new = ({n: list(a.shape) for n, a in s.items()} for s in (before, state))
  what = f'the state is {new} after {old}'
  return CallError('wrong_shape', f'{what}; a state keeps its names and shapes')


def _bits(state):
  """Return a value that is equal only for equal states."""
  return [(n, state[n].shape, state[n].tobytes()) for n in sorted(state)]


def _constant(value):
  """Return a module-level value in a form that no call can change.

  Otherwise functions could pass values to each other through it, and a change
  of one factor would alter another.
  """
  if hasattr(value, '_fields'):
    return value  # Converting a namedtuple would lose its names.
  if isinstance(value, list | tuple):
    return tuple(map(_constant, value))
  if isinstance(value, set):
    return frozenset(value)
  if isinstance(value, dict):
    items = {key: _constant(item) for key, item in value.items()}
    return types.MappingProxyType(items)
  if isinstance(value, np.ndarray):
    value.flags.writeable = False
  return value


def _state(answer):
  """Return the answer of `keep` as the state for its next call."""
  state = {n: array.astype(np.float32) for n, array in answer.items() if n}
  for array in state.values():
    array.flags.writeable = False
  return state


def is_name(name):
  """Return whether a value may name a number, a part or a state."""
  return isinstance(name, str) and bool(_NAME.fullmatch(name))


def _named(value, function):
  """Return a dict of arrays by name."""
  if not isinstance(value, dict):
    message = f'{function} returned {type(value).__name__}, not a dict'
    raise CallError('wrong_type', message)
  if len(value) > MAX_NAMES:
    message = f'{function} returned {len(value)} names, over {MAX_NAMES}'
    raise CallError('too_large', message)
  for name in value:
    if not is_name(name):
      raise CallError(
          'wrong_type',
          f'{function} returned the name {name!r:.60}; write letters of ASCII,'
          f' digits and underscores, {MAX_NAME} at most',
      )
  return {name: _array(name, item) for name, item in value.items()}


def _array(name, value):
  """Return an array-like of numbers as an array."""
  try:
    array = np.asarray(value)
  except ValueError as error:
    raise CallError('wrong_type', f'{name} is no array: {error}') from error
  if array.dtype.kind not in 'biuf':
    kind = f'{type(value).__name__} of dtype {array.dtype}'
    raise CallError('wrong_type', f'{name} is a {kind}, not numbers')
  if array.nbytes > MAX_ANSWER_BYTES:
    raise CallError('too_large', f'{name} takes {array.nbytes} bytes')
  return array.astype(array.dtype.newbyteorder('='), copy=False)


def _describe(error, name):
  """Return one line: the last line in the function, and the exception."""
  lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == name
  ]
  if isinstance(error, SyntaxError):
    lines = [error.lineno]
  where = f'line {lines[-1]}: ' if lines else ''
  try:
    text = ' '.join(str(error).split())
  # Code of the exception's class makes its text, and may itself raise.
  except BaseException:
    text = ''
  return f'{where}{type(error).__name__}{": " if text else ""}{text}'[:500]
