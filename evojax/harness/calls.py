"""Requests of harness functions to the box; each runs in a fresh process.

The box of this process is started at the first call and ends with the process.
A failure of a function is a status; a failure of the box or of a busy machine
is an `InfraError`, which says nothing about a function.
"""

import ast
import atexit
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from evojax.evidence import schema
from evojax.harness import worker
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe

STATUSES = (
    'crash',
    'hang',
    'wrong_shape',
    'non_finite',
    'wrong_type',
    'too_large',
)
MEMORY_BYTES = 1 << 30
InfraError = box_lib.InfraError

_ATTEMPTS = 3  # Attempts of a call that is late because the machine is busy.
# Seconds of wall time allowed per second of CPU time, since other processes use
# the machine as well.
_PATIENCE = 3.0
_MAX_HEADER_BYTES = 1 << 20
# A source that uses one of these may read any column.
_COMPUTED = '[]'  # Stands for e[name], whatever the name is.
_ANY_COLUMN = frozenset(
    ('columns', 'getattr', 'vars', '__dict__', 'attrgetter', _COMPUTED)
)
# Number of leading arguments of a function that are views of evidence.
_VIEWS = {'parts': 1, 'keep': 1, 'weight': 1, 'measure': 1, 'predict': 2}


class FunctionError(ValueError):
  """A function of a harness failed; there is no number.

  Attributes:
    status: One of STATUSES.
    function: Its file, e.g. 'diagnostics/groups.py'.
    message: One line; it names the line of the source where there is one.
    alone: False where the process died, and other calls with it.
  """

  def __init__(
      self, status: str, function: str, message: str, alone: bool = True
  ):
    super().__init__(f'{function}: {status}: {message}')
    self.status, self.function, self.message = status, function, message
    self.alone = alone


@dataclasses.dataclass(frozen=True)
class Call:
  """One call of one function."""

  path: str  # File in the harness, e.g. 'reward.py'.
  function: str  # parts | init | keep | weight | measure | predict.
  reader: str  # Whose columns it may read: reward | filter | diagnostic.
  views: tuple[Any, ...] = ()  # Evidence views, or what has their attributes.
  state: Mapping[str, np.ndarray] | None = None  # Argument of `keep`.
  # Index of the earlier call in the same request whose answer is the state.
  state_of: int | None = None


def call(
    path: str,
    function: str,
    views: Sequence[Any] = (),
    state: Mapping[str, np.ndarray] | None = None,
    state_of: int | None = None,
) -> Call:
  """Return a call with the reader that its file stands for, see `Call`."""
  reader = {'reward.py': 'reward', 'weight.py': 'reward', 'keep.py': 'filter'}
  return Call(
      path,
      function,
      reader.get(path, 'diagnostic'),
      tuple(views),
      state,
      state_of,
  )


Answer = dict[str, np.ndarray] | FunctionError  # By name; '' is keep's mask.


def limits(
    seconds: float, memory_bytes: int = MEMORY_BYTES
) -> limits_lib.Limits:
  """Return the limits of a request of `seconds` of CPU time."""
  return limits_lib.Limits(
      wall_seconds=_PATIENCE * seconds,
      cpu_seconds=seconds,
      memory_bytes=memory_bytes,
      output_bytes=worker.MAX_ANSWER_BYTES + _MAX_HEADER_BYTES,
  )


@functools.cache
def box(number: int) -> box_lib.Box:
  """Return a box of this process; the gate compares the answers of two.

  Raises:
    probe.WeakSandboxError: If this machine cannot contain untrusted code.
  """
  made = box_lib.Box(
      'pure',
      tier=probe.tier(),
      entry=box_lib.Entry(
          worker.__file__, [str(pathlib.Path(np.__file__).parent.parent)]
      ),
      limits=limits(10.0),
  )
  atexit.register(made.close)
  return made


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
    The answer of each call, arrays of numbers that are not checked further, or
    how it failed. Where the process died before it answered, all calls failed.

  Raises:
    InfraError: If the failure says nothing about the functions.
  """
  result = run(request(files, calls), limits_, number)
  if result.status == 'ok':
    try:
      return _read(result.stdout, calls)
    except (
        AttributeError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):
      # The function wrote to stdout, so nothing on it can be trusted.
      status, message = 'crash', 'the answer cannot be read'
  else:
    status, message = _failure(result, limits_)
  return [FunctionError(status, c.path, message, False) for c in calls]


def run(
    data: bytes, limits_: limits_lib.Limits, number: int = 0
) -> limits_lib.Result:
  """Send one request to the box.

  Raises:
    InfraError: If the failure says nothing about the functions.
  """
  for _ in range(_ATTEMPTS):
    result = box(number).run('', data, limits=limits_)
    if result.status == 'infra_error':  # The box has tried again already.
      break
    if not (result.status == 'timeout' and result.contended):
      return result
  raise InfraError(
      f'a function of the harness got no answer: {result.message}; the same'
      ' command continues the run'
  )


def request(files: Mapping[str, str], calls: Sequence[Call]) -> bytes:
  """Return calls as bytes; a column that several calls need is sent once."""
  views: list[Any] = []
  columns: list[dict[str, int]] = []
  arrays: list[np.ndarray] = []
  headers = []

  def add(array: np.ndarray) -> int:
    arrays.append(array)
    return len(arrays) - 1

  for call in calls:
    evidence = []
    for view in call.views:
      index = next((i for i, v in enumerate(views) if v is view), len(views))
      if index == len(views):
        views.append(view)
        columns.append({'valid': add(view.valid)})
      open_ = open_columns(view, call.reader)
      named = names(files[call.path])
      needed = [n for n in open_ if n in named or reads_all(named)]
      for name in needed:
        if name not in columns[index]:
          columns[index][name] = add(getattr(view, name))
      evidence.append((index, needed, open_))
    headers.append(
        dict(
            file=call.path,
            function=call.function,
            reader=call.reader,
            evidence=evidence,
            state={n: add(a) for n, a in (call.state or {}).items()},
            state_of=call.state_of,
        )
    )
  header = dict(
      files={path: files[path] for path in {call.path for call in calls}},
      calls=headers,
      views=[
          dict(
              max_tokens=int(view.max_tokens),
              codes={name: dict(table) for name, table in view.codes.items()},
              arrays=indices,
          )
          for view, indices in zip(views, columns, strict=True)
      ],
  )
  return worker.pack(header, arrays)


def _read(data: bytes, calls: Sequence[Call]) -> list[Answer]:
  """Return the answers in the bytes of an untrusted process."""
  header, arrays = worker.unpack(data, 'biuf', _MAX_HEADER_BYTES)
  answers: list[Answer] = []
  for call, answer in zip(calls, header['answers'], strict=True):
    if answer['status']:
      if answer['status'] not in STATUSES:
        raise ValueError(answer['status'])
      message = _one_line(str(answer['message']))
      answers.append(FunctionError(answer['status'], call.path, message))
    else:
      found = {n: arrays[i] for n, i in answer['arrays'].items()}
      needed = {'keep': '', 'weight': 'weight'}.get(call.function)
      if needed is not None and needed not in found:
        raise ValueError(f'there is no {needed or "mask"}')
      if (
          len(found) > worker.MAX_NAMES + 1
      ):  # The names of a state and the mask.
        raise ValueError(f'{len(found)} names')
      strange = [n for n in found if n != needed and not worker.is_name(n)]
      if strange:
        raise ValueError(f'{strange[0]!r:.60} is no name')
      answers.append(found)
  return answers


def _failure(
    result: limits_lib.Result, limits_: limits_lib.Limits
) -> tuple[str, str]:
  """Return (status, message) of a process that did not answer."""
  if result.status in ('cpu_limit', 'timeout'):
    return 'hang', f'no answer within {limits_.cpu_seconds:g} s'
  if result.status == 'output_limit':
    return 'too_large', f'returned more than {limits_.output_bytes} bytes'
  return 'crash', f'the process ended: {_one_line(result.message)}'


def _one_line(text: str) -> str:
  """Return text of an untrusted process so that a terminal may print it."""
  text = ' '.join(text.split())[:500]
  if text.isprintable():
    return text
  return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def open_columns(view: Any, reader: str) -> list[str]:
  """Return the columns of a view that a reader may read."""
  closed = {c.name for c in schema.CORE if reader not in c.readers}
  observer = reader == 'diagnostic'
  return [
      name
      for name in view.columns
      if name not in closed
      and (observer or not name.startswith(schema.PART_PREFIX))
  ]


def reads_all(named: frozenset[str]) -> bool:
  """Return whether a source with these names may read any column."""
  return bool(named & _ANY_COLUMN)


@functools.lru_cache(maxsize=256)
def names(source: str) -> frozenset[str]:
  """Return the names, attributes, imports and functions of a source."""
  tree = _parse(source)
  found, evidence = set(), _evidence(tree)
  for node in ast.walk(tree):
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in evidence
        and not isinstance(node.slice, ast.Constant)
    ):
      found.add(_COMPUTED)
    for field in ('id', 'attr', 'name', 'value'):  # e.outcome, e['outcome'].
      value = getattr(node, field, None)
      if isinstance(value, str):
        found.add(value)
  return frozenset(found)


def defines(source: str, function: str) -> bool:
  """Return whether a source defines a function of this name."""
  return any(
      isinstance(node, ast.FunctionDef) and node.name == function
      for node in _parse(source).body
  )


def _evidence(tree: ast.Module) -> frozenset[str]:
  """Return the names of arguments that are evidence: 'e', 'before', ..."""
  found = set()
  for node in tree.body:
    if isinstance(node, ast.FunctionDef) and node.name in _VIEWS:
      arguments = [*node.args.posonlyargs, *node.args.args]
      found.update(a.arg for a in arguments[: _VIEWS[node.name]])
  return frozenset(found)


def _parse(source: str) -> ast.Module:
  """Return the tree of a source, an empty one if it is not Python."""
  try:
    return ast.parse(source)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return ast.Module([], [])  # The worker says what is wrong.
