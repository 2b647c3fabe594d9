"""From problems to graded completions: what training and evaluation share.

B = P * G completions are in group-major order throughout.
"""

from collections.abc import Sequence
import re
import time

import ml_collections
import numpy as np

from evojax import records
from evojax.domains import base
from evojax.evidence import schema
from evojax.models import tokenizer as tokenizer_lib

_ID = re.compile('[0-9a-f]{16}')


def columns(
    domain: base.Domain, config: ml_collections.ConfigDict
) -> tuple[schema.Column, ...]:
  """What the evidence of a run holds, and who may read it."""
  return schema.declare(
      domain.columns,
      tuple(config.reward.weights),
      blind=config.evolve.seed_harness == 'seed_blind',
  )


def render(
    tokenizer: tokenizer_lib.Tokenizer,
    problems: Sequence[records.Problem],
    max_prompt_tokens: int,
) -> list[tuple[int, ...]]:
  """Prompt tokens of each problem.

  Args:
    tokenizer: Renders the messages with its chat template.
    problems: P problems.
    max_prompt_tokens: Lp.

  Raises:
    ValueError: If a prompt has more than `max_prompt_tokens` tokens.
  """
  prompts = [tuple(tokenizer.render(p.messages)) for p in problems]
  longest = max(map(len, prompts), default=0)
  for problem, prompt in zip(problems, prompts, strict=True):
    if len(prompt) > max_prompt_tokens:
      raise ValueError(
          f'the prompt of problem {problem.problem_id} (family'
          f' {problem.family!r}) has {len(prompt)} tokens, more than'
          f' data.max_prompt_tokens={max_prompt_tokens}. The longest of these'
          f' {len(problems)} has {longest}: set'
          f' --config.data.max_prompt_tokens={longest} or more, or leave the'
          ' family out of domain.kwargs'
      )
  return prompts


def requests(
    problems: Sequence[records.Problem],
    prompts: Sequence[tuple[int, ...]],
    params: records.SamplingParams,
    *,
    group_size: int,
    seed: int,
) -> list[records.Request]:
  """B requests: `group_size` samples of each problem.

  Args:
    problems: P problems.
    prompts: P rendered prompts.
    params: How to sample.
    group_size: G.
    seed: Of the sampler. Requests with the same seed, problem and sample draw
      the same random numbers.

  Raises:
    ValueError: If a problem_id is not 16 hex digits.
  """
  return [
      records.Request(
          prompt_tokens=prompt,
          seed=seed,
          problem_key=_key(problem),
          sample=sample,
          params=params,
      )
      for problem, prompt in zip(problems, prompts, strict=True)
      for sample in range(group_size)
  ]


def _key(problem: records.Problem) -> int:
  """uint32 that names the problem to the sampler."""
  if not _ID.fullmatch(problem.problem_id):
    raise ValueError(
        f'problem_id={problem.problem_id!r} of family {problem.family!r} is not'
        ' 16 hex digits; take the head of a hash of the problem text'
    )
  return int(problem.problem_id[:8], 16)


class GradingError(OSError):
  """What judges completions does not work: there is nothing to go on with."""


def grade(
    domain: base.Domain,
    problems: Sequence[records.Problem],
    completions: Sequence[records.Episode],
) -> tuple[list[records.Grade], np.ndarray]:
  """Grade B completions of P problems.

  Returns:
    B grades, and the wall time of each in seconds, float32 [B].

  Raises:
    ValueError: If the domain gives another number of grades.
    GradingError: If none of them could be graded.
  """
  group_size = len(completions) // max(len(problems), 1)
  asked = [problems[b // group_size] for b in range(len(completions))]
  start = time.perf_counter()
  grades = domain.grade_many(asked, completions)
  if len(grades) != len(completions):
    raise ValueError(
        f'domain {domain.name!r}: grade_many gave {len(grades)} grades for'
        f' {len(completions)} completions'
    )
  # A grade without a time of its own gets an equal share of the call's.
  share = (time.perf_counter() - start) / max(len(grades), 1)
  if grades and not any(g.graded for g in grades):
    raise GradingError(
        f'domain {domain.name!r}: none of {len(grades)} completions could be'
        ' graded, so this is not their fault: what judges them does not work'
        ' here. `python -m evojax.sandbox.probe` tries the box; the same'
        ' command continues the run'
    )
  seconds = [share if g.seconds is None else g.seconds for g in grades]
  return grades, np.array(seconds, np.float32)
