"""The stages of a run, derived from its config, for progress and plans."""

import dataclasses
import math
from typing import Any

import ml_collections

from evojax import config as config_lib
from evojax.eval import paired
from evojax.runtime import progress

TRIES = 3  # Maximum number of changes that are tried per free place of a round.
SPARE = 1  # Candidates beyond the places, so that their predictions matter.
FIRST, RETRAINING, SEALED = 'v0', 'retraining', 'sealed scores'
# Estimated probabilities that a candidate's race ends in a round; that it leads
# after half of its pairs; that a round is scored on dev problems; and that a
# change reaches its level and is scored on perturbed problems.
_DECIDED, _LEAD, _OTHERWISE, _KEPT = 0.6, 0.4, 0.2, 0.3
# Estimated share of the rounds in which the policy learns so fast that changes
# which repair nothing wait (evolve.settled).
_LEARNING = 0.5
# Estimated probability that a place is then filled: 10 of the 45 changes that
# were proposed in ten runs of math raced.
_RACED = 0.2
# Estimated share of the token limit that a completion uses.
_USED = 0.5


def of_training(config: ml_collections.ConfigDict) -> list[progress.Stage]:
  """Return the stages of --mode=train after the base policy's first score."""
  c = config
  between = (c.steps - 1) // c.eval.every if c.eval.every and c.steps else 0
  score = dict(problems=c.eval.problems, samples=c.eval.samples)
  found = [
      progress.Stage(
          name='',
          steps=c.steps,
          prompts=c.grpo.prompts,
          group_size=c.grpo.group_size,
          scores=between + 1,
          **score,
      )
  ]
  if c.eval.sealed:
    found.append(progress.Stage(name=SEALED, arms=2, **score))
  return found


def of_round(
    config: ml_collections.ConfigDict, number: int
) -> list[progress.Stage]:
  """Return the stages of a round; each of them may end early."""
  e, grpo = config.evolve, config.grpo
  step = dict(prompts=grpo.prompts, group_size=grpo.group_size)

  def stage(what: str, arms: int, expected: float | int, **fields: Any):
    name = round_name(config, number, what)
    return progress.Stage(name=name, arms=arms, expected=expected, **fields)

  racing, new = _field(e, number)
  some = min(racing, 1.0)  # The probability that any candidate races.
  half = paired.first_half(e.pairs)
  rest = e.pairs - half
  # If a candidate samples differently, all arms are scored on dev problems.
  scored = dict(problems=e.problems, samples=e.samples)
  arms = (1 + e.candidates) * e.pairs
  return [
      # A backtest has four arms: parent and candidate, each from an early and
      # from a late checkpoint.
      stage(
          'backtest',
          4 * TRIES * e.candidates,
          4 * (new + SPARE if number == _waited(e) else new),
          steps=e.replay_updates,
          replays=True,
          problems=e.replay_problems,
          samples=e.samples,
          **step,
      ),
      stage(
          'incumbent',
          e.pairs,
          e.pairs,
          steps=e.updates,
          side_by_side=e.policy == 'mean',
          **step,
      ),
      stage(
          'candidates',
          e.candidates * half,
          racing * half,
          steps=e.updates,
          side_by_side=True,
          **step,
      ),
      stage(
          'remaining candidates',
          e.candidates * rest,
          racing * _LEAD * rest,
          steps=e.updates,
          side_by_side=True,
          **step,
      ),
      stage('dev score', arms, some * _OTHERWISE * arms, **scored),
      stage(
          'perturbed score', 2 * e.pairs, some * _KEPT * 2 * e.pairs, **scored
      ),
  ]


def _field(evolve: ml_collections.ConfigDict, number: int) -> tuple[float, ...]:
  """Return the expected numbers of candidates: racing in a round, and new."""
  racing = new = entered = 0.0
  for n in range(number + 1):
    racing *= 1 - _DECIDED
    new = min(evolve.candidates - racing, evolve.entries - entered)
    new *= 1.0 if evolve.settled >= 1 else _RACED
    new = new if n >= _waited(evolve) else 0.0
    racing, entered = racing + new, entered + new
  return racing, new


def _waited(evolve: ml_collections.ConfigDict) -> int:
  """Return the expected number of rounds before the first candidates."""
  if evolve.settled >= 1:
    return 0
  # How fast the policy learns is not known before the first round.
  return max(math.floor(_LEARNING * evolve.rounds), 1)


def round_name(
    config: ml_collections.ConfigDict, number: int, what: str
) -> str:
  """Return the name of a stage of a round; `number` counts from 0."""
  rounds = config.evolve.rounds
  # Rounds after the last one train the policy and the shadow of a kept change.
  place = f'{number + 1}/{rounds}' if number < rounds else 'horizon'
  return f'round {number} ({place}) {what}'


def of_evolution(
    config: ml_collections.ConfigDict, compared: int = 0, raced: int = 0
) -> list[progress.Stage]:
  """Return the stages of a run that evolves its harness.

  Args:
    config: The config of the run.
    compared: Number of policies of other runs that are scored, too.
    raced: Number of rounds that the run has raced already. A run that continues
      with fewer rounds than these may still have the horizon of the last one.
  """
  c, e = config, config.evolve
  first = progress.Stage(
      name=FIRST,
      steps=e.first_updates,
      prompts=c.grpo.prompts,
      group_size=c.grpo.group_size,
  )
  last = progress.Stage(
      name=RETRAINING,
      steps=c.steps,
      prompts=c.grpo.prompts,
      group_size=c.grpo.group_size,
  )
  # Arms: the base policy, the evolved policy, and with evolve.retrain a policy
  # that the evolved harness trains from the start.
  sealed = progress.Stage(
      name=SEALED,
      arms=2 + e.retrain + compared,
      problems=c.eval.problems,
      samples=c.eval.samples,
  )
  # Rounds after the last one are rare.
  paid, unpaid = min(_rounds(c), e.rounds), dict(arms=0, expected=0)
  rounds = [
      stage if n < paid else dataclasses.replace(stage, **unpaid)
      for n in range(max(e.rounds, raced) + e.horizon)
      for stage in of_round(c, n)
  ]
  return [first, *rounds, *([last] if e.retrain else []), sealed]


def _rounds(config: ml_collections.ConfigDict) -> int:
  """Estimate how many rounds of a run fit into its budget evolve.tokens."""
  e, grpo = config.evolve, config.grpo
  if not e.tokens:
    return e.rounds
  update = grpo.prompts * grpo.group_size * config_lib.token_limit(config)
  left = e.tokens / (update * _USED) - e.first_updates
  for number in range(e.rounds):
    racing, _ = _field(e, number)
    left -= (1 + racing) * e.pairs * e.updates
    if left < 0:
      return max(number, 1)
  return e.rounds


def equal_arms(number: int) -> str:
  """Return the name of a stage of --mode=aa; `number` counts from 0."""
  return f'equal arms ({number + 1})'


def of_equal_arms(
    config: ml_collections.ConfigDict, rounds: int
) -> list[progress.Stage]:
  """Return the stages of --mode=aa: version 0, and the arms of each round."""
  e = config.evolve
  step = dict(prompts=config.grpo.prompts, group_size=config.grpo.group_size)
  arms = (1 + e.candidates) * e.pairs
  return [
      progress.Stage(name=FIRST, steps=e.first_updates, **step),
      *(
          progress.Stage(name=equal_arms(n), arms=arms, steps=e.updates, **step)
          for n in range(rounds)
      ),
  ]
