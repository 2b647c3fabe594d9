"""Evidence of made-up completions: what functions are tried on beforehand.

A domain's own attempts, or answers in every common format, prose and silence;
graded by the domain itself.
"""

from typing import Any

import ml_collections
import numpy as np

from evojax import records
from evojax.domains import base
from evojax.episodes import collect
from evojax.episodes import rows as rows_lib
from evojax.evidence import schema
from evojax.evidence import views

_PROBLEMS = 4
_CHARACTERS = 8  # Of a token, at most.


class Evidence:
  """The synthetic evidence of a domain under any config, made once for each."""

  def __init__(self, domain: base.Domain):
    self._domain = domain
    self._made: dict[Any, views.View] = {}

  def columns(self, config: ml_collections.ConfigDict) -> frozenset[str]:
    """Names of all columns that a diagnostic may read."""
    columns = collect.columns(self._domain, config)
    return frozenset(c.name for c in columns if 'diagnostic' in c.readers)

  def evidence(self, config: ml_collections.ConfigDict) -> views.View:
    """What a diagnostic sees of it."""
    key = collect.columns(self._domain, config), config.rollout.max_tokens
    if key not in self._made:
      self._made[key] = make_view(self._domain, config)[0]
    return self._made[key]


def make_view(
    domain: base.Domain,
    config: ml_collections.ConfigDict,
    reader: str = 'diagnostic',
) -> tuple[views.View, int]:
  """Evidence of made-up completions, and how many of them are solved.

  Args:
    domain: Gives the first problems of train, and grades.
    config: Of a run; its limit of tokens cuts what is made up.
    reader: Who is to read it, see `views.View`.

  Returns:
    A view of [4, completions per problem], all of them valid, and a count.

  Raises:
    ValueError: If the domain does not give problems or grades that fit its own
      declaration.
  """
  # Whatever the run's seed and limit are: a function that was admitted once is
  # admitted again where the run continues.
  problems = domain.source('train', 0).take(0, _PROBLEMS)
  texts = [domain.attempts(problem) for problem in problems]
  group_size = len(texts[0])
  completions = []
  for group in texts:
    if len(group) != group_size:
      raise ValueError(
          f'domain {domain.name!r}: {group_size} attempts for one problem and'
          f' {len(group)} for another; give as many for each'
      )
    for text in group:
      # As long as one can be: text takes most of a function's time.
      text = text[: _CHARACTERS * config.rollout.max_tokens]
      tokens = np.arange(min(len(text) + 1, config.rollout.max_tokens))
      completion = records.Episode(
          tokens.astype(np.int32),
          np.full(len(tokens), -0.5, np.float32),
          'stop' if text else 'length',
          0,
          text,
      )
      completions.append(completion)
  grades, seconds = collect.grade(domain, problems, completions)
  columns = collect.columns(domain, config)
  rows = rows_lib.from_rollouts(
      problems,
      completions,
      grades,
      columns=columns,
      group_size=group_size,
      step=0,
      split='train',
      seed=config.seed,
      version='seed',
      prompt_tokens=[(0,)] * len(problems),
      grade_seconds=seconds,
  )
  outcome = np.array([grade.outcome for grade in grades], np.float32)
  by_group = outcome.reshape(len(problems), -1)
  advantage = by_group - by_group.mean(1, keepdims=True)
  kept = [True] * len(grades)
  rows.update(reward=outcome, advantage=advantage.ravel(), kept=kept)
  for name in config.reward.weights:
    rows[schema.PART_PREFIX + name] = outcome
  view = views.View.from_rows(
      rows,
      columns,
      prompts=len(problems),
      group_size=group_size,
      max_tokens=config.rollout.max_tokens,
      reader=reader,
  )
  return view, int(outcome.sum())
