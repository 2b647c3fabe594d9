"""SIGINT (Ctrl-C) and SIGTERM ask a program to save its state and to end.

    listen()                     the first line of a program: a signal ends it
    with stop_flag() as asked:   polled by a run, between two of its steps
      note()                     from here on there is something to save

Until `note` a signal ends the program at once, whatever it is doing: importing,
compiling, or inside a callback whose exceptions are swallowed. After it, the
first signal is left to the code that polls. A second one ends the program at
once in any case. Only the standard library is used, and little of it: this is
imported before anything else.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import os
import signal
import sys
import threading
import time

from evojax.runtime import invocation
from evojax.runtime import wrapping

# Exit code of a process that another start of the same command continues: its
# machine is taken away, or another process of the run is gone. EX_TEMPFAIL of
# sysexits.h; engines take 143, what a shell says of SIGTERM, for a crash.
AGAIN = 75
# Exit code after a signal. Whoever presses Ctrl-C wants no other start.
STATUSES = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: AGAIN}
SIGNALS = tuple(STATUSES)
# A launcher passes on the Ctrl-C that the terminal sent to all of its group.
_SAME_SECONDS = 0.5
# Seconds from SIGTERM to SIGKILL where a machine is taken away, less 5; whoever
# is left behind by its parent has as long to save.
SAVE_SECONDS = 25.0
_FOLLOW_SECONDS = 0.5
# A display that is written again and again hides the cursor.
_SHOW_CURSOR = b'\x1b[?25h'


class Preempted(SystemExit):
  """A signal arrived; the state is saved and the same command continues."""

  def __init__(self, asked: Sequence[int] = ()):
    """Take the exit code of the first signal.

    Args:
      asked: Signals that arrived; none where another host was asked.
    """
    super().__init__(STATUSES[signal.Signals(asked[0])] if asked else AGAIN)


class Interrupted(RuntimeError):
  """A run was asked to stop in the middle of what it can do again later."""


class _Program:
  """The state of this process, as the thread that hears signals sees it."""

  listens = False
  noted = False
  terminated: float | None = None  # When SIGTERM came, on the monotonic clock.
  lock = threading.Lock()  # Held for good by whoever ends the process.

  @staticmethod
  def put_back() -> None:
    """Undo what a start has changed so far."""


def listen() -> None:
  """Answer to signals from here on; call it once, in the main thread.

  A thread hears them: the main one runs Python's handlers between two lines of
  Python only, and an import or a compilation takes seconds.
  """
  hears, told = os.pipe()
  os.set_blocking(told, False)
  for number in SIGNALS:
    signal.signal(number, _wait)
  signal.set_wakeup_fd(told, warn_on_full_buffer=False)
  os.register_at_fork(after_in_child=_forget)
  threading.Thread(target=_hear, args=(hears,), daemon=True).start()
  _Program.listens = True


def _wait(number: int = 0, frame: object = None) -> None:
  """Keep the main thread from changing anything while the program ends."""
  del number, frame
  while not _Program.noted:
    time.sleep(1)


def _forget() -> None:
  """Let signals end a forked child, and not be told to its parent."""
  with contextlib.suppress(ValueError):
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
      signal.signal(number, signal.SIG_DFL)


def _hear(pipe: int) -> None:
  """Answer to each signal; runs in a thread of its own."""
  first = None
  while numbers := os.read(pipe, 1):
    if numbers[0] not in SIGNALS:
      continue
    if first is None:
      first = time.monotonic()
      _end_unless_noted(numbers[0])
    elif time.monotonic() - first > _SAME_SECONDS:
      exit_now(STATUSES[numbers[0]])


def exit_now(status: int) -> None:
  """End the process, and leave the terminal as it was.

  No exception, which a callback could swallow, and no handlers at exit, which
  would wait for what the other threads compute.
  """
  with contextlib.suppress(OSError):
    if os.isatty(1):
      os.write(1, _SHOW_CURSOR)
  os._exit(status)


def _end_unless_noted(number: int) -> None:
  """End the process if there is nothing to save."""
  # The main thread may have been stopped in the middle of `note`.
  _Program.lock.acquire(timeout=1)
  if _Program.noted:
    _Program.lock.release()
    return
  _Program.put_back()
  # The main thread may have been stopped while it was printing.
  flush = threading.Thread(target=sys.stdout.flush, daemon=True)
  flush.start()
  flush.join(timeout=1)
  text = line([number], 'stopped before the first step, nothing has changed')
  lines = ''.join(f'{each}\n' for each in wrapping.wrap(text, wrapping.WIDTH))
  with contextlib.suppress(OSError):
    os.write(2, lines.encode(errors='replace'))
  exit_now(STATUSES[number])


def put_back_with(put_back: Callable[[], None]) -> None:
  """Say what undoes what this start changes, if a signal ends it."""
  _Program.put_back = staticmethod(put_back)


def note() -> None:
  """Leave signals to the code that polls `stop_flag`, from here on."""
  with _Program.lock:
    _Program.noted = True


def follow(parent: int) -> None:
  """Send this process SIGTERM once its parent is gone, and again if need be.

  What is killed must not leave commands that write into its workdir.

  Args:
    parent: Number of the process that started this one.
  """

  def watch() -> None:
    while os.getppid() == parent:
      time.sleep(_FOLLOW_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVE_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)  # The second one ends it at once.

  threading.Thread(target=watch, daemon=True).start()


def seconds_left() -> float:
  """Return the seconds in which this process may save; infinite if any.

  Whoever presses Ctrl-C waits; a machine that is taken away does not.
  """
  if _Program.terminated is None:
    return math.inf
  return _Program.terminated + SAVE_SECONDS - time.monotonic()


def line(asked: list[int], state: str) -> str:
  """Return what to tell the user: signal, what is saved, how to continue.

  Args:
    asked: Signals that arrived; none where another host was asked.
    state: What is saved, as '3 steps are saved in runs/x'.
  """
  name = signal.Signals(asked[0] if asked else signal.SIGTERM).name
  command = invocation.command()
  the_same = f'the same command continues:\n  {command}' if command else ''
  return f'{name}: {state}; {the_same or "the same call continues"}'


@contextlib.contextmanager
def stop_flag() -> Iterator[list[int]]:
  """Yield a list that is non-empty once SIGINT or SIGTERM has arrived."""
  asked: list[int] = []
  old, first = {}, []

  def hear(number: int, frame: object) -> None:
    del frame
    if _Program.listens:
      _wait()
    first.append(time.monotonic())
    if number == signal.SIGTERM and _Program.terminated is None:
      _Program.terminated = first[-1]
    if not asked:
      asked.append(number)
    elif not _Program.listens and first[-1] - first[0] > _SAME_SECONDS:
      # The program that called us has asked twice: it decides what happens.
      signal.signal(number, old[number])
      signal.raise_signal(number)

  # Outside of the main thread it fails: there the embedding program decides.
  with contextlib.suppress(ValueError):
    for number in SIGNALS:
      old[number] = signal.signal(number, hear)
  try:
    yield asked
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)
