"""A filter for log lines of Orbax that tell the user nothing."""

from collections.abc import Callable
import logging as standard_logging
import sys
import warnings

from absl import logging

_EXPECTED = (
    'Skipping merge of OCDBT checkpoints',
    'Global object size logging disabled',
)


def hush(debug: Callable[[], bool]) -> None:
  """Suppress messages that repeat the error `checkpoint` raises.

  Otherwise, after a failed save, Orbax logs a traceback per thread, asyncio
  logs each failed task whose result was not read, and each unfinished write
  prints that its event loop is closed. The warnings that Orbax prints at every
  save of processes without a shared directory are suppressed, too.

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
  # Coroutines that were not started because of a failure cause this warning.
  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')


def _is_noise(record: standard_logging.LogRecord) -> bool:
  if any(part in str(record.msg) for part in _EXPECTED):
    return True
  return record.levelno >= logging.converter.STANDARD_ERROR and (
      'orbax' in record.pathname or record.name == 'asyncio'
  )
