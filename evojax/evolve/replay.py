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
from evojax.runtime import decisions
from evojax.training import arm as arm_lib
from evojax.training import learner as learner_lib
from evojax.training import reward_pipeline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replayed:
  """Results of updates on recorded rollouts, under candidate and parent."""

  effect: records.Estimate  # Candidate minus parent, a fraction.
  sampled_tokens: int  # Tokens sampled to score both.
  equal: bool  # Whether parameters and moments agree bit for bit.


def effect(
    run: opening.Run,
    harnesses: tuple[str, str],
    folder: pathlib.Path,
    steps: list[int],
) -> Replayed:
  """Return the effect of a change after K updates on recorded rollouts.

  From every retained checkpoint, K updates are made under the parent and K
  under the candidate, on the rollouts recorded nearest to the checkpoint (after
  it, or before it if it is the last one). Both policies are then scored on the
  same problems of the train split, drawn with a separate seed.

  Args:
    run: The run.
    harnesses: Hashes of the parent and of the candidate.
    folder: Folder of the arm with the checkpoints and the evidence.
    steps: Steps of the evidence.
  """
  e = run.config.evolve
  ends: dict[str, list[str]] = {harness: [] for harness in harnesses}
  count = min(e.replay_updates, len(steps))
  # No arm uses this seed, so the scores are on problems of their own.
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
  # Problems are the statistical unit, because all checkpoints share them.
  before, after = ends.values()
  return Replayed(
      effect=estimates.over_problems(np.mean(gains, axis=0)),
      sampled_tokens=sum(spent),
      equal=before == after,
  )
