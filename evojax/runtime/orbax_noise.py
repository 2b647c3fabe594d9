"""A filter for Orbax's log lines about a failed save."""

from collections.abc import Callable
import sys
import warnings

from absl import logging


def hush(debug: Callable[[], bool]) -> None:
  """Suppress messages that repeat the error `checkpoint` raises.

  Without this, after a failed save Orbax logs a traceback per thread, asyncio
  logs each failed task whose result was not read, and each unfinished write
  prints that its event loop is closed.

  Args:
    debug: Called at each event; returns True if it is to be shown anyway.
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
  # Coroutines that were not started because of a failure cause such a warning.
  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
