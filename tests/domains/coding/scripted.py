"""A coding domain for untrained policies: their tokens choose a program.

Problems are 'Add K.', graded by the real grader in the real box. The module is
also a config file:
`--config=tests/domains/coding/scripted.py:DIRECTORY_OF_THE_POLICY`.
"""

from collections.abc import Sequence
import dataclasses
import os
from typing import Any
import zlib

import ml_collections

from evojax import records
from evojax.domains import datasets
from evojax.domains import sourced
from evojax.domains import sources
from evojax.domains.coding import domain
from evojax.domains.coding import suite
from tests import tiny

# The programs for problem K; the last is not graded.
PROGRAMS = (
    'print(int(input()) + {k})',
    'print(int(input()) + {k} + 1)',
    'print({visible})',
    'print(int(input()) + {k}',
    'raise KeyError',
    'while True: pass',
)


def problem(k: int) -> records.Problem:
  """Return the problem that adds k; the case of 5 is visible."""
  cases = [suite.Case(f'{n}\n', str(n + k), n == 5) for n in (5, 0, -7, 10**12)]
  return sources.make_problem(
      ({'role': 'user', 'content': f'Add {k}.'},),
      suite.encode(suite.Suite(tuple(cases), seconds=0.2)),
      'add',
      difficulty=k % 3,
  )


class Scripted(domain.CodingDomain):
  """Domain in which a completion's text follows from tokens and problem."""

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade the chosen programs instead of the texts."""
    written = [
        dataclasses.replace(c, text=self.text(p, c))
        for p, c in zip(problems, completions, strict=True)
    ]
    return super().grade_many(problems, written)

  def text(self, asked: records.Problem, completion: records.Episode) -> str:
    """Return a program in a block; '' if the completion is empty."""
    if not completion.text:
      return ''
    k = int(asked.question.strip('.').split()[1])
    pick = zlib.crc32(completion.tokens.tobytes()) % len(PROGRAMS)
    program = PROGRAMS[pick].format(k=k, visible=5 + k)
    return f'```python\n{program}\n```'


def make(**kwargs: Any) -> Scripted:
  """Return the domain with 150 problems, divided by their hashes."""
  data = datasets.divide({'train': [problem(k) for k in range(150)]})
  options = dict(partial=False, slots=2) | kwargs
  return Scripted(sourced.Problems(data=data), **options)


def make_config(
    policy: str | os.PathLike[str], **overrides: Any
) -> ml_collections.ConfigDict:
  """Return `tiny.make_config` with this domain."""
  options = dict(
      domain__name='tests.domains.coding.scripted',
      domain__kwargs=ml_collections.ConfigDict({'partial': True}),
      reward__parts='tests.tiny.parts',
      reward__weights=ml_collections.ConfigDict(
          {'coarse': 0.5, 'outcome': 1.0}
      ),
  )
  return tiny.make_config(policy, **(options | overrides))


def get_config(policy: str) -> ml_collections.ConfigDict:
  """Return a run with everything that must survive a resume; see
  `kill_test`."""
  return make_config(
      policy,
      seed=5,
      steps=4,
      eval__every=2,
      grpo__keep='reward_variance',
      grpo__refill_rounds=2,
  )
