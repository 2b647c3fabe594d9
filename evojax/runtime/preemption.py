"""Handling of SIGINT (Ctrl-C) and SIGTERM: save the state, then end.

    listen()                     First line of a program: a signal ends it.
    with stop_flag() as asked:   A run polls the list between two steps.
      note()                     From here on there is something to save.
      until_asked(work)          A signal ends this call.

Before `note`, a signal ends the program at once, even while it imports,
compiles, or runs a callback whose exceptions are swallowed. After `note`, the
first signal is handled by the code that polls. A second signal ends the program
at once in any case. Only a small part of the standard library is used, because
this module is imported before all others.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import os
import signal
import sys
import threading
import time
from typing import Any

from evojax.runtime import invocation
from evojax.runtime import wrapping

# Exit code of a process whose run continues if the same command is started
# again: its machine is preempted, or another process of the run is gone. It is
# EX_TEMPFAIL of sysexits.h, and not 143, the shell's code for SIGTERM, because
# job engines treat that as a crash.
AGAIN = 75
# Exit code after a signal. After Ctrl-C, the run must not be started again.
STATUSES = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: AGAIN}
SIGNALS = tuple(STATUSES)
# A second signal this soon counts as the same one: the terminal sends Ctrl-C to
# the whole process group, and a launcher passes it on once more.
_SAME_SECONDS = 0.5
# Time to save after SIGTERM. A preempted machine sends SIGKILL after 30 s; 5 s
# are a margin. A process that lost its parent has the same time.
SAVE_SECONDS = 25.0
# If a process has not polled within this time after SIGTERM, it prints that it
# has received the signal and why it does not end yet.
_HEARD_SECONDS = 2.0
_FOLLOW_SECONDS = 0.5
# The live progress display hides the cursor.
_SHOW_CURSOR = b'\x1b[?25h'


class Preempted(SystemExit):
  """A signal arrived; the state is saved and the same command continues."""

  def __init__(self, asked: Sequence[int] = ()):
    """Set the exit code according to the first signal.

    Args:
      asked: Signals that arrived; empty if another host received the signal.
    """
    super().__init__(STATUSES[signal.Signals(asked[0])] if asked else AGAIN)


class Interrupted(RuntimeError):
  """A run must stop in the middle of work that can be repeated later."""


class _Left(BaseException):
  """Ends an interrupted call; not an Exception, which the call may catch."""


class _Program:
  """The state of this process that its signal thread and its handler use."""

  listens = False  # `listen` was called.
  noted = False  # `note` was called.
  at_once = False  # `leave_at_once` was called.
  terminated: float | None = None  # When SIGTERM came, on the monotonic clock.
  polled = False  # The main thread has polled since a signal came.
  asked: list[int] | None = None  # The list of the innermost `stop_flag`.
  leavable = False  # The main thread is in a call of `until_asked`,
  left = False  # which a signal has interrupted.
  lock = threading.Lock()  # Never released by the thread that ends the process.

  @staticmethod
  def put_back() -> None:
    """Undo what a start has changed so far."""


def listen() -> None:
  """Handle signals from here on; call it once, in the main thread.

  A separate thread receives them. The main thread runs Python's signal handlers
  only between bytecodes, and a compilation may block it for many seconds.
  """
  read_end, write_end = os.pipe()
  os.set_blocking(write_end, False)
  for number in SIGNALS:
    signal.signal(number, _wait)
  signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
  os.register_at_fork(after_in_child=_forget)
  threading.Thread(target=_receive, args=(read_end,), daemon=True).start()
  _Program.listens = True


def _wait(number: int = 0, frame: object = None) -> None:
  """Block the main thread before `note`, while the signal thread ends it."""
  del number, frame
  while not _Program.noted:
    time.sleep(1)


def _forget() -> None:
  """Restore default signals in a forked child, which shares the pipe."""
  with contextlib.suppress(ValueError):
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
      signal.signal(number, signal.SIG_DFL)


def _receive(pipe: int) -> None:
  """Handle each signal; runs in the signal thread."""
  first = None
  while numbers := os.read(pipe, 1):
    if numbers[0] not in SIGNALS:
      continue
    if first is None:
      first = time.monotonic()
      _end_unless_noted(numbers[0])
      if numbers[0] == signal.SIGTERM:
        threading.Thread(target=_end_if_blocked, daemon=True).start()
    elif time.monotonic() - first > _SAME_SECONDS:
      exit_now(STATUSES[numbers[0]])


class _Asked(list[int]):
  """Signals that have arrived; a truth test in the main thread is a poll."""

  def __bool__(self) -> bool:
    if not len(self):
      return False
    if threading.current_thread() is threading.main_thread():
      _Program.polled = True
    return True


def _end_if_blocked() -> None:
  """End the process if its main thread has not polled in time after SIGTERM.

  It is then in one long call, such as an update of a large policy. There is no
  time left to save, and SIGKILL would end the process without a message. The
  handler's call does not count as a poll: it may precede the long call.
  """
  heard = min(_HEARD_SECONDS, SAVE_SECONDS)
  time.sleep(heard)
  if _Program.polled:
    return
  _say_beside(
      'SIGTERM has arrived. First the call that is running now has to end'
      f'{_doing()}; {SAVE_SECONDS:.0f} s after the signal the run ends without'
      ' another checkpoint'
  )
  time.sleep(SAVE_SECONDS - heard)
  if _Program.polled:
    return
  _say_beside(
      line(
          [signal.SIGTERM],
          f'the main thread was busy for {SAVE_SECONDS:.0f} s{_doing()}, so'
          ' that nothing more is saved; the last checkpoint counts',
      )
  )
  exit_now(AGAIN)


def _doing() -> str:
  """Return ' (in rollout, ...)', the current work, or '' if none is known."""
  # Imported late, as in `_say`, because a start does not need it at first.
  from evojax.runtime import waits

  names = waits.state().names
  return f' (in {", ".join(names)})' if names else ''


def _say_beside(text: str) -> None:
  """Print and log a line while the main thread may hold a stream's lock."""
  say = threading.Thread(target=_say, args=(text,), daemon=True)
  say.start()
  say.join(timeout=1)


def _say(text: str) -> None:
  """Print and log a line."""
  # Imported late: it has many imports, which a run that can continue has made.
  from evojax.runtime import output

  output.say(text, error=True)


def leave_at_once() -> None:
  """Let `leave` end this process: exit handlers of a library may hang."""
  _Program.at_once = True


def leave(status: int) -> None:
  """End the process if `leave_at_once` was called; all else has been saved.

  Args:
    status: Exit status.
  """
  if _Program.at_once:
    sys.stdout.flush()
    sys.stderr.flush()
    exit_now(status)


def exit_now(status: int) -> None:
  """End the process and show the terminal's cursor.

  This raises no exception, because a callback could swallow it, and runs no
  exit handlers, because they would wait for other threads.
  """
  with contextlib.suppress(OSError):
    if os.isatty(1):
      os.write(1, _SHOW_CURSOR)
  os._exit(status)


def _end_unless_noted(number: int) -> None:
  """End the process if there is nothing to save."""
  # Do not wait forever: the main thread may be blocked in the middle of `note`.
  _Program.lock.acquire(timeout=1)
  if _Program.noted:
    _Program.lock.release()
    return
  _Program.put_back()
  # In a thread: the blocked main thread may hold stdout's lock.
  flush = threading.Thread(target=sys.stdout.flush, daemon=True)
  flush.start()
  flush.join(timeout=1)
  text = line([number], 'stopped before the first step, nothing has changed')
  lines = ''.join(f'{each}\n' for each in wrapping.wrap(text, wrapping.WIDTH))
  with contextlib.suppress(OSError):
    os.write(2, lines.encode(errors='replace'))
  exit_now(STATUSES[number])


def put_back_with(put_back: Callable[[], None]) -> None:
  """Register a function that undoes this start's changes after a signal."""
  _Program.put_back = staticmethod(put_back)


def note() -> None:
  """Let the code that polls `stop_flag` handle signals from here on."""
  with _Program.lock:
    _Program.noted = True


def until_asked(work: Callable[[], Any]) -> Any:
  """Return `work()`, unless a signal for `stop_flag` arrives before its end.

  After a signal, the work does not even begin. It stays in this thread, since
  code of the user may need the main thread (for an alarm, an event loop or a
  connection). Outside the main thread, which alone handles signals, it is not
  interrupted.

  Args:
    work: What to call. A signal may end it anywhere, so that it must not change
      what is used afterwards.

  Raises:
    Interrupted: If a signal arrived, even if `work` has caught what ended it.
  """
  if threading.current_thread() is not threading.main_thread():
    return work()
  _Program.left, result = False, None
  try:
    try:
      _Program.leavable = True
      # A signal that came before this line could not interrupt the call.
      if _Program.asked is not None and len(_Program.asked):
        raise Interrupted
      result = work()
    finally:
      _Program.leavable = False
  except BaseException:
    if not _Program.left:  # If True, this error is a result of the signal.
      raise
  if _Program.left:
    raise Interrupted
  return result


def follow(parent: int) -> None:
  """Send this process SIGTERM when its parent has ended, then a second one.

  Otherwise the commands of a killed run would continue to write to its workdir.

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
  """Return the seconds that are left to save; infinite before SIGTERM.

  There is no limit after Ctrl-C, because the user waits.
  """
  if _Program.terminated is None:
    return math.inf
  return _Program.terminated + SAVE_SECONDS - time.monotonic()


@contextlib.contextmanager
def told_if_late(text: str) -> Iterator[None]:
  """Print a line if SIGTERM has arrived and what follows takes too long.

  Args:
    text: End of the line, which begins '25 s after SIGTERM': what is not done
      by then, and what applies instead.
  """
  left = seconds_left()
  if math.isinf(left):
    yield
    return
  after = f'{SAVE_SECONDS:.0f} s after SIGTERM {text}'
  timer = threading.Timer(max(left, 0.0), _say_beside, [after])
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


def line(asked: list[int], state: str) -> str:
  """Return a message for the user: signal, saved state, how to continue.

  Args:
    asked: Signals that arrived; empty if another host received the signal.
    state: The saved state, such as '3 steps are saved in runs/x'.
  """
  name = signal.Signals(asked[0] if asked else signal.SIGTERM).name
  command = invocation.command()
  the_same = f'the same command continues:\n  {command}' if command else ''
  return f'{name}: {state}; {the_same or "the same call continues"}'


@contextlib.contextmanager
def stop_flag() -> Iterator[list[int]]:
  """Yield a list that is not empty once SIGINT or SIGTERM has arrived."""
  asked, outer = _Asked(), _Program.asked
  old, first = {}, []

  def handle(number: int, frame: object) -> None:
    del frame
    if _Program.listens:
      _wait()
    first.append(time.monotonic())
    if number == signal.SIGTERM and _Program.terminated is None:
      _Program.terminated = first[-1]
    if len(asked) == 0:  # Unlike `if asked`, `len` does not count as a poll.
      asked.append(number)
      if _Program.leavable:
        # At once, since it may come before the end of `until_asked`.
        _Program.leavable, _Program.left = False, True
        raise _Left
    elif not _Program.listens and first[-1] - first[0] > _SAME_SECONDS:
      # The second signal in a program that embeds evojax: use its own handler.
      signal.signal(number, old[number])
      signal.raise_signal(number)

  # Handlers can be set only in the main thread; in other threads, those of the
  # embedding program stay.
  with contextlib.suppress(ValueError):
    for number in SIGNALS:
      old[number] = signal.signal(number, handle)
    _Program.asked = asked
  try:
    yield asked
  finally:
    if old:
      _Program.asked = outer
      if outer is None:  # A later run of this process has its full time again.
        _Program.terminated = None
    for number, handler in old.items():
      signal.signal(number, handler)
