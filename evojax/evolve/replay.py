"""Replay: updates on recorded rollouts, under a candidate and its parent."""

import hashlib
import pathlib

from jaxtyping import Float
import numpy as np

from evojax import records as step_records
from evojax.eval import estimates
from evojax.evidence import schema
from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.training import arm as arm_lib
from evojax.training import trainer as trainer_lib


def effect(
    run: opening.Run,
    harnesses: tuple[str, str],
    folder: pathlib.Path,
    steps: list[int],
) -> estimates.Estimate:
  """Return the effect of K updates on recorded rollouts.

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
  count = min(run.config.evolve.replay_updates, len(steps))
  seed = _seed(run.config.seed)
  gains = []
  for checkpoint in arm_lib.retained(folder, len(steps)):
    at = int(checkpoint.name.removeprefix('step_'))
    follow = [s for s in steps if s >= at][:count]
    chosen = follow if len(follow) == count else steps[-count:]
    before, after = (
        _scores(run, harness, checkpoint, folder, chosen, seed)
        for harness in harnesses
    )
    gains.append(after - before)
  # Checkpoints are no sample of anything: problems are, and share them.
  return estimates.over_problems(
      np.mean(gains, axis=0), rng=np.random.default_rng(0)
  )


def _seed(seed: int) -> int:
  digest = hashlib.sha256(f'replay {seed}'.encode()).digest()
  return int.from_bytes(digest[:4], 'big')


def _scores(
    run: opening.Run,
    harness: str,
    checkpoint: pathlib.Path,
    folder: pathlib.Path,
    steps: list[int],
    seed: int,
) -> Float[np.ndarray, 'P']:
  """Scores after the replayed updates."""
  trainer = trainer_lib.Trainer(
      arms.setup_under(run, harness),
      run.path / 'backtests' / 'none',  # Nothing is written there.
      run.phases,
      engine=run.scorer.engine,
      start=checkpoint,
  )
  for step in steps:
    trainer.learn(_step_of(trainer, folder, step))
    trainer.step += 1
  trainer.install()
  e = run.config.evolve
  with run.phases('eval'):
    result = trainer.score_split(
        'train', seed=seed, problems=e.replay_problems, samples=e.samples
    )
  return result.problem_scores


def _step_of(
    trainer: trainer_lib.Trainer, folder: pathlib.Path, step: int
) -> trainer_lib.Step:
  """Recorded rollouts, weighed by the trainer's harness."""
  rows = recorded.load_rows(folder, [step])
  order = np.lexsort((rows['sample'], rows['group']))
  rows = {name: values[order] for name, values in rows.items()}
  groups, size = int(rows['group'].max()) + 1, int(rows['sample'].max()) + 1
  rewards, parts, advantages, kept = trainer.weigher.weigh(rows, groups, size)
  codes = {code: name for name, code in schema.FINISH_REASON.items()}
  completions = [
      step_records.Episode(
          tokens=np.asarray(rows['tokens'][i], np.int32),
          logprobs=np.asarray(rows['sampler_logprobs'][i], np.float32),
          finish_reason=codes[int(rows['finish_reason'][i])],
          policy_version=int(rows['policy_version'][i]),
          text=rows['completion'][i],
      )
      for i in range(groups * size)
  ]
  return trainer_lib.Step(
      rows=dict(rows),
      prompts=[np.asarray(p, np.int32) for p in rows['prompt_tokens']],
      completions=completions,
      rewards=rewards,
      advantages=advantages,
      kept=kept,
      graded=rows['graded'].astype(bool).reshape(groups, size),
      parts=parts,
  )
