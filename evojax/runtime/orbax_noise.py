"""Log lines of Orbax about a save that failed."""

from collections.abc import Callable
import sys
import warnings

from absl import logging


def hush(debug: Callable[[], bool]) -> None:
  """Leave a failed save to the one error that `checkpoint` raises for it.

  Otherwise Orbax logs a traceback per thread, asyncio logs each failed task
  whose result nobody read, and each unfinished write complains that its event
  loop is gone.

  Args:
    debug: Called at each event; tells if it is to be shown all the same.
  """
  logging.get_absl_handler().addFilter(
      lambda record: debug()
      or record.levelno < logging.converter.STANDARD_ERROR
      or not ('orbax' in record.pathname or record.name == 'asyncio')
  )
  hook = sys.unraisablehook

  def unraisable(event):
    if debug() or str(event.exc_value) != 'Event loop is closed':
      hook(event)

  sys.unraisablehook = unraisable
  # Coroutines that a failure kept from starting complain in the same way.
  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
