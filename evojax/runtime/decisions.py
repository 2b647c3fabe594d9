"""Choices that must be equal in all processes of a run.

Process 0 decides and the others receive its answer, so that all processes take
the same branches and use the devices together.
"""

from collections.abc import Callable
import contextvars
import json
import pickle
from typing import Any, TypeVar

import jax
import numpy as np

from evojax.runtime import sharding

_DECIDING = contextvars.ContextVar('deciding', default=False)
T = TypeVar('T')


def decide(choose: Callable[[], Any]) -> Any:
  """Return process 0's choice in every process; all must call this.

  Args:
    choose: Called in process 0 only. It must not use devices, because the
      other processes would not take part.

  Returns:
    The JSON value that `choose` returned, with tuples as lists.

  Raises:
    RuntimeError: If it is called inside `choose`, where the other processes
      would not take part.
  """
  if _DECIDING.get():
    raise RuntimeError('a decision inside a decision')
  text = b''
  if sharding.is_primary():
    token = _DECIDING.set(True)
    try:
      text = json.dumps(choose(), allow_nan=False).encode()
    finally:
      _DECIDING.reset(token)
  if jax.process_count() > 1:
    # The size is sent first: all processes must pass arrays of equal shape.
    size = int(sharding.broadcast(np.int64(len(text))))
    data = np.zeros(size, np.uint8)
    data[: len(text)] = np.frombuffer(text, np.uint8)
    text = np.asarray(sharding.broadcast(data), np.uint8).tobytes()
  return json.loads(text)


def exchange(work: Callable[[], T]) -> list[T]:
  """Return the results of all processes; if one fails, raise its error in all.

  If only one raised the error, the others would wait for it in their next
  exchange. All processes must call this.

  Args:
    work: Called in every process. Its result can be pickled, and is not an
      exception.

  Returns:
    The results, by process.

  Raises:
    RuntimeError: In place of an error that cannot be pickled, with its text.
  """
  if jax.process_count() == 1:
    return [work()]
  try:
    result: Any = work()
  except Exception as error:  # pylint: disable=broad-except
    result = error
  try:
    data = pickle.dumps(result)
    if isinstance(result, Exception):
      pickle.loads(data)  # Some exceptions cannot be unpickled.
  except Exception:  # pylint: disable=broad-except
    data = pickle.dumps(RuntimeError(f'{type(result).__name__}: {result}'))
  found = [pickle.loads(each) for each in sharding.all_gather(data)]
  for each in found:
    if isinstance(each, Exception):
      raise each
  return found


def agreed(work: Callable[[], T]) -> T:
  """Return `work()`; if it fails in one process, raise the error in all.

  All processes must call this. For errors, see `exchange`.

  Args:
    work: Called in every process; its result stays in the process.
  """
  results: list[T] = []
  exchange(lambda: results.append(work()))
  return results[0]
