"""Sampling beside whatever else the process does."""

from collections.abc import Sequence
import concurrent.futures
from typing import Any

from evojax import types
from evojax.rollout import client
from evojax.rollout import engine as engine_lib


class Ahead:
  """Starts a call of `generate` and takes its result later.

  One at a time. The engine's weights must stay until `wait` returns.
  """

  def __init__(self, engine: engine_lib.Engine | client.SGLangEngine):
    self._engine = engine
    # A thread for an engine of this process; a client has its own.
    self._pool = concurrent.futures.ThreadPoolExecutor(1, 'ahead')
    self._started: Any = None

  def start(self, requests: Sequence[types.Request]) -> None:
    """Returns at once."""
    assert self._started is None
    if isinstance(self._engine, client.SGLangEngine):
      self._started = self._engine.begin(requests)
    else:
      self._started = self._pool.submit(self._engine.generate, requests)

  def wait(self) -> list[types.Completion]:
    """The completions, or the error, of what was started."""
    started, self._started = self._started, None
    if isinstance(self._engine, client.SGLangEngine):
      return self._engine.finish(started)
    return started.result()

  def close(self) -> None:
    """Waits for what still runs, and forgets it."""
    self._pool.shutdown()
