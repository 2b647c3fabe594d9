"""Run programs on their tests, in the box, and judges what they print.

Expected outputs stay on this side: a box gets a program and an input, and what
comes back is bytes. The verdict is this file's alone.
"""

from collections.abc import Iterator, Sequence
import concurrent.futures
import dataclasses
import functools
import time

from evojax.domains.coding import calls
from evojax.domains.coding import tests as tests_lib
from evojax.domains.coding import together
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib

# A test's wall time is this many times its CPU time, and a second: programs do
# not wait for anything, but other processes may be in their way.
WALL_FACTOR = 4.0
WALL_SECONDS = 1.0
# A stack of 256 MiB, which programs that recurse ask for, counts as memory.
MEMORY_BYTES = 768 << 20
_OUT_OF_TIME = ('timeout', 'cpu_limit')
# Runs of a test that ran late because the machine was busy.
_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What became of one program on the tests of one problem."""

  # 'ok' if every run ended by itself, whatever it printed, or the status of the
  # first that did not (`sandbox.limits.STATUSES`), or 'syntax_error'.
  status: str
  # Of each test that was run, the visible ones first: 'passed', 'wrong' where
  # it ended by itself, or as above.
  statuses: tuple[str, ...]
  passed: int  # Tests.
  total: int  # Tests, run or not.
  visible_passed: bool  # All tests that the policy was shown.
  timeouts: int  # Runs that ended at a limit of time.
  crashed: bool  # A run ended by an exception, an exit code or a signal.
  tier: str
  seconds: float  # Wall time.


def judge_many(
    box: box_lib.Box,
    work: Sequence[tuple[tests_lib.Tests, str]],
    *,
    partial: bool,
) -> list[Verdict]:
  """Grade (tests, program) pairs on all slots of a box.

  Args:
    box: With the profile 'program'.
    work: What to judge; pairs should differ.
    partial: Whether to go on after a failed test, to count those that pass.
      What has run out of time is not run again.
  """
  one = lambda pair: _judge(box, *pair, partial)
  with concurrent.futures.ThreadPoolExecutor(box.slots) as pool:
    return list(pool.map(one, work))


def _judge(
    box: box_lib.Box, tests: tests_lib.Tests, program: str, partial: bool
) -> Verdict:
  """Visible tests first: whether they pass is worth knowing of itself."""
  source = calls.wrap(program, tests.function) if tests.function else program
  cases = sorted(tests.cases, key=lambda case: not case.visible)
  start = time.perf_counter()
  status, statuses, timeouts, crashed = 'ok', [], 0, False
  results = _results(box, source, cases, tests)
  for case, result in zip(cases, results, strict=True):
    if _is_right(tests, case, result):
      statuses.append('passed')
      continue
    broken = _is_not_python(result)
    ended = 'syntax_error' if broken else result.status
    statuses.append('wrong' if ended == 'ok' else ended)
    if ended == 'infra_error':
      status = ended
      break
    timeouts += ended in _OUT_OF_TIME
    crashed |= ended == 'error'
    if status == 'ok':
      status = ended
    if not partial or broken or timeouts:
      break
  visible = sum(case.visible for case in cases)
  return Verdict(
      status=status,
      statuses=tuple(statuses),
      passed=statuses.count('passed'),
      total=len(cases),
      visible_passed=statuses[:visible] == ['passed'] * visible,
      timeouts=timeouts,
      crashed=crashed,
      tier=box.tier,
      seconds=time.perf_counter() - start,
  )


def _results(
    box: box_lib.Box,
    source: str,
    cases: Sequence[tests_lib.Case],
    tests: tests_lib.Tests,
) -> Iterator[limits_lib.Result]:
  """Of each case, in order; no case is run before it is asked for, or all."""
  limits = [_limits(box.limits, tests.seconds, len(c.expected)) for c in cases]
  # A lone surrogate is legal in the JSON of a data set.
  inputs = [case.stdin.encode('utf-8', 'surrogatepass') for case in cases]
  least = min(limits, key=lambda each: each.output_bytes)
  found = None
  if not tests.function:
    found = together.run(box, source, inputs, least)
  right = functools.partial(_is_right, tests)
  if found is not None and all(map(right, cases, found)):
    # Texts do not show that memory runs out, or where things lie. No program is
    # right that is not when it is alone.
    alone = _run(box, source, inputs[-1], limits[-1])
    if not right(cases[-1], alone):
      found = None
  if found is not None:
    yield from found
    return
  for stdin, limit in zip(inputs, limits, strict=True):
    yield _run(box, source, stdin, limit)


def _is_right(
    tests: tests_lib.Tests, case: tests_lib.Case, result: limits_lib.Result
) -> bool:
  passes = tests_lib.returns if tests.function else tests_lib.passes
  return result.status == 'ok' and passes(case, result.stdout, tests.tolerance)


def _run(
    box: box_lib.Box, source: str, stdin: bytes, limits: limits_lib.Limits
) -> limits_lib.Result:
  """One run; late because of others is tried again, and is no verdict then."""
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
  """Whether it was never run: its error has no line that was executed.

  A program that says the same of itself is believed: it gains nothing.
  """
  if result.status not in ('error', 'memory_limit'):
    return False
  text = result.stderr
  last = text.rstrip().rpartition(b'\n')[2]
  kinds = (b'SyntaxError', b'IndentationError', b'TabError', b'ValueError',
           b'UnicodeEncodeError', b'RecursionError', b'MemoryError',
           b'OverflowError')  # fmt: skip
  return last.startswith(kinds) and b'Traceback (most recent' not in text
