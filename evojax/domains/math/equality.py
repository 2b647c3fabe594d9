"""Equality of expressions under a hard time limit.

The comparison runs in a child process, which is started on first use and killed
when it is late. A signal would not do, because it can interrupt neither a
thread other than the main one nor a long multiplication inside C. A fork would
copy the threads and locks of a process that runs JAX. The child gets trees,
never text to evaluate, and its memory is limited.
"""

import atexit
import json
import pathlib
import selectors
import subprocess
import sys
import threading

from evojax.domains.math import expressions

TIMEOUT_S = 2.0  # For one comparison, which usually takes milliseconds.
_START_S = 60.0  # For importing sympy on a busy machine.
_WORKER = pathlib.Path(__file__).with_name('equality_worker.py')


class Comparer:
  """A child process that compares expressions, safe to share by threads."""

  def __init__(self, timeout_s: float = TIMEOUT_S):
    self._timeout_s = timeout_s
    self._lock = threading.Lock()
    self._process: subprocess.Popen[bytes] | None = None

  def compare(self, a: expressions.Tree, b: expressions.Tree) -> str:
    """Return 'equal', 'different', 'undefined' (no value), or 'timeout'.

    If the child dies during the comparison, e.g. without memory, the result is
    'undefined' and the next call starts another child.

    Raises:
      RuntimeError: If the child cannot be started.
    """
    request = json.dumps({'a': a, 'b': b}).encode() + b'\n'
    with self._lock:
      if self._process is None or self._process.poll() is not None:
        self._start()
      try:
        self._process.stdin.write(request)
        self._process.stdin.flush()
        answer = self._read(self._timeout_s)
      except BrokenPipeError:
        answer = ''
      if answer in ('', None):
        self._stop()
      return 'timeout' if answer is None else answer or 'undefined'

  def close(self) -> None:
    """End the child."""
    with self._lock:
      self._stop()

  def _start(self) -> None:
    self._process = subprocess.Popen(
        # With -P the modules beside the worker cannot shadow the library's.
        [sys.executable, '-P', str(_WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    answer = self._read(_START_S)
    if answer != 'ready':
      self._stop()
      raise RuntimeError(
          f'the process that compares expressions did not start: {_WORKER}'
          f' answered {answer!r}; is sympy installed for {sys.executable}?'
      )

  def _read(self, timeout_s: float) -> str | None:
    """Read one line: '' at the end of the stream, None when time is up."""
    with selectors.DefaultSelector() as selector:
      selector.register(self._process.stdout, selectors.EVENT_READ)
      if not selector.select(timeout_s):
        return None
    return self._process.stdout.readline().decode().strip()

  def _stop(self) -> None:
    if self._process is not None:
      self._process.kill()
      self._process.wait()
      self._process.stdin.close()
      self._process.stdout.close()
      self._process = None


_comparer = Comparer()
atexit.register(_comparer.close)


def compare(a: expressions.Tree, b: expressions.Tree) -> str:
  """Compare in the one child of this process, see `Comparer.compare`."""
  return _comparer.compare(a, b)
