"""The domain for untrained policies: their tokens choose a behaviour.

Tools, workspaces and grades are real. The module is also a config file:
`--config=tests/domains/swe/scripted.py:DIRECTORY_OF_THE_POLICY`.
"""

import dataclasses
import os
from typing import Any
import zlib

import ml_collections

from evojax.domains.swe import demonstrations
from evojax.domains.swe import domain
from tests import tiny

BEHAVIOURS = ('careful', 'hasty', 'timid', 'looping', 'copying')


class Environment:
  """Receives the turns of a behaviour instead of the sampled ones."""

  def __init__(self, inner, problem, lines, turns):
    self._inner, self._problem = inner, problem
    self._lines, self._turns = lines, turns
    self._left = None
    self.close = inner.close

  def reply(self, turn):
    if self._left is None:
      pick = zlib.crc32(turn.tokens.tobytes()) % len(BEHAVIOURS)
      self._left = list(
          demonstrations.turns(
              self._problem.problem_id,
              BEHAVIOURS[pick],
              self._lines,
              self._turns,
          )
      )
    text = self._left.pop(0) if self._left else ''
    return self._inner.reply(dataclasses.replace(turn, text=text))


class Scripted(domain.SweDomain):

  def environment(self, problem):
    inner = super().environment(problem)
    lines, turns = self.settings.read_lines, self.limits.turns
    return Environment(inner, problem, lines, turns)


def make(**kwargs: Any) -> Scripted:
  made = domain.make(**kwargs)
  return Scripted(**vars(made))


def make_config(
    policy: str | os.PathLike[str], **overrides: Any
) -> ml_collections.ConfigDict:
  """Return `tiny.make_config` with this domain."""
  options = dict(
      domain__name='tests.domains.swe.scripted',
      domain__kwargs=ml_collections.ConfigDict(
          {
              'families': 'lost_sign,off_by_one',
              'max_turns': 5,
              'scrubbed': False,
              'slots': 2,
              'max_letters': 30,
              'read_lines': 2,
          }
      ),
      data__max_prompt_tokens=440,  # Each token has at least one letter.
      rollout__max_tokens=420,
      rollout__turn_tokens=4,
      rollout__prefill_chunk=64,
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
      steps=3,
      eval__problems=2,
      grpo__keep='reward_variance',
      grpo__refill_rounds=2,
  )
