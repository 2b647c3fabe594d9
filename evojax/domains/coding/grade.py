"""Grades completions: finds their programs and runs them on the tests.

A completion is right if its program, in a fenced block, ends by itself with
exit code 0 and the expected output on every test. Identical programs for one
problem are run once per call.
"""

import atexit
from collections.abc import Sequence
import functools
import os
import re

from evojax import records
from evojax.domains.coding import execution
from evojax.domains.coding import extract
from evojax.domains.coding import suite
from evojax.evidence import schema
from evojax.sandbox import box as box_lib
from evojax.sandbox import probe

GRADE_STATUS = {
    'ok': 0,  # Ended by itself on every test that was run, right or wrong.
    'no_program': 1,  # No complete fenced block.
    'too_long': 2,  # A program of more than MAX_PROGRAM_CHARS.
    'syntax_error': 3,  # Not Python: nothing was run.
    'error': 4,  # An exception, an exit code, a signal.
    'timeout': 5,  # Out of wall time.
    'cpu_limit': 6,
    'memory_limit': 7,
    'output_limit': 8,
    'disk_limit': 9,
    records.INFRA_ERROR: 10,  # The box failed: no grade.
}
# The mode as far as the text shows it; only tests show whether it is right.
CODING_MODE = {
    'solves': 0,  # A program that reads its input, or defines the function.
    'constant': 1,  # A program that reads nothing.
    'unfenced': 2,  # An answer without a complete block.
    'ramble': 3,  # No complete block, and cut by the limit or empty.
}
_WATCHING = ('diagnostic', 'report')
COLUMNS = (
    schema.with_codes('grade_status', GRADE_STATUS),
    schema.Column(
        'difficulty',
        'int32',
        doc='Level of the problem in its family, 0 is the easiest.',
        # It is known before anything is sampled. config.data.families filters
        # problems by it, so that no reward or filter needs to read it.
        readers=_WATCHING,
    ),
    schema.Column(
        'format_ok',
        'bool',
        doc='There is a program, in a complete fenced block.',
    ),
    schema.Column(
        'compiles',
        'bool',
        doc='The program is Python. False where there is none.',
    ),
    schema.Column(
        'tests_passed',
        'int32',
        unit='tests',
        doc=(
            'Tests passed: up to the first that failed, unless'
            ' domain.kwargs.partial.'
        ),
    ),
    schema.Column(
        'tests_total',
        'int32',
        unit='tests',
        doc='Tests of the problem, the visible ones included.',
    ),
    schema.Column(
        'timeouts',
        'int32',
        unit='runs',
        doc='Runs that ended at a limit of CPU or wall time.',
    ),
    schema.Column(
        'crashed',
        'bool',
        doc='A run ended by an exception, an exit code or a signal.',
    ),
    schema.Column(
        'n_lines',
        'int32',
        unit='lines',
        doc='Lines of the program that are not blank, 0 where there is none.',
    ),
    schema.Column(
        'visible_passed',
        'bool',
        doc='The program passes every test that the problem shows.',
        # A reward for it would pay for printing the visible example.
        readers=_WATCHING,
        blind=False,
    ),
    schema.Column(
        'test_statuses',
        'string',
        doc=(
            'One status per test that was run, the visible ones first: passed,'
            ' wrong, or a key of grade_status; separated by commas.'
        ),
        readers=_WATCHING,
        blind=False,
    ),
    schema.Column(
        'mode',
        'int32',
        doc='How the completion answers, as its text alone shows.',
        codes=CODING_MODE,
    ),
)

MAX_PROGRAM_CHARS = 1 << 16
_READS = re.compile(r'\b(?:input|stdin|open|read)\b')


def grade_many(
    problems: Sequence[records.Problem],
    completions: Sequence[records.Episode],
    *,
    partial: bool,
    slots: int,
) -> list[records.Grade]:
  """Grade completion b of problem b, for all b. Any text gets a grade.

  Args:
    problems: B problems whose answers are tests, see `suite.decode`.
    completions: B completions.
    partial: Whether all tests are run, for partial credit.
    slots: Programs that run at the same time.

  Raises:
    probe.WeakSandboxError: If this machine cannot hold untrusted code.
    ValueError: If an answer does not hold tests.
  """
  programs = [extract.extract(c.text) for c in completions]
  keys = [
      (problem.answer, program)
      for problem, program in zip(problems, programs, strict=True)
  ]
  work = list(dict.fromkeys(key for key in keys if _can_run(key[1])))
  verdicts = {}
  if work:
    pairs = [(_tests(answer), program) for answer, program in work]
    found = execution.run_many(open_box(slots), pairs, partial=partial)
    verdicts = dict(zip(work, found, strict=True))
  grades, paid = [], set()
  for problem, completion, key in zip(problems, completions, keys, strict=True):
    verdict = verdicts.get(key)
    # A program that was run for another completion costs this one no time.
    seconds = verdict.seconds if verdict and key not in paid else 0.0
    paid.add(key)
    grades.append(
        _grade(problem, completion, key[1], verdict, partial, seconds)
    )
  return grades


def open_box(slots: int) -> box_lib.Box:
  """Return the box of this process with so many slots, opened once."""
  # The process id is part of the cache key because a forked process must not
  # share the box of its parent.
  return _open_box(os.getpid(), probe.tier(), slots)


@functools.cache
def _open_box(process: int, tier: str, slots: int) -> box_lib.Box:
  box = box_lib.Box('program', tier=tier, slots=slots)

  def close():
    if os.getpid() == process:
      box.close()

  atexit.register(close)
  return box


def _can_run(program: str | None) -> bool:
  return program is not None and len(program) <= MAX_PROGRAM_CHARS


@functools.lru_cache(maxsize=4096)
def _tests(answer: str) -> suite.Suite:
  return suite.decode(answer)


def _grade(
    problem: records.Problem,
    completion: records.Episode,
    program: str | None,
    verdict: execution.Verdict | None,
    partial: bool,
    seconds: float,
) -> records.Grade:
  """Return the grade of a completion whose program has this verdict, if any."""
  tests, lines = _tests(problem.answer), (program or '').splitlines()
  passed, total = 0, len(tests.cases)
  status = 'no_program' if program is None else 'too_long'
  if verdict is not None:
    status, passed = verdict.status, verdict.passed
  graded = status != records.INFRA_ERROR
  right = graded and passed == total
  share = passed / total if graded and partial else float(right)
  cut = completion.finish_reason == 'length'
  mode = classify(completion.text, program, cut, bool(tests.function))
  return records.Grade(
      outcome=right,
      partial=share,
      status=status,
      columns={
          'difficulty': problem.difficulty,
          'format_ok': program is not None,
          'compiles': verdict is not None and status != 'syntax_error',
          'tests_passed': passed,
          'tests_total': total,
          'timeouts': verdict.timeouts if verdict else 0,
          'crashed': verdict is not None and verdict.crashed,
          'n_lines': sum(map(bool, map(str.strip, lines))),
          'visible_passed': verdict is not None and verdict.visible_passed,
          'test_statuses': ','.join(verdict.statuses) if verdict else '',
          'mode': CODING_MODE[mode],
      },
      sandbox_tier=verdict.tier if verdict else '',
      seconds=seconds,
  )


def classify(
    text: str, program: str | None, cut: bool, calls: bool = False
) -> str:
  """Return the key of CODING_MODE of a completion.

  Args:
    text: A completion.
    program: Its program, from `extract`.
    cut: Whether sampling ended at the limit.
    calls: Whether the problem asks for a function, which reads no input.
  """
  if program is None:
    return 'ramble' if cut or not text.strip() else 'unfenced'
  return 'solves' if calls or _READS.search(program) else 'constant'
