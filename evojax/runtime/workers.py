"""Processes that answer requests, one at a time each, and are killed when late.

A worker is a script that is started with the number of a socket, over which it
reads and writes one line of JSON per message. It is a fresh interpreter: a fork
would copy the threads and locks of a process that runs JAX.
"""

from collections.abc import Callable, Iterable
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

_CHUNK_BYTES = 1 << 16


def cores() -> int:
  """Return the cores that this process may use; macOS has no affinity."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


class LateError(Exception):
  """A worker did not answer in time, and was killed."""


class DeadError(Exception):
  """A worker ended without an answer."""


class Worker:
  """One process, of a session of its own: Ctrl-C does not reach it."""

  def __init__(self, script: str, *arguments: int):
    ours, theirs = socket.socketpair()
    # Code of the user's own is found as it is here; '' is the working
    # directory.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with theirs:
      self._process = subprocess.Popen(
          # With -P the modules beside the script do not hide others.
          [
              sys.executable,
              '-P',
              script,
              *map(str, (theirs.fileno(), os.getpid(), *arguments)),
          ],
          stdin=subprocess.DEVNULL,
          # What it prints may be text of a policy: nothing for a terminal.
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
          pass_fds=[theirs.fileno()],
          # The devices are the trainer's.
          env=os.environ | {'PYTHONPATH': paths, 'JAX_PLATFORMS': 'cpu'},
          start_new_session=True,
      )
    self._socket, self._rest = ours, b''

  def ask(self, message: Any, timeout_s: float) -> Any:
    """Return the answer to a message.

    Raises:
      LateError: If it takes longer; the process is killed.
      DeadError: If the process ended.
    """
    deadline = time.monotonic() + timeout_s
    left = lambda: max(deadline - time.monotonic(), 1e-3)
    try:
      self._socket.settimeout(left())
      self._socket.sendall(json.dumps(message).encode() + b'\n')
      while b'\n' not in self._rest:
        self._socket.settimeout(left())
        chunk = self._socket.recv(_CHUNK_BYTES)
        if not chunk:
          raise DeadError(self.end())
        self._rest += chunk
        if time.monotonic() > deadline:
          raise TimeoutError
      line, _, self._rest = self._rest.partition(b'\n')
      return json.loads(line)
    except TimeoutError as error:
      self.end()
      raise LateError(f'no answer in {timeout_s:g} s') from error
    except (OSError, ValueError) as error:
      raise DeadError(self.end()) from error

  def end(self) -> str:
    """Kill the process with its children; return how it ended."""
    # Before it is reaped its number cannot be that of another process.
    if self._process.returncode is None:
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(self._process.pid, signal.SIGKILL)
    status = self._process.wait()
    self._socket.close()
    return f'exit status {status}' if status >= 0 else f'signal {-status}'


class Pool:
  """Workers that share the requests of a call."""

  def __init__(self, count: int, start: Callable[[], Worker]):
    """Start nothing yet.

    Args:
      count: Workers at a time.
      start: Returns a worker that is ready.
    """
    self.count, self._start = count, start
    self._lock = threading.Lock()
    self._workers: set[Worker] = set()
    self._executor: concurrent.futures.ThreadPoolExecutor | None = None
    self._own = threading.local()  # The worker of each thread.
    self._closed = False

  def map(
      self, function: Callable[[Any], Any], requests: Iterable[Any]
  ) -> list[Any]:
    """Return `function` of each request, in their order.

    The function may call `ask`. Whatever it raises ends all workers.
    """
    self._closed = False
    if self._executor is None:
      # A worker ends with the thread that started it: threads stay.
      self._executor = concurrent.futures.ThreadPoolExecutor(self.count)
    try:
      return list(self._executor.map(function, requests))
    except BaseException:  # Ctrl-C too: nobody waits for them any more.
      self.close()
      raise

  def open(self) -> None:
    """Start a worker, unless there is one; raises what that raises."""
    self.map(lambda _: self._mine(), [None])

  def _mine(self) -> Worker:
    """Return the worker of the calling thread, started if need be."""
    if self._closed:  # Meanwhile: nothing is started that nobody would end.
      raise concurrent.futures.CancelledError
    worker = getattr(self._own, 'worker', None)
    if worker not in self._workers:
      worker = self._own.worker = self._start()
      with self._lock:
        self._workers.add(worker)
    return worker

  def ask(self, message: Any, timeout_s: float) -> Any:
    """Return the answer of the calling thread's worker, started if need be.

    Raises:
      LateError: If it takes longer.
      DeadError: If the worker ended.
    """
    worker = self._mine()
    try:
      return worker.ask(message, timeout_s)
    except (LateError, DeadError):
      with self._lock:
        self._workers.discard(worker)
      raise

  def close(self) -> None:
    """End all workers; the next call starts others."""
    self._closed = True
    if self._executor is not None:
      self._executor.shutdown(wait=False, cancel_futures=True)
      self._executor = None
    with self._lock:
      workers, self._workers = self._workers, set()
    for worker in workers:
      worker.end()
