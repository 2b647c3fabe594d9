"""Runs our own programs in this process, to compute expected outputs.

Only programs from `families` run here; a policy's programs run in the box.
"""

import functools
import io
import types as python_types

# Errors that one of our wrong programs may raise.
_ERRORS = (ArithmeticError, LookupError, ValueError)


@functools.lru_cache(maxsize=4096)
def _compile(program: str) -> python_types.CodeType:
  return compile(program, '<family>', 'exec')


def run(program: str, stdin: str) -> str | None:
  """Return the output of one of our programs; None if it raises an error.

  Args:
    program: A text that reads with input(), writes with print(*values), and
      ends.
    stdin: Its standard input.
  """
  # Not splitlines(), as for a program only '\n' ends a line.
  lines = stdin.removesuffix('\n').split('\n')[::-1] if stdin else []
  printed = io.StringIO()
  # Without a line left, `pop` raises IndexError, a LookupError.
  names = {'input': lines.pop, 'print': functools.partial(print, file=printed)}
  try:
    exec(_compile(program), names)  # pylint: disable=exec-used
  except _ERRORS:
    return None
  return printed.getvalue()
