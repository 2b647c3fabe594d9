"""Runs our own program texts in this process, to get expected outputs.

Only texts of `families` run here; programs of a policy run in the box.
"""

import functools
import types as python_types

# Errors that a wrong program of ours may raise.
_ERRORS = (ArithmeticError, EOFError, LookupError, ValueError)


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
  console = _Console(stdin)
  names = {'input': console.read, 'print': console.write}
  try:
    exec(_compile(program), names)  # pylint: disable=exec-used
  except _ERRORS:
    return None
  return ''.join(console.printed)


class _Console:
  """The input() and print() of a program."""

  def __init__(self, stdin: str):
    # splitlines() would not do: for a program only '\n' ends a line.
    self._lines = stdin.removesuffix('\n').split('\n')[::-1] if stdin else []
    self.printed: list[str] = []

  def read(self) -> str:
    if not self._lines:
      raise EOFError('no more input')
    return self._lines.pop()

  def write(self, *values: object) -> None:
    self.printed.append(' '.join(map(str, values)) + '\n')
