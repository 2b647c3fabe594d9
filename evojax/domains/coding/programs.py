"""Runs our own program texts in this process, to know what is right.

Only texts of `families` come here: what a policy wrote runs in the box.
"""

import functools
import types as python_types

# What a wrong program of ours may die of.
_ERRORS = (ArithmeticError, EOFError, LookupError, ValueError)


@functools.lru_cache(maxsize=4096)
def _compile(program: str) -> python_types.CodeType:
  return compile(program, '<family>', 'exec')


def run(program: str, stdin: str) -> str | None:
  """What a program of ours prints; None if it dies.

  Args:
    program: Reads with input(), writes with print(*values), and ends.
    stdin: Its standard input.
  """
  # Not splitlines(): a program sees '\n' alone as the end of a line.
  lines = iter(stdin.removesuffix('\n').split('\n') if stdin else ())
  printed = []

  def read() -> str:
    for line in lines:
      return line
    raise EOFError('no more input')

  def write(*values: object) -> None:
    printed.append(' '.join(map(str, values)) + '\n')

  try:
    exec(_compile(program), {'input': read, 'print': write})  # pylint: disable=exec-used
  except _ERRORS:
    return None
  return ''.join(printed)
