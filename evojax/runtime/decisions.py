"""Choices that must be equal in all processes of a run.

Process 0 decides and the others receive its answer, so that all processes take
the same branches and use the devices together.
"""

from collections.abc import Callable
import contextvars
import json
from typing import Any

import jax
import numpy as np

from evojax.runtime import sharding

_DECIDING = contextvars.ContextVar('deciding', default=False)


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
