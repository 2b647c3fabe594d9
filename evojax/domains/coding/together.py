"""All tests of a program in one process, where that changes no verdict.

A process costs milliseconds, a small test microseconds. A program that can keep
nothing from one test to the next runs on every input in one process, each time
in a namespace of its own. What is told of it is as untrusted as the program; a
process that ends in any other way than by finishing all tests says nothing.
"""

import ast
from collections.abc import Sequence
import dataclasses
import functools
import json

from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib

# CPU time of all tests: who needs more is run test by test, with its limits.
CPU_SECONDS = 0.2
# Of these a program gets no state that outlives it.
_MODULES = frozenset((
    'bisect', 'collections', 'fractions', 'functools', 'heapq', 'itertools',
    'math', 'operator', 're', 'string', 'sys',
))  # fmt: skip
_OF_SYS = frozenset(('exit', 'maxsize', 'stderr', 'stdin', 'stdout'))
# Builtins that reach beyond a namespace, or into files.
_REACHING = frozenset((
    'breakpoint', 'compile', 'delattr', 'eval', 'exec', 'getattr', 'globals',
    'help', 'id', 'locals', 'open', 'setattr', 'vars',
))  # fmt: skip
# What the standard streams have and those of `drive` do not.
_OF_FILES = frozenset(('detach', 'fileno', 'mode', 'name', 'raw'))
_DRIVER = """
def drive(source):
  import io, json, os, sys
  write = os.write
  real = sys.stdin, sys.stdout
  wrap = lambda held, like: io.TextIOWrapper(held, like.encoding, like.errors)
  code = compile(source, 'program.py', 'exec')
  found = []
  for given in json.load(sys.stdin):
    held = io.BytesIO()
    sys.stdin = wrap(io.BytesIO(given.encode('latin-1')), real[0])
    sys.stdout = wrap(held, real[1])
    status = 'ok'
    try:
      exec(code, {'__name__': '__main__'})
    except SystemExit as stop:
      if stop.code is not None and stop.code != 0:
        raise
    except (RecursionError, MemoryError):
      raise
    except BaseException:
      status = 'error'
    sys.stdout.flush()
    found.append([status, held.getvalue().decode('latin-1')])
  data = json.dumps(found).encode()
  while data:
    data = data[write(1, data):]
"""


def run(
    box: box_lib.Box,
    program: str,
    inputs: Sequence[bytes],
    limits: limits_lib.Limits,
) -> list[limits_lib.Result] | None:
  """The results of a program on each input.

  Args:
    box: With the profile 'program'.
    program: From a policy: any text at all.
    inputs: What each test gives.
    limits: Of one test; together they get less time than that.

  Returns:
    Results with the status 'ok' or 'error', as if each test had been run by
    itself; None where that has to be done.
  """
  if len(inputs) < 2 or not is_plain(program):
    return None
  cpu = min(limits.cpu_seconds, CPU_SECONDS)
  result = box.run(
      f'{_DRIVER}\ndrive({program!a})\n',
      json.dumps([data.decode('latin-1') for data in inputs]).encode(),
      limits=dataclasses.replace(
          limits,
          cpu_seconds=cpu,
          # A byte may take six in JSON.
          output_bytes=6 * len(inputs) * limits.output_bytes,
      ),
  )
  if result.status != 'ok':
    return None
  try:
    found = json.loads(result.stdout)
    told = [(status, text.encode('latin-1')) for status, text in found]
  except (ValueError, TypeError, AttributeError, RecursionError):
    return None
  if len(told) != len(inputs) or any(
      status not in ('ok', 'error') or len(output) > limits.output_bytes
      for status, output in told
  ):
    return None
  return [
      dataclasses.replace(result, status=status, stdout=output)
      for status, output in told
  ]


@functools.lru_cache(maxsize=4096)
def is_plain(program: str) -> bool:
  """Whether a program's text shows that its runs know nothing of each other."""
  try:
    nodes = list(ast.walk(ast.parse(program)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return False
  owners = {
      id(node.value) for node in nodes if isinstance(node, ast.Attribute)
  }
  return all(_is_plain(node, id(node) in owners) for node in nodes)


def _is_plain(node: ast.AST, is_owner: bool) -> bool:
  """`is_owner`: an attribute is taken of it."""
  if isinstance(node, ast.Import):
    return all(
        alias.name in _MODULES and alias.asname is None for alias in node.names
    )
  if isinstance(node, ast.ImportFrom):
    names = {alias.name for alias in node.names}
    return (
        node.module in _MODULES
        and not node.level
        and not any(name.startswith('_') for name in names)
        and (node.module != 'sys' or names <= _OF_SYS)
    )
  if isinstance(node, ast.Attribute):
    return (
        # Modules and functions stay as they are.
        isinstance(node.ctx, ast.Load)
        and not node.attr.startswith('_')
        and node.attr not in _OF_FILES
        and _is_plain_owner(node)
    )
  if isinstance(node, ast.Name):
    if node.id.startswith('_'):
      return node.id in ('_', '__name__')
    if node.id in _MODULES:  # A module has no other name, and no other use.
      return is_owner
    return node.id not in _REACHING
  return True


def _is_plain_owner(node: ast.Attribute) -> bool:
  """Modules are not reached through modules."""
  owner = node.value
  if isinstance(owner, ast.Name) and owner.id == 'sys':
    return node.attr in _OF_SYS
  if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
    return owner.value.id not in _MODULES - {'sys'}
  return True
