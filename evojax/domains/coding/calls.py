"""Wraps a program so that a test can call one of its functions.

The wrapper runs in the same process as the program, so that its word counts for
nothing: it writes the result of the call as JSON, and the trusted parent
compares it with a result that has never been in the box. A program that ends
early, prints, or writes more has written no result.
"""

# The names that starter code of LeetCode's problems takes for granted. pow is
# the builtin, because that of math takes no modulus.
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
  # The output of the program is not the result of its function.
  sys.stdout = io.StringIO()
  # The names of the prelude go to the builtins, so that the program finds them
  # but does not count as having defined them.
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
  """Return a program that reads arguments and writes a function's result.

  Args:
    program: Any text, written by a policy. It should define the function at the
      top level or in a class Solution.
    function: Name of the function.

  Returns:
    A program that reads one JSON value per line and writes one.
  """
  # `ascii` escapes every character that could end the literal.
  return f'{_DRIVER}\ndrive({program!a}, {function!a}, {_PRELUDE!a})\n'
