"""The process that a harness's functions run in; see `run` for the other end.

Run as a script; it imports numpy and nothing of evojax. A request is a line's
worth of JSON behind its length, then raw array bytes; so is an answer. Nothing
is pickled. Every call runs in a fresh namespace: a function remembers nothing
but the state that `keep` returns.
"""

import json
import math
import os
import resource
import signal
import struct
import sys
import traceback

sys.path.append(sys.argv[1])  # Where the parent's numpy is: there is no `site`.

import numpy as np  # noqa: E402

MEMORY_BYTES = 2 << 30
MAX_ANSWER_BYTES = 64 << 20
_LENGTH = struct.Struct('<I')


class CallError(Exception):
  """A function answered with something that is none; has a status."""

  def __init__(self, status, message):
    super().__init__(message)
    self.status = status


class Evidence:
  """Read-only columns of P groups of G completions; what a function calls e."""

  def __init__(self, view, needed, columns, reader):
    """needed: the columns that the source names; columns: all open ones."""
    values = self.__dict__
    values.update({name: view['arrays'][name] for name in needed})
    values['valid'] = view['arrays']['valid']
    values['max_tokens'] = view['max_tokens']
    values['columns'] = tuple(columns)
    values['codes'] = {
        name: dict(table)
        for name, table in view['codes'].items()
        if name in columns
    }
    values['_reader'] = reader

  def __setattr__(self, name, value):
    raise AttributeError(f'evidence is read-only: {name} cannot be set')

  def __delattr__(self, name):
    raise AttributeError(f'evidence is read-only: {name} cannot be deleted')

  def __getattr__(self, name):
    if name.startswith('_'):
      raise AttributeError(name)
    raise AttributeError(
        f'evidence {name!r} is not there for a {self._reader}; it may read'
        f' {", ".join(self.columns)}'
    )


class Worker:
  """Sources, views and the pipes to the parent."""

  def __init__(self, requests, answers):
    self._requests, self._answers = requests, answers
    self._code, self._views = {}, {}

  def serve(self):
    """Answers until the parent closes its end or is gone."""
    while True:
      head = self._requests.read(_LENGTH.size)
      if len(head) < _LENGTH.size:
        return
      request = json.loads(self._requests.read(_LENGTH.unpack(head)[0]))
      for view in request['views']:
        self._receive_view(view)
      self._views = {
          key: view
          for key, view in self._views.items()
          if key in request['alive']
      }
      state = self._receive_arrays(request['state'])
      header, arrays = self._outcome(request, state)
      self._answer({'call': request['call'], **header}, arrays)

  def _receive_arrays(self, layout):
    """Read-only arrays: their bytes belong to no one else."""
    arrays = {}
    for name, dtype, shape in layout:
      dtype = np.dtype(dtype)
      size = dtype.itemsize * math.prod(shape)
      # An empty text column has itemsize 0, which frombuffer refuses.
      arrays[name] = (
          np.frombuffer(self._requests.read(size), dtype).reshape(shape)
          if size
          else np.zeros(shape, dtype)
      )
      arrays[name].flags.writeable = False
    return arrays

  def _receive_view(self, header):
    view = self._views.setdefault(
        header['key'],
        {
            'arrays': {},
            'max_tokens': header['max_tokens'],
            'codes': header['codes'],
        },
    )
    view['arrays'].update(self._receive_arrays(header['arrays']))

  def _outcome(self, request, state):
    """(header, arrays) of the answer, whatever the function does."""
    name = request['file']
    _limit_seconds(request['limit_seconds'])
    try:
      arrays = self._call(request, state)
      size = sum(array.nbytes for array in arrays.values())
      if size > MAX_ANSWER_BYTES:
        raise CallError('too_large', f'returned {size} bytes')
      return {'status': '', 'message': ''}, arrays
    except CallError as error:
      return {'status': error.status, 'message': str(error)}, {}
    # The one place where anything may happen: the function is not ours. What
    # it raised, SystemExit included, is told to the parent.
    except BaseException as error:  # noqa: B036
      return {'status': 'crash', 'message': _describe(error, name)}, {}
    finally:
      signal.setitimer(signal.ITIMER_REAL, 0)

  def _call(self, request, state):
    """Runs a function; returns its arrays by name."""
    name, function = request['file'], request['function']
    if name not in self._code:
      self._code[name] = compile(request['source'], name, 'exec')
    namespace = {'__name__': 'harness', '__builtins__': __builtins__}
    exec(self._code[name], namespace)
    if not callable(namespace.get(function)):
      raise CallError('wrong_type', f'there is no function {function}')
    arguments = [
        Evidence(self._views[key], needed, columns, request['reader'])
        for key, needed, columns in request['evidence']
    ]
    if function == 'keep':
      arguments.append(state)
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

  def _answer(self, header, arrays):
    """Sends a header and the arrays."""
    header['arrays'] = [
        (name, array.dtype.str, array.shape) for name, array in arrays.items()
    ]
    text = json.dumps(header).encode()
    self._answers.write(_LENGTH.pack(len(text)) + text)
    for array in arrays.values():
      self._answers.write(np.ascontiguousarray(array).tobytes())
    self._answers.flush()


def _limit_seconds(seconds):
  """The parent kills a late worker; these do where there is no parent left."""
  signal.setitimer(signal.ITIMER_REAL, seconds + 2)
  used = resource.getrusage(resource.RUSAGE_SELF)
  cpu = math.ceil(used.ru_utime + used.ru_stime + seconds + 2)
  _, hard = resource.getrlimit(resource.RLIMIT_CPU)
  if hard != resource.RLIM_INFINITY:
    cpu = min(cpu, hard)
  resource.setrlimit(resource.RLIMIT_CPU, (cpu, hard))


def _named(value, function):
  """A dict of arrays by name."""
  if not isinstance(value, dict):
    raise CallError(
        'wrong_type', f'{function} returned {type(value).__name__}, not a dict'
    )
  for name in value:
    if not isinstance(name, str) or not name.isidentifier():
      raise CallError(
          'wrong_type', f'{function} returned the name {name!r:.60}'
      )
  return {name: _array(name, item) for name, item in value.items()}


def _array(name, value):
  """Anything array-like of numbers as an array."""
  try:
    array = np.asarray(value)
  except ValueError as error:
    raise CallError('wrong_type', f'{name} is no array: {error}') from error
  if array.dtype.kind not in 'biuf':
    kind = type(value).__name__
    raise CallError(
        'wrong_type', f'{name} is a {kind} of dtype {array.dtype}, not numbers'
    )
  if array.nbytes > MAX_ANSWER_BYTES:
    raise CallError('too_large', f'{name} takes {array.nbytes} bytes')
  return array.astype(array.dtype.newbyteorder('='), copy=False)


def _describe(error, name):
  """One line: the last line of the function's own, and what it raised."""
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
  # The exception may be the function's own class.
  except BaseException:  # noqa: B036
    text = ''
  return f'{where}{type(error).__name__}{": " if text else ""}{text}'[:500]


def _restrict():
  """Limits that hold for the life of the process."""
  for limit, value in (
      (resource.RLIMIT_AS, MEMORY_BYTES),
      (resource.RLIMIT_FSIZE, 0),
      (resource.RLIMIT_CORE, 0),
      (resource.RLIMIT_NPROC, 0),  # No other process, no thread.
  ):
    try:
      resource.setrlimit(limit, (value, value))
    except (ValueError, OSError):  # macOS does not limit address space.
      pass


def main():
  # The pipes go where no print reaches them.
  requests, answers = os.dup(0), os.dup(1)
  null = os.open(os.devnull, os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  _restrict()
  worker = Worker(os.fdopen(requests, 'rb'), os.fdopen(answers, 'wb'))
  worker._answer({}, {})  # Ready.
  os.dup2(null, 2)
  worker.serve()


if __name__ == '__main__':
  main()
