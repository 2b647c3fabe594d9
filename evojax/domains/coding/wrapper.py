"""Wrappers for programs in the box: limits, and calls of one function.

The wrapper runs in the same process as the program, so its output is not
trusted: it writes the result of a call as JSON, and the trusted parent compares
it with an expected result that has never been in the box. A program that ends
early, prints, or writes more has not written a result.
"""

# The recursion limit of LiveCodeBench's harness. The stack of the box is large
# enough for it, even if each call goes through C.
RECURSION_LIMIT = 50_000
# Returns the code of a program. The limit is raised after compiling, because
# the compiler would otherwise follow nested text until the stack overflows. As
# with judges, programs may print and read integers of any length.
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
# Printing so many frames would take a second.
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
# The modules that the starter code of LeetCode's problems uses without an
# import, by name or for their names. The order is LiveCodeBench's: if two
# modules define a name, the later one wins.
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
  # Not splitlines: JSON texts may hold other line ends, such as U+2028.
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
    program: Any text, written by a policy. For a call, it should define the
      function at the top level or in a class Solution.
    function: Name of the function; '' for a program that reads standard input.
    integer_keys: Whether keys of arguments that look like integers in the JSON
      text become integers.

  Returns:
    A program; for a call it reads one JSON value per line and writes one.
  """
  # `ascii` escapes every character that could end the literal.
  if not function:
    return f'{_RUN}\nenter({program!a})\n'
  call = f'{program!a}, {function!a}, {_PRELUDE!a}, {integer_keys}'
  return f'{_CALL}\nenter({call})\n'
