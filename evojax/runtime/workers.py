"""Worker processes that answer requests and are killed if they are late.

A worker is a script that gets the number of a socket as an argument. Over the
socket it reads and writes one line of JSON per message, one request at a time.
It runs in a new interpreter, because a fork would copy the threads and locks of
a process that runs JAX.
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


class LateError(Exception):
  """A worker did not answer in time, and was killed."""


class DeadError(Exception):
  """A worker ended without an answer."""


class Worker:
  """One worker process, in its own session so that Ctrl-C does not reach it."""

  def __init__(self, script: str, *arguments: int):
    ours, theirs = socket.socketpair()
    # With these paths the worker finds the user's own code as this process
    # does; '' in sys.path means the working directory.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with theirs:
      self._process = subprocess.Popen(
          # With -P, modules in the script's folder do not hide others.
          [
              sys.executable,
              '-P',
              script,
              *map(str, (theirs.fileno(), os.getpid(), *arguments)),
          ],
          stdin=subprocess.DEVNULL,
          # Its output may contain text of a policy, which must not reach a
          # terminal.
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
          pass_fds=[theirs.fileno()],
          # Only the trainer may use the devices.
          env=os.environ | {'PYTHONPATH': paths, 'JAX_PLATFORMS': 'cpu'},
          start_new_session=True,
      )
    self._socket, self._rest = ours, b''

  def ask(self, message: Any, timeout_s: float) -> Any:
    """Send a message and return the answer.

    Raises:
      LateError: If there is no answer in time; the process is killed.
      DeadError: If the process ended without an answer, or the answer is not
        JSON; the process is killed if it still runs.
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
    """Kill the process with its children; return its status as text."""
    # Kill only a process that was not reaped: later, another process may have
    # its number.
    if self._process.returncode is None:
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(self._process.pid, signal.SIGKILL)
    status = self._process.wait()
    self._socket.close()
    return f'exit status {status}' if status >= 0 else f'signal {-status}'


class Pool:
  """A pool of workers that share the requests of a call."""

  def __init__(self, count: int, start: Callable[[], Worker]):
    """Create a pool; workers are started when they are needed.

    Args:
      count: Number of workers.
      start: Starts a worker and returns it when it is ready.
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
    """Return `function(request)` for each request, in order.

    The function may call `ask`. If it raises, all workers are ended.
    """
    self._closed = False
    if self._executor is None:
      # The threads are kept, because a worker ends with the thread that started
      # it.
      self._executor = concurrent.futures.ThreadPoolExecutor(self.count)
    try:
      return list(self._executor.map(function, requests))
    except BaseException:  # Includes Ctrl-C: the answers are not needed.
      self.close()
      raise

  def open(self) -> None:
    """Start a worker unless there is one; its errors are raised here."""
    self.map(lambda _: self._mine(), [None])

  def _mine(self) -> Worker:
    """Return the worker of the calling thread; start it if there is none."""
    if self._closed:  # `close` would not end a worker that starts now.
      raise concurrent.futures.CancelledError
    worker = getattr(self._own, 'worker', None)
    if worker not in self._workers:
      worker = self._own.worker = self._start()
      with self._lock:
        self._workers.add(worker)
    return worker

  def ask(self, message: Any, timeout_s: float) -> Any:
    """Return the answer of the calling thread's worker; start it if needed.

    Raises:
      LateError: If there is no answer in time.
      DeadError: If the worker ended without an answer.
    """
    worker = self._mine()
    try:
      return worker.ask(message, timeout_s)
    except (LateError, DeadError):
      with self._lock:
        self._workers.discard(worker)
      raise

  def close(self) -> None:
    """End all workers; the next call of `map` starts new ones."""
    self._closed = True
    if self._executor is not None:
      self._executor.shutdown(wait=False, cancel_futures=True)
      self._executor = None
    with self._lock:
      workers, self._workers = self._workers, set()
    for worker in workers:
      worker.end()
