"""Runs programs on their tests in the box, and compares their output.

Expected outputs never enter the box, which gets a program and an input and
returns bytes.
"""

from collections.abc import Iterable, Sequence
import concurrent.futures
import dataclasses
import functools
import time

from evojax.domains.coding import comparison
from evojax.domains.coding import one_process
from evojax.domains.coding import suite
from evojax.domains.coding import wrapper
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib

# A test's wall time is this many times its CPU time, plus a second. Programs do
# not wait for anything, but other processes may use the cores.
WALL_FACTOR = 4.0
WALL_SECONDS = 1.0
# Programs that recurse ask for stacks of 256 MiB, which count as memory.
MEMORY_BYTES = 768 << 20
OUT_OF_TIME = ('timeout', 'cpu_limit')
# Attempts for a test that timed out because the machine was busy.
_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The results of one program on the tests of one problem."""

  # One status per test that was run, visible tests first: 'passed'; 'wrong' if
  # the program ended by itself; otherwise a status of `sandbox.limits.Result`,
  # or 'syntax_error'.
  statuses: tuple[str, ...]
  tier: str
  seconds: float  # Wall time of all tests.


def run_many(
    box: box_lib.Box,
    work: Sequence[tuple[suite.Suite, str]],
    *,
    partial: bool,
) -> list[Verdict]:
  """Run each program on its tests, on all slots of a box.

  Args:
    box: A box with the profile 'program'.
    work: Pairs of tests and program, without duplicates.
    partial: Whether to continue after a failed test, to count all that pass. A
      program that ran out of time is not continued.

  Returns:
    A verdict for each pair.
  """
  one = lambda pair: _run_suite(box, *pair, partial)
  with concurrent.futures.ThreadPoolExecutor(box.slots) as pool:
    return list(pool.map(one, work))


def _run_suite(
    box: box_lib.Box, tests: suite.Suite, program: str, partial: bool
) -> Verdict:
  """Run one program on its tests, the visible ones first."""
  cases = sorted(tests.cases, key=lambda case: not case.visible)
  start = time.perf_counter()
  statuses = []
  results = _results(box, program, cases, tests)
  for case, result in zip(cases, results, strict=True):
    status = 'wrong' if result.status == 'ok' else result.status
    if _is_right(tests, case, result):
      status = 'passed'
    elif _is_not_python(result):
      status = 'syntax_error'
    statuses.append(status)
    final = status in ('infra_error', 'syntax_error', *OUT_OF_TIME)
    if final or (status != 'passed' and not partial):
      break
  return Verdict(tuple(statuses), box.tier, time.perf_counter() - start)


def _results(
    box: box_lib.Box,
    program: str,
    cases: Sequence[suite.Case],
    tests: suite.Suite,
) -> Iterable[limits_lib.Result]:
  """Return the result of each case in order.

  Either all cases run in one process, or each runs when its result is taken.
  """
  limits = [_limits(box.limits, tests.seconds, len(c.expected)) for c in cases]
  # The JSON of a data set may contain a lone surrogate.
  inputs = [case.stdin.encode('utf-8', 'surrogatepass') for case in cases]
  least = min(limits, key=lambda each: each.output_bytes)
  found = None
  if not tests.function:
    found = one_process.run(box, program, inputs, least)
  source = wrapper.wrap(
      program, tests.function, integer_keys=tests.integer_keys
  )
  run = functools.partial(_run, box, source)
  right = functools.partial(_is_right, tests)
  # The text of a program does not show whether it exhausts memory or depends on
  # addresses, so a program is only right if it also passes the last test in a
  # process of its own.
  if found and all(map(right, cases, found)):
    if not right(cases[-1], run(inputs[-1], limits[-1])):
      found = None
  return found or map(run, inputs, limits)


def _is_right(
    tests: suite.Suite, case: suite.Case, result: limits_lib.Result
) -> bool:
  compare = comparison.returns if tests.function else comparison.passes
  return result.status == 'ok' and compare(
      case.expected, result.stdout, tests.comparison
  )


def _run(
    box: box_lib.Box, source: str, stdin: bytes, limits: limits_lib.Limits
) -> limits_lib.Result:
  """Run one test; repeat it after a timeout that other processes caused."""
  for _ in range(_ATTEMPTS):
    result = box.run(source, stdin, limits=limits)
    if not (result.status == 'timeout' and result.contended):
      return result
  return dataclasses.replace(result, status='infra_error')


@functools.lru_cache(maxsize=64)
def _limits(
    of_the_box: limits_lib.Limits, seconds: float, expected: int
) -> limits_lib.Limits:
  return dataclasses.replace(
      of_the_box,
      wall_seconds=WALL_FACTOR * seconds + WALL_SECONDS,
      cpu_seconds=seconds,
      memory_bytes=MEMORY_BYTES,
      # A right output may have more white space than the expected one.
      output_bytes=max(64 << 10, 4 * expected),
  )


def _is_not_python(result: limits_lib.Result) -> bool:
  """Return whether the program was not run because it is not Python.

  Its error message then names no executed line. A program that prints such a
  message itself is believed, since it gains nothing by it.
  """
  if result.status not in ('error', 'memory_limit'):
    return False
  last = result.stderr.rstrip().rpartition(b'\n')[2]
  kinds = (b'SyntaxError', b'IndentationError', b'TabError', b'ValueError',
           b'UnicodeEncodeError', b'RecursionError', b'MemoryError',
           b'OverflowError')  # fmt: skip
  return (
      last.startswith(kinds) and b'Traceback (most recent' not in result.stderr
  )
