"""Requests to run harness functions in the box (`sandbox.box`).

Each request runs in a fresh process. This process's box is started at the first
call and ends with the process. A failure of a function is a status. If the
machine is so busy that a call gets less CPU time than its limit, the call is
repeated with more wall time, so that the result does not depend on the load; a
call that was late in every attempt has the status BUSY, which says nothing
about the function. A failure of the box is an `InfraError`.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from evojax.evidence import schema
from evojax.harness import worker
from evojax.runtime import python_source
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe
from evojax.sandbox import shared

BUSY = 'busy'  # Every attempt got less CPU time than its limit.
STATUSES = tuple(
    'crash hang wrong_shape non_finite wrong_type too_large'.split() + [BUSY]
)
MEMORY_BYTES = 1 << 30
InfraError = box_lib.InfraError

# Wall time allowed per second of CPU time, since other processes use the
# machine too. The first is for the first attempt, the others for further
# attempts of a call that had to wait for a core and did not get all of its CPU
# time.
_PATIENCE = (3.0, 12.0, 48.0, 192.0)
# The header of an answer has one entry per call, with array names and shapes.
_MAX_HEADER_BYTES, _MAX_ENTRY_BYTES = 1 << 20, 32 << 10
# Errors from parsing forged bytes, except those from large or deep ones.
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)
# A source with a computed column name may read any column.
_COMPUTED = '[]'  # Stands for e[name] with a computed name.
_ANY_COLUMN = frozenset(
    ('columns', 'getattr', 'vars', '__dict__', 'attrgetter', _COMPUTED)
)
_READERS = {'reward.py': 'reward', 'weight.py': 'reward', 'keep.py': 'filter'}
# Number of leading arguments of a function that are views of evidence.
_VIEWS = {'parts': 1, 'keep': 1, 'weight': 1, 'measure': 1, 'predict': 2}


class FunctionError(ValueError):
  """A function of a harness failed; there is no number.

  Attributes:
    status: One of STATUSES.
    function: Its file, e.g. 'diagnostics/groups.py'.
    message: One line; it includes the source line if one is known.
    alone: False if the process died, so that other calls failed with it.
  """

  def __init__(
      self, status: str, function: str, message: str, *, alone: bool = True
  ):
    # All three, so that it can be pickled and sent to other processes.
    super().__init__(status, function, message)
    self.status, self.function, self.message = status, function, message
    self.alone = alone

  def __str__(self) -> str:
    return f'{self.function}: {self.status}: {self.message}'


@dataclasses.dataclass(frozen=True)
class Call:
  """One call of one function."""

  path: str  # File in the harness, e.g. 'reward.py'.
  function: str  # parts | init | keep | weight | measure | predict.
  # Evidence views, or objects with their attributes.
  views: Sequence[Any] = ()
  # State argument of `keep`. An int is the index of an earlier call in the same
  # request whose answer is the state. (index, n): the state after n repetitions
  # of that call, which has `times`.
  state: Mapping[str, np.ndarray] | int | tuple[int, int] | None = None
  # None: one call. n: `keep` is called up to n times, each time with the state
  # of the previous call; every array of the answer has a first axis of calls.
  # The calls end early once a state equals the previous one.
  times: int | None = None

  @property
  def reader(self) -> str:
    """The reader that it counts as: reward | filter | diagnostic."""
    return _READERS.get(self.path, 'diagnostic')


Answer = dict[str, np.ndarray] | FunctionError  # By name; '' is the mask.


def limits(
    seconds: float, memory_bytes: int = MEMORY_BYTES
) -> limits_lib.Limits:
  """Return the limits of a request of `seconds` of CPU time."""
  return limits_lib.Limits(
      wall_seconds=_PATIENCE[0] * seconds,
      cpu_seconds=seconds,
      memory_bytes=memory_bytes,
      output_bytes=worker.MAX_ANSWER_BYTES + _MAX_HEADER_BYTES,
  )


def box(number: int) -> box_lib.Box:
  """Return a box of this process; the gate compares the answers of two.

  Raises:
    probe.WeakSandboxError: If this machine cannot contain untrusted code.
  """
  return shared.opened(_box, number)


def _box(number: int) -> box_lib.Box:
  del number  # It only distinguishes the cached boxes.
  packages = str(pathlib.Path(np.__file__).parent.parent)
  entry = box_lib.Entry(worker.__file__, [packages])
  most = limits(10.0)
  return box_lib.Box('pure', tier=probe.tier(), entry=entry, limits=most)


def exchange(
    files: Mapping[str, str],
    calls: Sequence[Call],
    limits_: limits_lib.Limits,
    number: int = 0,
) -> list[Answer]:
  """Call functions one after the other in one fresh process.

  Args:
    files: Sources by path.
    calls: The functions and their arguments.
    limits_: Limits of all calls together.
    number: The box to use, see `box`.

  Returns:
    The answer of each call: arrays of numbers, not checked further, or its
    error. If the process died before it answered, all calls failed.

  Raises:
    InfraError: If the failure says nothing about the functions.
  """
  result = run(request(files, calls), limits_, number)
  match result.status:
    case 'ok':
      try:
        return _read(result.stdout, calls)
      except (*_UNREADABLE, OverflowError, RecursionError):
        # The function wrote to stdout, so none of the output can be trusted.
        status, message = 'crash', 'the answer cannot be read'
    case 'timeout' if result.contended:
      status, message = BUSY, (
          f'it needs more CPU time than a busy machine gave it in'
          f' {len(_PATIENCE)} tries; nothing is wrong with it as far as is'
          ' known: propose it again, or make it cheaper with array operations'
      )
    case 'cpu_limit' | 'timeout':
      status, message = 'hang', f'no answer within {limits_.cpu_seconds:g} s'
    case 'output_limit':
      status = 'too_large'
      message = f'returned more than {limits_.output_bytes} bytes'
    case _:
      status = 'crash'
      message = f'the process ended: {_one_line(result.message)}'
  return [FunctionError(status, c.path, message, alone=False) for c in calls]


def run(
    data: bytes, limits_: limits_lib.Limits, number: int = 0
) -> limits_lib.Result:
  """Send one request to the box.

  A call that uses up its CPU time is ended by that limit, and one that sleeps
  by the first limit of wall time, however busy the machine is. A call that is
  late because it had to wait for a core is repeated with more wall time.

  Raises:
    InfraError: If the failure says nothing about the functions.
  """
  for patience in _PATIENCE:
    wall = patience * limits_.cpu_seconds
    limits_ = dataclasses.replace(limits_, wall_seconds=wall)
    result = box(number).run('', data, limits=limits_)
    if result.status == 'infra_error':  # The box has already retried it.
      raise InfraError(
          f'a function of the harness got no answer: {result.message}; the same'
          ' command continues the run'
      )
    if not (result.status == 'timeout' and result.contended):
      break
  return result


def request(files: Mapping[str, str], calls: Sequence[Call]) -> bytes:
  """Return calls as bytes; a column that several calls need is sent once."""
  # Identity of a view -> the view, and the index of each of its columns.
  views: dict[int, tuple[Any, dict[str, int]]] = {}
  order: dict[int, int] = {}  # Identity of a view -> its number.
  arrays: list[np.ndarray] = []
  headers = []
  # Calls often share the columns that a file needs and may read, and the code
  # tables, so that each is sent only once.
  readers: dict[tuple[str, tuple[str, ...]], int] = {}
  columns: list[tuple[list[str], list[str]]] = []
  tables: dict[int, int] = {}
  codes: list[dict[str, dict[str, int]]] = []
  for call in calls:
    evidence = []
    for view in call.views:
      _, places = views.setdefault(id(view), (view, {}))
      order.setdefault(id(view), len(order))
      key = call.path, tuple(view.columns)
      if key not in readers:
        open_ = open_columns(view, call.reader)
        readers[key] = len(columns)
        columns.append((read(files[call.path], open_), open_))
      for name in ('valid', *columns[readers[key]][0]):
        if name not in places:
          places[name] = _add(getattr(view, name), arrays)
      evidence.append((order[id(view)], readers[key]))
    state = call.state
    if not isinstance(state, int | tuple):
      state = {k: _add(array, arrays) for k, array in (state or {}).items()}
    headers.append(
        dict(
            file=call.path,
            function=call.function,
            reader=call.reader,
            evidence=evidence,
            state=state,
            times=call.times,
        )
    )
  for view, _ in views.values():
    if id(view.codes) not in tables:
      tables[id(view.codes)] = len(codes)
      codes.append({name: dict(table) for name, table in view.codes.items()})
  header = dict(
      files={call.path: files[call.path] for call in calls},
      calls=headers,
      columns=columns,
      codes=codes,
      views=[
          dict(
              max_tokens=int(view.max_tokens),
              codes=tables[id(view.codes)],
              arrays=places,
          )
          for view, places in views.values()
      ],
  )
  return worker.pack(header, arrays)


def _add(array: np.ndarray, arrays: list[np.ndarray]) -> int:
  """Append an array and return its index."""
  arrays.append(array)
  return len(arrays) - 1


def _read(data: bytes, calls: Sequence[Call]) -> list[Answer]:
  """Return the answers in the bytes of an untrusted process."""
  most = _MAX_HEADER_BYTES + _MAX_ENTRY_BYTES * len(calls)
  header, arrays = worker.unpack(data, 'biuf', most)
  answers: list[Answer] = []
  for call, answer in zip(calls, header['answers'], strict=True):
    if status := answer['status']:
      if status not in STATUSES:
        raise ValueError(status)
      message = _one_line(str(answer['message']))
      answers.append(FunctionError(status, call.path, message))
      continue
    found = {n: arrays[i] for n, i in answer['arrays'].items()}
    needed = {'keep': '', 'weight': 'weight'}.get(call.function)
    if needed is not None and needed not in found:
      raise ValueError(f'there is no {needed or "mask"}')
    if len(found) > worker.MAX_NAMES + 1:  # The names of a state, and the mask.
      raise ValueError(f'{len(found)} names')
    if any(n != needed and not worker.is_name(n) for n in found):
      raise ValueError(f'{list(found)!r:.60}: not all are names')
    answers.append(found)
  return answers


def _one_line(text: str) -> str:
  """Return text of an untrusted process as a line safe for a terminal."""
  text = ' '.join(text.split())[:500]
  return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def open_columns(view: Any, reader: str) -> list[str]:
  """Return the columns of a view that a reader may read."""
  closed = {c.name for c in schema.CORE if reader not in c.readers}
  if reader != 'diagnostic':
    closed |= {n for n in view.columns if n.startswith(schema.PART_PREFIX)}
  return [name for name in view.columns if name not in closed]


def read(source: str, columns: Iterable[str]) -> list[str]:
  """Return the columns that a source may read."""
  named = names(source)
  return [name for name in columns if name in named or reads_all(named)]


def reads_all(named: frozenset[str]) -> bool:
  """Return whether a source with these names may read any column."""
  return bool(named & _ANY_COLUMN)


@functools.lru_cache(maxsize=256)
def names(source: str) -> frozenset[str]:
  """Return the names, attributes, imports and functions of a source."""
  tree = _parse(source)
  # The names of the arguments that are evidence: 'e', 'before', ...
  evidence = set()
  for node in tree.body:
    if isinstance(node, ast.FunctionDef):
      arguments = [*node.args.posonlyargs, *node.args.args]
      evidence |= {a.arg for a in arguments[: _VIEWS.get(node.name, 0)]}
  found = set()
  for node in ast.walk(tree):
    match node:
      case ast.Subscript(value=ast.Name(id=name), slice=index):
        if name in evidence and not isinstance(index, ast.Constant):
          found.add(_COMPUTED)
    for field in ('id', 'attr', 'name', 'value'):  # e.outcome, e['outcome'].
      if isinstance(value := getattr(node, field, None), str):
        found.add(value)
  return frozenset(found)


def function_of(path: str) -> str:
  """Return the function that a file defines: parts, keep, weight, ..."""
  if path.startswith('diagnostics/'):
    return 'measure'
  functions = {'reward.py': 'parts', 'keep.py': 'keep', 'weight.py': 'weight'}
  return functions.get(path, 'predict')


def defines(source: str, function: str) -> bool:
  """Return whether a source defines a function of this name."""
  return any(
      isinstance(node, ast.FunctionDef) and node.name == function
      for node in _parse(source).body
  )


def _parse(source: str) -> ast.Module:
  """Return the tree of a source; an empty one if it is not valid Python."""
  try:
    return python_source.parse(source)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return ast.Module([], [])  # The worker reports the error.
