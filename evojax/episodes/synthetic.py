"""Synthetic evidence: graded completions that no policy sampled.

Functions of a harness are tested on it before any arm is trained. The
completions are the domain's own attempts, and the domain grades them.
"""

from typing import Any

import ml_collections
import numpy as np

from evojax import records
from evojax.domains import base
from evojax.episodes import collect
from evojax.evidence import schema
from evojax.evidence import views

_PROBLEMS = 4
_CHARACTERS = 8  # Maximum characters per token.


class Evidence:
  """The synthetic evidence of a domain, made once for each config."""

  def __init__(self, domain: base.Domain):
    self._domain = domain
    self._made: dict[Any, views.View] = {}

  def columns(self, config: ml_collections.ConfigDict) -> frozenset[str]:
    """Return the names of all columns that a diagnostic may read."""
    columns = collect.columns(self._domain, config)
    return frozenset(c.name for c in columns if 'diagnostic' in c.readers)

  def evidence(self, config: ml_collections.ConfigDict) -> views.View:
    """Return the synthetic evidence as a diagnostic sees it."""
    key = collect.columns(self._domain, config), config.rollout.max_tokens
    if key not in self._made:
      self._made[key] = make_view(self._domain, config)[0]
    return self._made[key]


def make_view(
    domain: base.Domain,
    config: ml_collections.ConfigDict,
    reader: str = 'diagnostic',
) -> tuple[views.View, int]:
  """Return synthetic evidence, and the number of solved completions.

  Args:
    domain: Gives the first problems of the train split, and grades.
    config: The config of a run; its token limit cuts the completions.
    reader: The reader that the view is for, see `views.View`.

  Returns:
    A view of [4, completions per problem], all of them valid, and a count.

  Raises:
    ValueError: If the domain's problems or grades do not match its own
      declaration.
  """
  # The problems do not depend on the run's seed or limit, so that a function
  # that was admitted once is admitted again when the run continues.
  problems = base.source_of(domain, 'train', 0).take(0, _PROBLEMS)
  texts = [domain.attempts(problem) for problem in problems]
  sizes = list(dict.fromkeys(map(len, texts)))
  if len(sizes) > 1:
    raise ValueError(
        f'domain {domain.name!r}: {sizes[0]} attempts for one problem and'
        f' {sizes[1]} for another; give as many for each'
    )
  limit = config.rollout.max_tokens
  episodes = [
      given if isinstance(given, records.Episode) else _episode(given, limit)
      for group in texts
      for given in group
  ]
  columns = collect.columns(domain, config)
  asked = records.RequestBatch(problems, [(0,)] * _PROBLEMS, config.seed)
  rows = collect.rollout_batch(domain, columns, asked, episodes).rows
  outcome = np.asarray(rows['outcome'], np.float32)
  by_group = outcome.reshape(len(problems), -1)
  advantage = by_group - by_group.mean(1, keepdims=True)
  kept = [True] * len(outcome)
  rows.update(reward=outcome, advantage=advantage.ravel(), kept=kept)
  for name in config.reward.weights:
    rows[schema.PART_PREFIX + name] = outcome
  view = collect.view(rows, columns, config.rollout.max_tokens, reader)
  return view, int(outcome.sum())


def _episode(text: str, max_tokens: int) -> records.Episode:
  """Return an episode of one turn with this text and synthetic tokens."""
  # As long as possible, since text takes most of a function's time.
  text = text[: _CHARACTERS * max_tokens]
  count = min(len(text) + 1, max_tokens)
  return records.Episode(
      np.arange(count, dtype=np.int32),
      np.full(count, -0.5, np.float32),
      'stop' if text else 'length',
      0,
      text,
  )
