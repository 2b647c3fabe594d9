"""Grading of completions: their programs are run on the tests.

A completion is right if its program, in a fenced block, ends by itself with
exit code 0 and the expected output on every test. Identical programs for one
problem are run once per call.
"""

from collections.abc import Sequence
import dataclasses
import functools
import re

from evojax import records
from evojax.domains.coding import execution
from evojax.domains.coding import extract
from evojax.domains.coding import suite
from evojax.evidence import schema
from evojax.sandbox import shared

GRADE_STATUS = {
    'ok': 0,  # It ended by itself on every test that was run, right or wrong.
    'no_program': 1,  # No complete fenced block.
    'too_long': 2,  # A program of more than MAX_PROGRAM_CHARS.
    'syntax_error': 3,  # Not Python: nothing was run.
    'error': 4,  # An exception, an exit code, a signal.
    'timeout': 5,  # Out of wall time.
    'cpu_limit': 6,
    'memory_limit': 7,
    'output_limit': 8,
    'disk_limit': 9,
    records.INFRA_ERROR: 10,  # The box failed: there is no grade.
}
# The mode as the text shows it; only tests show whether a program is right.
CODING_MODE = {
    'solves': 0,  # A program that reads its input, or defines the function.
    'constant': 1,  # A program that reads nothing.
    'unfenced': 2,  # An answer without a complete block.
    'ramble': 3,  # No complete block, and cut by the limit or empty.
}
_watched = functools.partial(schema.Column, readers=('diagnostic', 'report'))
COLUMNS = (
    schema.with_codes('grade_status', GRADE_STATUS),
    # Known before anything is sampled. config.data.families filters problems by
    # it, so that no reward or filter needs to read it.
    _watched(
        'difficulty',
        'int32',
        'Level of the problem in its family, 0 is the easiest.',
    ),
    schema.Column(
        'format_ok',
        'bool',
        'There is a program, in a complete fenced block.',
        behaviour=True,
    ),
    schema.Column(
        'compiles',
        'bool',
        'The program is Python. False where there is none.',
        behaviour=True,
    ),
    schema.Column(
        'tests_passed',
        'int32',
        'Tests passed: up to the first that failed, unless'
        ' domain.kwargs.partial.',
        unit='tests',
    ),
    schema.Column(
        'tests_total',
        'int32',
        'Tests of the problem, the visible ones included.',
        unit='tests',
    ),
    schema.Column(
        'timeouts',
        'int32',
        'Runs that ended at a limit of CPU or wall time.',
        unit='runs',
    ),
    schema.Column(
        'crashed',
        'bool',
        'A run ended by an exception, an exit code or a signal.',
    ),
    schema.Column(
        'n_lines',
        'int32',
        'Lines of the program that are not blank, 0 where there is none.',
        unit='lines',
        behaviour=True,
    ),
    # A reward for it would reward printing the visible example.
    _watched(
        'visible_passed',
        'bool',
        'The program passes every test that the problem shows.',
        blind=False,
    ),
    _watched(
        'test_statuses',
        'string',
        'One status per test that was run, the visible ones first: passed,'
        ' wrong, or a key of grade_status; separated by commas.',
        blind=False,
    ),
    schema.Column(
        'mode',
        'int32',
        'How the completion answers, as its text alone shows.',
        codes=CODING_MODE,
        behaviour=True,
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
    partial: Whether to run all tests, for partial credit.
    slots: Number of programs that run concurrently.

  Raises:
    probe.WeakSandboxError: If this machine cannot contain untrusted code.
    ValueError: If an answer does not hold tests.
  """
  keys = [
      (problem.answer, extract.extract(completion.text))
      for problem, completion in zip(problems, completions, strict=True)
  ]
  work = [
      (answer, program)
      for answer, program in dict.fromkeys(keys)
      if program is not None and len(program) <= MAX_PROGRAM_CHARS
  ]
  verdicts = {}
  if work:
    pairs = [(_tests(answer), program) for answer, program in work]
    found = execution.run_many(shared.open_box(slots), pairs, partial=partial)
    verdicts = dict(zip(work, found, strict=True))
  grades = []
  for problem, completion, key in zip(problems, completions, keys, strict=True):
    verdict = verdicts.get(key)
    grades.append(_grade(problem, completion, key[1], verdict, partial))
    if verdict:
      # A program that ran for another completion takes no time here.
      verdicts[key] = dataclasses.replace(verdict, seconds=0.0)
  return grades


_tests = functools.lru_cache(maxsize=4096)(suite.decode)


def _grade(
    problem: records.Problem,
    completion: records.Episode,
    program: str | None,
    verdict: execution.Verdict | None,
    partial: bool,
) -> records.Grade:
  """Return the grade of a completion, given the verdict on its program."""
  tests, lines = _tests(problem.answer), (program or '').splitlines()
  visible = sum(case.visible for case in tests.cases)
  statuses = verdict.statuses if verdict else ()
  passed, total = statuses.count('passed'), len(tests.cases)
  if verdict:
    broken = [s for s in statuses if s not in ('passed', 'wrong')]
    graded = records.INFRA_ERROR not in broken
    # The status of a program is that of its first run that did not end well.
    status = (broken or ['ok'])[0] if graded else records.INFRA_ERROR
  else:
    status, graded = 'no_program' if program is None else 'too_long', True
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
          'timeouts': sum(map(statuses.count, execution.OUT_OF_TIME)),
          'crashed': 'error' in statuses,
          'n_lines': sum(map(bool, map(str.strip, lines))),
          'visible_passed': verdict is not None
          and statuses[:visible] == ('passed',) * visible,
          'test_statuses': ','.join(statuses),
          'mode': CODING_MODE[mode],
      },
      sandbox_tier=verdict.tier if verdict else '',
      seconds=verdict.seconds if verdict else 0.0,
  )


def classify(
    text: str, program: str | None, cut: bool, calls: bool = False
) -> str:
  """Return the completion's key in CODING_MODE.

  Args:
    text: A completion.
    program: Its program, from `extract`.
    cut: Whether sampling ended at the limit.
    calls: Whether the problem asks for a function, which reads no input.
  """
  if program is None:
    return 'ramble' if cut or not text.strip() else 'unfenced'
  return 'solves' if calls or _READS.search(program) else 'constant'
