"""Grading by reasoning-gym's own scorers, each answer in a fresh process.

Scorers are trusted but answers are not, and some scorers evaluate text. A
process therefore sees one problem and one answer, cannot reach anything else,
and ends with its score. No process runs a policy's programs, so that such a
program cannot look for a reference.
"""

from collections.abc import Iterable, Sequence
import concurrent.futures
import functools
import json
import pathlib
from typing import NamedTuple

import numpy as np

from evojax import records
from evojax.domains.math import grade
from evojax.domains.math import gym
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe
from evojax.sandbox import processes
from evojax.sandbox import shared

FORM = 'scored'  # The answer_form of problems graded here.
MAX_ANSWER_CHARS = 20_000  # The longest references have 9,000.
# Scoring a reference takes a third of a second at most.
_LIMITS = limits_lib.Limits(
    wall_seconds=10.0, cpu_seconds=2.0, output_bytes=1 << 10
)
_ATTEMPTS = 3  # Attempts for an answer that times out on a busy machine.


class Score(NamedTuple):
  """The result for one answer."""

  status: str  # Key of grade.GRADE_STATUS.
  score: float = 0.0  # 0..1; 1 is right.
  tier: str = ''  # Tier of the box; '' if nothing was run.
  seconds: float = 0.0


def grade_many(
    problems: Sequence[records.Problem],
    completions: Sequence[records.Episode],
    answer_format: str,
) -> list[records.Grade]:
  """Grade completion b of problem b, for all b. Any text gets a grade.

  The outcome is whether the score is 1, and the partial credit is the score.
  Equal answers to one problem are scored once.

  Args:
    problems: B problems of families of `gym.SCORED`.
    completions: B completions.
    answer_format: One of grade.ANSWER_FORMATS.

  Raises:
    probe.WeakSandboxError: If this machine cannot contain untrusted code.
  """
  texts = [c.text[-grade.MAX_TEXT_CHARS :] for c in completions]
  found = [grade.extract(text, answer_format) for text in texts]
  requests = [
      _request(problem, each.answer.strip()) if each else None
      for problem, each in zip(problems, found, strict=True)
  ]
  scores = _scores(dict.fromkeys(requests))
  scores[None] = Score('no_answer')
  grades = []
  for text, each, completion, request in zip(
      texts, found, completions, requests, strict=True
  ):
    cut = completion.finish_reason == 'length'
    status, score, tier, seconds = scores[request]
    grades.append(
        records.Grade(
            outcome=score == 1.0,
            partial=score,
            status=status,
            columns=grade.columns(text, each, cut),
            sandbox_tier=tier,
            seconds=seconds,
        )
    )
    # An answer scored for another completion takes no time here.
    scores[request] = scores[request]._replace(seconds=0.0)
  return grades


def _request(problem: records.Problem, answer: str) -> str:
  entry = {
      'question': problem.question,
      'answer': problem.answer,
      'metadata': problem.metadata,
  }
  request = {'family': problem.family, 'entry': entry, 'answer': answer}
  return json.dumps(request)


def _scores(requests: Iterable[str | None]) -> dict[str | None, Score]:
  """Return the score of each request that is not None."""
  wanted = [request for request in requests if request is not None]
  if not wanted:
    return {}
  box = _open_box()
  with concurrent.futures.ThreadPoolExecutor(box.slots) as pool:
    found = pool.map(functools.partial(_score, box), wanted)
    return dict(zip(wanted, found, strict=True))


def _score(box: box_lib.Box, request: str) -> Score:
  if len(json.loads(request)['answer']) > MAX_ANSWER_CHARS:
    return Score('too_long')
  for _ in range(_ATTEMPTS):
    result = box.run(request)
    if not (result.status == 'timeout' and result.contended):
      break
  status, score = 'unparsable', 0.0
  if result.contended or result.status == records.INFRA_ERROR:
    status = records.INFRA_ERROR
  elif result.status in ('timeout', 'cpu_limit'):
    status = 'timeout'
  elif result.status == 'ok':
    try:
      found = json.loads(result.stdout)
    except (ValueError, RecursionError):
      found = None
    if isinstance(found, float) and 0.0 <= found <= 1.0:
      status, score = 'ok', found
  return Score(status, score, result.tier, result.wall_seconds)


def _open_box() -> box_lib.Box:
  """Return the box of this process."""
  return shared.opened(_box, probe.tier())


def _box(tier: str) -> box_lib.Box:
  packages = str(pathlib.Path(np.__file__).parent.parent)
  return box_lib.Box(
      'pure',
      tier=tier,
      slots=processes.cores(),
      entry=box_lib.Entry(gym.__file__, [packages]),
      limits=_LIMITS,
  )
