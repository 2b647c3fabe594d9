"""Runs our own program texts in this process, to get expected outputs.

Only texts of `families` run here; programs of a policy run in the box.
"""

import functools
import io
import types as python_types

# Errors that a wrong program of ours may raise.
_ERRORS = (ArithmeticError, LookupError, ValueError)


@functools.lru_cache(maxsize=4096)
def _compile(program: str) -> python_types.CodeType:
  return compile(program, '<family>', 'exec')


def run(program: str, stdin: str) -> str | None:
  """Return what a program of ours prints, None if it raises an error.

  Args:
    program: A text that reads with input(), writes with print(*values), and
      ends.
    stdin: Its standard input.
  """
  # splitlines() would not do: for a program only '\n' ends a line.
  lines = stdin.removesuffix('\n').split('\n')[::-1] if stdin else []
  printed = io.StringIO()
  # An empty list raises IndexError, a LookupError, for want of a line.
  names = {'input': lines.pop, 'print': functools.partial(print, file=printed)}
  try:
    exec(_compile(program), names)  # pylint: disable=exec-used
  except _ERRORS:
    return None
  return printed.getvalue()
