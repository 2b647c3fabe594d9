"""The three things that a child runs: a program, a function, a command.

All of this code runs on the untrusted side, after the child has given up its
rights.
"""

import atexit
import builtins
from collections.abc import Callable, Mapping, Sequence
import contextlib
import errno
import functools
import gc
import io
import os
import sys
import threading
import traceback
import types

_STDIN = ('/dev/stdin', '/dev/fd/0', '/proc/self/fd/0')


def execute(
    command: Sequence[str], folder: str, environment: Mapping[str, str]
) -> int:
  """Replace this process by a command; return an exit code if that fails."""
  try:
    os.chdir(folder)
    os.execvpe(command[0], command, environment)
  except OSError as error:
    print(f'{command[0]}: {error.strerror}', file=sys.stderr, flush=True)
    # The exit codes of a shell.
    return 126 if error.errno == errno.EACCES else 127


def call(
    function: Callable[[str, memoryview], bytes],
    source: str,
    data: memoryview,
    folder: str = '',
) -> int:
  """Call a function, in a folder if one is given; write its result."""
  if folder:
    os.chdir(folder)
  answer = function(source, data)
  rest = memoryview(answer).cast('B')
  while rest:
    rest = rest[os.write(1, rest) :]
  return 0


def open_stdin_by_name() -> None:
  """Let Python open its standard input by name, which leads through /proc."""
  open_file, open_descriptor = builtins.open, os.open

  def is_stdin(file) -> bool:
    return isinstance(file, str | bytes | os.PathLike) and (
        os.fsdecode(file) in _STDIN
    )

  @functools.wraps(open_file)
  def open_(file, *args, **kwargs):
    return open_file(os.dup(0) if is_stdin(file) else file, *args, **kwargs)

  @functools.wraps(open_descriptor)
  def os_open(path, *args, **kwargs):
    return (
        os.dup(0) if is_stdin(path) else open_descriptor(path, *args, **kwargs)
    )

  builtins.open = io.open = open_
  os.open = os_open


def run(source: str) -> int:
  """Run a source as `python main.py` does; return its exit code."""
  main = types.ModuleType('__main__')
  main.__file__ = 'main.py'
  sys.modules['__main__'] = main
  sys.argv[:] = ['main.py']
  # A program may recurse as deeply as without the frames around it.
  sys.setrecursionlimit(sys.getrecursionlimit() + _depth())
  code = 0
  try:
    exec(compile(source, 'main.py', 'exec'), main.__dict__)
  except SystemExit as error:
    code = _exit_code(error)
  except BaseException:
    code = print_error('main.py')
  try:
    threading._shutdown()  # Waits for threads that are not daemons.
    atexit._run_exitfuncs()
    _flush(sys.stdout)
  except BaseException:
    # The whole traceback, since a SyntaxError has no frame of the program.
    code = code or print_error(None)
  try:
    # Flushes files that were not closed. An error here is not the program's:
    # for example, a detached stream raises one.
    for file in (*gc.get_objects(), sys.__stdout__, sys.stderr):
      if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter)):
        with contextlib.suppress(Exception):
          _flush(file)
  except BaseException:
    pass
  return code


def print_error(name: str | None) -> int:
  """Print the traceback of the current exception and return 1.

  Args:
    name: The file where the traceback starts; None prints all of it.
  """
  kind, error, trace = sys.exc_info()
  while name and trace and trace.tb_frame.f_code.co_filename != name:
    trace = trace.tb_next
  try:
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
  except BaseException:
    pass
  return 1


def _flush(file: io.IOBase | None) -> None:
  if file is not None and not getattr(file, 'closed', False):
    file.flush()


def _depth() -> int:
  """Return the depth of calls at an `exec` by the caller."""
  return 1 + sum(1 for _ in traceback.walk_stack(sys._getframe(1)))


def _exit_code(error: SystemExit) -> int:
  if error.code is None:
    return 0
  if isinstance(error.code, int):
    return error.code & 0xFF
  print(error.code, file=sys.stderr)
  return 1
