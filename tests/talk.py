"""A multi-turn domain, and a run that trains it in seconds.

Each episode is a math problem, after which the environment asks again, up to
twice. The module is also a config file:
`--config=tests/talk.py:DIRECTORY_OF_THE_POLICY`; see `tests.tiny`.
"""

import random
import time

import ml_collections

from evojax import records
from evojax.domains import environments
from evojax.domains.math import domain as math_domain
from evojax.evidence import schema
from tests import tiny


class Environment:
  """Asks again, after a delay on which nothing may depend."""

  def __init__(self):
    self._heard = []

  def reply(self, turn):
    time.sleep(random.random() * 0.01)
    self._heard.append(turn.text)
    if len(turn.text) % 5 == 0:  # The episode ends early.
      return environments.Reply(action=0, argument=0)
    asked = {'role': 'user', 'content': f'{len(turn.text)}?'}
    return environments.Reply((asked,), action=1, argument=len(turn.text) % 2)

  def close(self):
    return {'heard': self._heard}


class Talk(math_domain.MathDomain):
  name = 'talk'
  limits = environments.Limits(turns=3)

  @property
  def columns(self):
    return (
        *super().columns,
        schema.with_codes('actions', {'none': 0, 'asked': 1}),
        schema.with_codes('arguments', {'even': 0, 'odd': 1}),
        schema.Column('heard', 'int32', 'Turns that the environment heard.'),
    )

  def environment(self, problem):
    return Environment()

  def grade(self, problem, completion):
    grade = super().grade(problem, completion)
    heard = len(completion.state['heard']) if completion.state else 0
    columns = {**grade.columns, 'heard': heard}
    return records.Grade(grade.outcome, grade.partial, grade.status, columns)


def make(**kwargs):
  made = math_domain.make(**kwargs)
  return Talk(made.problems, made.answer_format)


def make_config(policy, **overrides) -> ml_collections.ConfigDict:
  options = dict(
      domain__name='tests.talk',
      data__max_prompt_tokens=24,
      rollout__max_tokens=36,
      rollout__turn_tokens=8,
      rollout__prefill_chunk=8,
      rollout__refill_every=2,
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
      rollout__queue_depth=1,
      rollout__max_staleness=1,
      grpo__tis_cap=2.0,
  )
