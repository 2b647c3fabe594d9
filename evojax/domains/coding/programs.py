"""Run our own program texts in this process, to know what is right.

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
  console = _Console(stdin)
  names = {'input': console.read, 'print': console.write}
  try:
    exec(_compile(program), names)  # pylint: disable=exec-used
  except _ERRORS:
    return None
  return ''.join(console.printed)


class _Console:
  """input() and print() of a program."""

  def __init__(self, stdin: str):
    # Not splitlines(): a program sees '\n' alone as the end of a line.
    self._lines = stdin.removesuffix('\n').split('\n')[::-1] if stdin else []
    self.printed: list[str] = []

  def read(self) -> str:
    if not self._lines:
      raise EOFError('no more input')
    return self._lines.pop()

  def write(self, *values: object) -> None:
    self.printed.append(' '.join(map(str, values)) + '\n')
