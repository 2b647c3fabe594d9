"""Replay: updates on recorded rollouts, under a candidate and its parent.

After the first replayed update, and where the checkpoint is older or newer than
the rollouts, the policy is not the one that sampled them. So each token has the
weight exp(logprob - recorded), from the log-prob recorded with the rollout,
truncated at `WEIGHT_CAP` (see `rl.importance`). Groups that a filter drops are
replaced by groups of other recorded steps, where training would sample others.
"""

import dataclasses
import hashlib
import pathlib

from jaxtyping import Float
import numpy as np

from evojax import config as config_lib
from evojax.episodes import collect
from evojax.eval import estimates
from evojax.eval import evaluate as evaluate_lib
from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.training import arm as arm_lib
from evojax.training import learner as learner_lib
from evojax.training import reward_pipeline
from evojax.training import setup as setup_lib

# Largest weight of a token, unless the harness sets grpo.tis_cap itself.
WEIGHT_CAP = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replayed:
  """Results of updates on recorded rollouts, under candidate and parent."""

  # Candidate minus parent, a fraction. If `silent`, its interval is a bound: if
  # n scores do not differ, at most 3 / n of all do, with 95 % confidence.
  effect: records.Estimate
  equal: bool  # Whether parameters and moments agree bit for bit.
  # Whether no score differs although the parameters do: that does not show that
  # the effect of such a change is 0.
  silent: bool


def problems_seed(seed: int, arm: str) -> int:
  """Return the seed of the problems on which replays are scored.

  No arm uses it, so that these problems are new to the policy. Each version has
  problems of its own, so that no problem decides about all changes of a run.

  Args:
    seed: Seed of the run.
    arm: Name of the arm whose checkpoints are replayed.
  """
  digest = hashlib.sha256(f'replay {seed} {arm}'.encode()).digest()
  return int.from_bytes(digest[:4], 'big')


def effect(
    run: opening.Run,
    harnesses: tuple[str, str],
    folder: pathlib.Path,
    steps: list[int],
    spent: list[int],
) -> Replayed:
  """Return the effect of a change after K updates on recorded rollouts.

  From every retained checkpoint, K updates are made under the parent and K
  under the candidate, on recorded rollouts: the first K steps after the
  checkpoint, or the last K steps if fewer follow. Both policies are then scored
  on the same problems of the train split, drawn with a seed of their own for
  each version.

  Args:
    run: The run.
    harnesses: Hashes of the parent and of the candidate.
    folder: Folder of the arm with the checkpoints and the evidence.
    steps: Steps of the evidence.
    spent: Gets the tokens of each score at once, since an update may fail after
      some scores.
  """
  e = run.config.evolve
  ends: dict[str, list[str]] = {harness: [] for harness in harnesses}
  count = min(e.replay_updates, len(steps))
  seed = problems_seed(run.config.seed, folder.name)

  def scores(
      harness: str, checkpoint: pathlib.Path, chosen: list[int]
  ) -> Float[np.ndarray, 'P']:
    """Return the scores after the replayed updates."""
    setup = weighted(arms.setup_under(run, harness))
    engine = run.scorer.engine
    learner = learner_lib.Learner(setup, run.states.mesh, run.phases)
    learner.start_from(checkpoint)
    rewards = reward_pipeline.RewardPipeline(setup)
    others = [step for step in steps if step not in chosen]
    for step in chosen:
      nearest = sorted(others, key=lambda s, at=step: (abs(s - at), s))
      learner.learn(refilled(setup, rewards, folder, [step, *nearest]))
    ends[harness].append(learner.fingerprint())
    engine.update_weights(learner.params, learner.step)
    with run.phases('eval'):
      result = evaluate_lib.evaluate(
          setup.scorer(engine, run.phases),
          split='train',
          seed=seed,
          problems=e.replay_problems,
          samples=e.samples,
      )
    spent.append(round(result.n_tokens * result.outcomes.size))
    return result.problem_scores

  gains = []
  names = decisions.decide(
      lambda: [path.name for path in arm_lib.retained(folder, len(steps))]
  )
  for name in names:
    at = int(name.removeprefix('step_'))
    follow = [s for s in steps if s >= at][:count]
    chosen = follow if len(follow) == count else steps[-count:]
    checkpoint = arm_lib.checkpoint_of(folder, at)
    before, after = (scores(h, checkpoint, chosen) for h in harnesses)
    gains.append(after - before)
  before, after = ends.values()
  return compared(np.array(gains), before == after)


def compared(gains: Float[np.ndarray, 'C P'], equal: bool) -> Replayed:
  """Return the results of replays.

  Args:
    gains: Candidate minus parent, by checkpoint and problem.
    equal: Whether their parameters and moments agree bit for bit.
  """
  # Problems are the statistical unit, because all checkpoints share them.
  found = estimates.over_problems(gains.mean(axis=0))
  silent = not equal and not gains.any()
  if silent:
    bound = min(3 / gains.size, 1.0)
    found = dataclasses.replace(found, low=-bound, high=bound)
  return Replayed(effect=found, equal=equal, silent=silent)


def weighted(setup: setup_lib.Setup) -> setup_lib.Setup:
  """Return a setup whose updates weight tokens by recorded log-probs."""
  config = setup.config
  if config.grpo.tis_cap > 0:
    return setup
  weights = {
      'grpo.tis_cap': WEIGHT_CAP,
      'grpo.tis_floor': 0.0,
      'grpo.tis_mode': 'token_truncate',
  }
  config = config_lib.with_fields(config, weights)
  return dataclasses.replace(setup, config=config)


def refilled(
    setup: setup_lib.Setup,
    rewards: reward_pipeline.RewardPipeline,
    folder: pathlib.Path,
    steps: list[int],
) -> reward_pipeline.RewardedBatch:
  """Return the recorded rollouts of a step, with groups for those dropped.

  As in training, there are up to grpo.refill_rounds further rounds until
  grpo.prompts groups are kept.

  Args:
    setup: The setup of the replay.
    rewards: Its reward pipeline.
    folder: Folder of the arm with the evidence.
    steps: The step, then those that groups may be taken from, nearest first.
  """
  grpo = setup.config.grpo
  rounds: list[reward_pipeline.RewardedBatch] = []
  for step in steps[: 1 + grpo.refill_rounds]:
    rows = recorded.load_rows([(folder, step)])
    rounds.append(rewards(collect.RolloutBatch.recorded(rows)))
    if sum(int(found.kept.sum()) for found in rounds) >= grpo.prompts:
      break
  return reward_pipeline.join(rounds)
