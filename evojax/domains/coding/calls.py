"""Test that call a function: a program around the program.

What is wrapped runs in the same process as its wrapper, so nothing that the
wrapper says is believed: it writes the result of the call as JSON, and the
trusted parent compares it with one that never was in the box. A program that
ends early, prints, or writes more has written no result.
"""

# The names that starter code of LeetCode's problems takes for granted. pow is
# the builtin: math's knows no modulus.
_PRELUDE = """
from typing import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from builtins import *
import bisect, collections, functools, heapq, itertools, math, re, string
"""
_DRIVER = """
def drive(source, name, prelude):
  import builtins, io, json, os, sys
  # Not splitlines: JSON's texts may hold other ends of lines, as U+2028.
  given = [json.loads(line) for line in sys.stdin.read().split('\\n') if line]
  write, dumps = os.write, json.dumps
  # What it prints is not its result.
  sys.stdout = io.StringIO()
  # Where builtins are: there a program finds them, and has not defined them.
  taken = dict(vars(builtins))
  exec(prelude, taken)
  space = {'__name__': 'solution', '__builtins__': taken}
  try:
    code = compile(source, 'solution.py', 'exec')
  except Exception as error:
    print(f'{type(error).__name__}: {error}', file=sys.stderr)
    raise SystemExit(1)
  exec(code, space)
  solution = space.get('Solution')
  if hasattr(solution, name):
    function = getattr(solution(), name)
  else:
    function = space[name]
  data = dumps(function(*given)).encode()
  while data:
    data = data[write(1, data):]
"""


def wrap(program: str, function: str) -> str:
  """A program that reads arguments, calls a function, and writes its result.

  Args:
    program: From a policy: any text at all. Defines the function, at the top or
      in a class Solution.
    function: Its name.

  Returns:
    A program that reads one JSON value a line and writes one.
  """
  # `ascii` leaves no character that could end the literal.
  return f'{_DRIVER}\ndrive({program!a}, {function!a}, {_PRELUDE!a})\n'
