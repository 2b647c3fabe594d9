"""Long calls of other code, during which a request to stop is still noticed.

    grades = interruptible.call(lambda: domain.grade_many(...), stopping)
    rewards = interruptible.call_here(lambda: parts(view))

`call` runs in a thread, and the main thread checks from time to time whether
the run is to stop. An abandoned call cannot be killed: its thread continues,
but the exit of this process does not wait for it. `call_here` is for code of
the user, which may need the main thread.
"""

from collections.abc import Callable
import contextvars
import functools
import os
import threading
from typing import Any

from evojax.runtime import daemon_threads
from evojax.runtime import preemption
from evojax.runtime import sharding
from evojax.runtime import waits

# A run must notice SIGTERM within 2 s.
_POLL_SECONDS = 0.5


def call(work: Callable[[], Any], stopping: Callable[[], bool]) -> Any:
  """Return `work()` or raise its error, unless the run is to stop earlier.

  In a run of several processes, all must call this function; each waits until
  the work of all has ended.

  Args:
    work: Called in a thread of its own. It must not use devices.
    stopping: Returns whether this process was asked to stop. All processes call
      it equally often, so that it may exchange arrays.

  Raises:
    preemption.Interrupted: If a process was asked to stop before all had ended.
      The work continues, but its result is dropped.
  """
  results, errors, ended = [], [], threading.Event()
  context = contextvars.copy_context()

  def run() -> None:
    try:
      results.append(context.run(work))
    except BaseException as error:  # pylint: disable=broad-except
      errors.append(error)  # Raised below, in the caller's thread.
    finally:
      ended.set()

  threads = _threads(os.getpid())
  threads.run(run)
  try:
    while _any_works(ended):
      # The exchange must not count as progress, which would hide a hang.
      with waits.uncounted():
        if sharding.in_any_process(stopping()):
          # Other threads of the work, such as those of a pool, would delay the
          # exit.
          preemption.leave_at_once()
          raise preemption.Interrupted
  except BaseException:  # Includes Ctrl-C in a program that embeds evojax.
    threads.replace()
    raise
  if errors:
    raise errors[0]
  return results[0]


def call_here(work: Callable[[], Any]) -> Any:
  """Return `work()`, or raise its error, unless a signal comes before its end.

  Unlike in `call`, the work stays in the main thread, and a signal ends it by
  an exception. In a run of several processes, all must call this function; one
  that got the signal, or whose work failed, waits until the work of all has
  ended. An error is raised in its own process only, see `decisions.agreed`.

  Args:
    work: See `preemption.until_asked`.

  Raises:
    preemption.Interrupted: If a process got a signal.
  """
  left, failed, result = False, None, None
  try:
    result = preemption.until_asked(work)
  except preemption.Interrupted:
    left = True
  except Exception as error:  # pylint: disable=broad-except
    failed = error  # The others wait below.
  if sharding.in_any_process(left):
    raise preemption.Interrupted
  if failed is not None:
    raise failed
  return result


@functools.cache
def _threads(process: int) -> daemon_threads.DaemonThreads:
  """Return the threads of a process; a fork has none of its parent's.

  They are kept, because a child process may end with the thread that started
  it.
  """
  del process
  return daemon_threads.DaemonThreads(1, 'interruptible')


def _any_works(ended: threading.Event) -> bool:
  """Wait briefly for the end; return whether any process still works."""
  here = not ended.wait(_POLL_SECONDS)
  with waits.uncounted():
    return sharding.in_any_process(here)
