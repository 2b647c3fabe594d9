"""A filter for log lines of Orbax that tell the user nothing."""

from collections.abc import Callable
import logging as standard_logging
import sys
import warnings

from absl import logging


def hush(debug: Callable[[], bool]) -> None:
  """Suppress messages that repeat the error `checkpoint` raises.

  Without this, after a failed save Orbax logs a traceback per thread, asyncio
  logs each failed task whose result was not read, and each unfinished write
  prints that its event loop is closed. Also suppressed is the remark that there
  are no OCDBT databases to merge, which is so for every checkpoint in another
  format.

  Args:
    debug: Called at each event; returns True if it is to be shown anyway.
  """
  logging.get_absl_handler().addFilter(
      lambda record: debug() or not _is_noise(record)
  )
  hook = sys.unraisablehook

  def unraisable(event):
    if debug() or str(event.exc_value) != 'Event loop is closed':
      hook(event)

  sys.unraisablehook = unraisable
  # Coroutines that were not started because of a failure cause such a warning.
  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')


def _is_noise(record: standard_logging.LogRecord) -> bool:
  if 'Skipping merge of OCDBT checkpoints' in record.msg:
    return True
  return record.levelno >= logging.converter.STANDARD_ERROR and (
      'orbax' in record.pathname or record.name == 'asyncio'
  )
