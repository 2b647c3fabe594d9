"""Printing with lines wrapped at words and copied to the log of a run.

    say('A sentence of any length.')  # error=True: to stderr.
    console().print(table)            # Tables of rich.
    with log_to(workdir): ...         # Both also go to workdir/log.txt.

All output of a run goes through this module, so that lines fit 80 columns and
the log contains all of them.
"""

import collections
from collections.abc import Iterator
import contextlib
import datetime
import io
import os
import pathlib
import re
import shlex
import sys

from rich import console as console_lib

from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import run_files
from evojax.runtime import wrapping

_STAMP = '%H:%M:%S '
_MARGIN = len('22:14:05 ')
LOGGED = wrapping.WIDTH - _MARGIN  # Columns of a text in the log.
_END = 8192  # Bytes at the end of a log in which its last entry is sought.
_ERROR = re.compile(r'\d\d:\d\d:\d\d (\w+Error: .*)')
_ESCAPES = re.compile(r'\x1b\[[0-?]*[ -/]*[@-~]')

for _stream in (sys.stdout, sys.stderr):
  # A character that the terminal's encoding lacks must not end a run.
  if isinstance(_stream, io.TextIOWrapper) and _stream.errors == 'strict':
    _stream.reconfigure(errors='replace')


def width() -> int:
  """Return the columns of a line: 80, or fewer in a narrower terminal."""
  try:
    columns = os.get_terminal_size(sys.__stdout__.fileno()).columns
  except (OSError, ValueError, AttributeError):  # No terminal, or no stdout.
    columns = 0
  return min(columns or wrapping.WIDTH, wrapping.WIDTH)


def say(
    text: str = '', *, error: bool = False, logged: str | None = None
) -> None:
  """Print a text to stdout, or as an error to stderr; log it.

  Args:
    text: One or more lines of any length.
    error: True to print to stderr.
    logged: The text for the log; None: the same text.
  """
  stream = sys.stderr if error else sys.stdout
  text = mirror.shown(text)
  print('\n'.join(wrapping.wrap(text, width())), file=stream, flush=True)
  log(text if logged is None else logged)


def log(text: str) -> None:
  """Write a text to the log without printing it."""
  lines = wrapping.wrap(mirror.shown(text), LOGGED)
  _log.add(f'\n{" " * _MARGIN}'.join(lines))


def console() -> console_lib.Console:
  """Return a console of rich whose output is logged, too."""
  return console_lib.Console(file=_Tee(), highlight=False, width=width())


@contextlib.contextmanager
def log_to(workdir: pathlib.Path) -> Iterator[None]:
  """Log all output, and an error that ends the run, to a workdir."""
  _log.open(workdir / run_files.LOG)
  try:
    yield
  except Exception as error:
    log(f'{type(error).__name__}: {error}')
    raise
  finally:
    _log.close()


def last_error(workdir: pathlib.Path) -> str:
  """Return the error that ended a run's last process; '' if none is logged."""
  try:
    end = (workdir / run_files.LOG).read_bytes()[-_END:]
  except OSError:
    return ''
  *_, last = re.split(r'\n(?=\d\d:\d\d:\d\d )', end.decode(errors='replace'))
  found = _ERROR.match(' '.join(last.split()))
  return found[1] if found else ''


class _Tee(io.TextIOBase):
  """A stream that prints and logs."""

  @property
  def encoding(self) -> str | None:
    return sys.stdout.encoding

  def isatty(self) -> bool:
    return sys.stdout.isatty()

  def write(self, text: str) -> int:
    sys.stdout.write(text)
    sys.stdout.flush()
    plain = _ESCAPES.sub('', text).strip('\n')
    if plain.count('\n'):  # Below the time stamp, a table keeps its columns.
      _log.add('\n' + '\n'.join(map(str.rstrip, plain.split('\n'))))
    elif plain:
      log(plain)
    return len(text)


class _Log:
  """The log of this process; it buffers entries until the file is open."""

  def __init__(self):
    self._fd: int | None = None
    self._day = ''
    # Entries from before the workdir was opened; they belong to its log, too.
    self._early: collections.deque[tuple[datetime.datetime, str]]
    self._early = collections.deque(maxlen=1000)

  def open(self, path: pathlib.Path) -> None:
    """Append to a file from here on."""
    early, self._day = list(self._early), ''
    self._early.clear()
    with contextlib.suppress(OSError):  # A run can continue without its log.
      self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
      log(f'process {os.getpid()}: {shlex.join(sys.argv)}')
      for entry in early:
        self._write(*entry)

  def close(self) -> None:
    """Close the file."""
    if self._fd is not None:
      os.close(self._fd)
      self._fd = None

  def add(self, text: str) -> None:
    """Add an entry of one or more lines."""
    now = datetime.datetime.now()
    if self._fd is None:
      self._early.append((now, text))
    else:
      self._write(now, text)

  def _write(self, when: datetime.datetime, text: str) -> None:
    entry = f'{when:{_STAMP}}{text}\n'
    if (day := f'{when:%Y-%m-%d}') != self._day:
      entry, self._day = f'{day}\n{entry}', day
    # If the disk is full, the next checkpoint reports it; the log need not.
    with contextlib.suppress(OSError):
      durable.write_all(self._fd, entry.encode(errors='replace'))


_log = _Log()
