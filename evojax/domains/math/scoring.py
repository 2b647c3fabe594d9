"""Scores answers with the library's own scorer, each in a fresh process.

A scorer is trusted and an answer is not. It may still make the scorer do what
it wants, as some of them evaluate text. The process therefore sees one problem
and one answer, can reach nothing, and ends with its score. It is not one that
runs programs of a policy.
"""

import atexit
from collections.abc import Mapping, Sequence
import concurrent.futures
import functools
import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from evojax import records
from evojax.domains.math import gym
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe

MAX_ANSWER_CHARS = 20_000  # The longest references have 7,000.
# The slowest references take a quarter of a second.
_LIMITS = limits_lib.Limits(
    wall_seconds=20.0, cpu_seconds=4.0, output_bytes=1 << 10
)
_ATTEMPTS = 3  # Attempts of an answer that is late because the machine is busy.


class Score(NamedTuple):
  """The library's judgement of one answer."""

  status: str  # Key of grade.GRADE_STATUS.
  score: float = 0.0  # 0..1; 1 is right.
  tier: str = ''  # Tier of the box; empty where nothing was run.
  seconds: float = 0.0


def score_many(
    work: Sequence[tuple[records.Problem, str]],
) -> list[Score]:
  """Return the score of each answer; equal pairs are scored once.

  Args:
    work: Problems of families of `gym.SCORED`, each with an answer.

  Raises:
    probe.WeakSandboxError: If this machine cannot hold untrusted code.
  """
  requests = [_request(problem, answer) for problem, answer in work]
  distinct = list(dict.fromkeys(r for r in requests if r is not None))
  scores = {}
  if distinct:
    box = _open_box(os.getpid(), probe.tier())
    with concurrent.futures.ThreadPoolExecutor(box.slots) as pool:
      found = pool.map(functools.partial(_score, box), distinct)
      scores = dict(zip(distinct, found, strict=True))
  return [scores.get(request, Score('too_long')) for request in requests]


def _request(problem: records.Problem, answer: str) -> str | None:
  if len(answer) > MAX_ANSWER_CHARS:
    return None
  entry: Mapping[str, Any] = {
      'question': problem.question,
      'answer': problem.answer,
      'metadata': problem.metadata,
  }
  return json.dumps(
      {'family': problem.family, 'entry': entry, 'answer': answer}
  )


def _score(box: box_lib.Box, request: str) -> Score:
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
      if isinstance(found, float) and 0.0 <= found <= 1.0:
        status, score = 'ok', found
    except (ValueError, RecursionError):
      pass
  return Score(status, score, result.tier, result.wall_seconds)


@functools.cache
def _open_box(process: int, tier: str) -> box_lib.Box:
  """Return the box of this process; a forked one must not share its parent's."""
  packages = {pathlib.Path(np.__file__).parent.parent}
  entry = box_lib.Entry(gym.__file__, sorted(map(str, packages)))
  slots = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1
  box = box_lib.Box(
      'pure', tier=tier, slots=slots, entry=entry, limits=_LIMITS
  )
  atexit.register(lambda: os.getpid() == process and box.close())
  return box
