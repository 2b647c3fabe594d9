"""Wraps a program for the box: its limits, and calls of one of its functions.

The wrapper runs in the same process as the program, so that its word counts for
nothing: it writes the result of a call as JSON, and the trusted parent compares
it with a result that has never been in the box. A program that ends early,
prints, or writes more has written no result.
"""

# The recursion limit of LiveCodeBench's harness. The stack of the box holds so
# many calls, even where each goes through C.
RECURSION_LIMIT = 50_000
# Returns the code of a program. The limit is raised after compiling, because
# the compiler would otherwise follow a nested text until the stack ends. Judges
# print and read whole numbers of any length.
PREPARE = f"""
def prepare(source):
  import sys
  sys.set_int_max_str_digits(0)
  try:
    code = compile(source, 'main.py', 'exec')
  except Exception as error:
    print(f'{{type(error).__name__}}: {{error}}', file=sys.stderr)
    raise SystemExit(1)
  frame, depth = sys._getframe(), 0
  while frame:
    frame, depth = frame.f_back, depth + 1
  sys.setrecursionlimit({RECURSION_LIMIT} + depth)
  return code
"""
# To print so many frames takes a second.
_SHORTEN = """
  except RecursionError as error:
    raise error.with_traceback(None)
"""
_RUN = f"""{PREPARE}
def enter(source):
  code, space = prepare(source), globals()
  del space['enter'], space['prepare']
  try:
    exec(code, space)
{_SHORTEN}
"""
# The modules whose names and themselves starter code of LeetCode's problems
# takes for granted, in the order of LiveCodeBench: of two equal names the later
# one holds.
_MODULES = (
    'string', 're', 'datetime', 'collections', 'heapq', 'bisect', 'copy',
    'math', 'random', 'statistics', 'itertools', 'functools', 'operator', 'io',
    'sys', 'json', 'builtins', 'typing',
)  # fmt: skip
_PRELUDE = '\n'.join(
    (*(f'from {m} import *' for m in _MODULES), f'import {",".join(_MODULES)}')
)
_CALL = f"""{PREPARE}
def enter(source, name, prelude, integer_keys):
  import builtins, decimal, fractions, io, json, os, sys
  code = prepare(source)

  def keys(table):
    # JSON has made texts of keys that were whole numbers.
    try:
      whole = {{int(key): value for key, value in table.items()}}
    except ValueError:
      return table
    return whole if [*map(str, whole)] == [*table] else table

  def plain(value):
    if isinstance(value, (decimal.Decimal, fractions.Fraction)):
      return int(value) if value == int(value) else float(value)
    return value.tolist()  # NumPy's arrays and numbers.

  hook = keys if integer_keys else None
  # Not splitlines: JSON's texts may hold other ends of lines, as U+2028.
  lines = filter(None, sys.stdin.read().split('\\n'))
  given = [json.loads(line, object_hook=hook) for line in lines]
  write, dumps = os.write, json.dumps
  # The output of the program is not the result of its function.
  sys.stdout = io.StringIO()
  # The names of the prelude go to the builtins, so that the program finds them
  # but does not count as having defined them.
  taken = dict(vars(builtins))
  exec(prelude, taken)
  # Dataclasses look their module up.
  module = sys.modules['solution'] = type(sys)('solution')
  space = vars(module)
  space['__builtins__'] = taken
  try:
    exec(code, space)
    solution = space.get('Solution')
    if hasattr(solution, name):
      function = getattr(solution(), name)
    else:
      function = space[name]
    data = dumps(function(*given), default=plain).encode()
{_SHORTEN}
  while data:
    data = data[write(1, data):]
"""


def wrap(
    program: str, function: str = '', *, integer_keys: bool = False
) -> str:
  """Return a program that runs a program as judges do, or calls its function.

  Args:
    program: Any text, written by a policy. It should define the function at the
      top level or in a class Solution, if one is called.
    function: Name of the function; empty for a program that reads standard
      input.
    integer_keys: Whether keys of arguments that are whole numbers in JSON's
      texts become whole numbers.

  Returns:
    A program; for a call it reads one JSON value per line and writes one.
  """
  # `ascii` escapes every character that could end the literal.
  if not function:
    return f'{_RUN}\nenter({program!a})\n'
  call = f'{program!a}, {function!a}, {_PRELUDE!a}, {integer_keys}'
  return f'{_CALL}\nenter({call})\n'
