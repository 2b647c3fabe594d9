"""Replay: updates on recorded rollouts, under a candidate and its parent."""

import dataclasses
import hashlib
import pathlib

from jaxtyping import Float
import numpy as np

from evojax.episodes import collect
from evojax.eval import estimates
from evojax.eval import evaluate as evaluate_lib
from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.ledger import records
from evojax.training import arm as arm_lib
from evojax.training import learner as learner_lib
from evojax.training import reward_pipeline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replayed:
  """Updates on recorded rollouts under a candidate, beside its parent's."""

  effect: records.Estimate  # Of the candidate, a fraction.
  sampled_tokens: int  # To score both.
  equal: bool  # Both left the same parameters and moments, to the bit.


def effect(
    run: opening.Run,
    harnesses: tuple[str, str],
    folder: pathlib.Path,
    steps: list[int],
) -> Replayed:
  """Return what K updates on recorded rollouts make of a change.

  From every retained checkpoint, K updates under the parent and K under the
  candidate learn from the rollouts that were recorded nearest to it (after it,
  or before it where it is the last). Both policies are then scored on the same
  problems of the train split, drawn under a seed of their own.

  Args:
    run: The run.
    harnesses: Hashes of the parent and of the candidate.
    folder: Of the arm that left checkpoints and evidence.
    steps: Of the evidence.
  """
  e = run.config.evolve
  ends: dict[str, list[str]] = {harness: [] for harness in harnesses}
  count = min(e.replay_updates, len(steps))
  # The seed is that of no arm: what is replayed did not train on the problems.
  digest = hashlib.sha256(f'replay {run.config.seed}'.encode()).digest()

  def scores(
      harness: str, checkpoint: pathlib.Path, chosen: list[int]
  ) -> Float[np.ndarray, 'P']:
    """Return the scores after the replayed updates."""
    setup = arms.setup_under(run, harness)
    engine = run.scorer.engine
    learner = learner_lib.Learner(setup, run.states.mesh, run.phases)
    learner.start_from(checkpoint)
    rewards = reward_pipeline.RewardPipeline(setup)
    for step in chosen:
      rows = recorded.load_rows(folder, [step])
      learner.learn(rewards(collect.RolloutBatch.recorded(rows)))
    ends[harness].append(learner.fingerprint())
    engine.update_weights(learner.params, learner.step)
    with run.phases('eval'):
      result = evaluate_lib.evaluate(
          setup.scorer(engine, run.phases),
          split='train',
          seed=int.from_bytes(digest[:4], 'big'),
          problems=e.replay_problems,
          samples=e.samples,
      )
    spent.append(round(result.n_tokens * result.outcomes.size))
    return result.problem_scores

  spent: list[int] = []
  gains = []
  for checkpoint in arm_lib.retained(folder, len(steps)):
    at = int(checkpoint.name.removeprefix('step_'))
    follow = [s for s in steps if s >= at][:count]
    chosen = follow if len(follow) == count else steps[-count:]
    before, after = (scores(h, checkpoint, chosen) for h in harnesses)
    gains.append(after - before)
  # Checkpoints are no sample of anything: problems are, and share them.
  before, after = ends.values()
  return Replayed(
      effect=estimates.over_problems(np.mean(gains, axis=0)),
      sampled_tokens=sum(spent),
      equal=before == after,
  )
