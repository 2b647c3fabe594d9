"""A pool of threads that do not delay the exit of the process.

Python joins the threads of concurrent.futures at exit, so that work that never
ends would keep the process alive.
"""

from collections.abc import Callable
import queue
import threading


class DaemonThreads:
  """Up to `most` daemon threads; one that hangs can be replaced."""

  def __init__(self, most: int, name: str):
    self._name = name
    self._most, self._count, self._idle = most, 0, threading.Semaphore(0)
    self._work: queue.SimpleQueue[Callable[[], None] | None] = (
        queue.SimpleQueue()
    )

  def run(self, work: Callable[[], None]) -> None:
    """Run `work`, which must not raise, as soon as a thread is free."""
    self._work.put(work)
    if not self._idle.acquire(blocking=False) and self._count < self._most:
      self._start()

  def replace(self) -> None:
    """Start another thread in place of one whose work may never end."""
    self._most += 1
    self._start()

  def end(self) -> None:
    """Let the threads end once their work is done."""
    for _ in range(self._count):
      self._work.put(None)

  def _start(self) -> None:
    self._count += 1
    threading.Thread(target=self._loop, name=self._name, daemon=True).start()

  def _loop(self) -> None:
    while (work := self._work.get()) is not None:
      work()
      self._idle.release()
