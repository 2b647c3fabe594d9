"""Final: sealed scores of all policies, and the tokens that they cost."""

import dataclasses
import pathlib

import numpy as np

from evojax.eval import estimates
from evojax.evolve import compared as compared_lib
from evojax.evolve import opening
from evojax.evolve import scoring
from evojax.evolve.steps import retrain as retrain_lib
from evojax.ledger import records
from evojax.models import policy as policy_lib
from evojax.runtime import decisions
from evojax.training import arm as arm_lib

# Rows of the final table that are there even if nothing was brought in.
COMPARED = ('reference', 'seed', 'random')


def score(
    run: opening.Run, head: records.Version, retrained: records.Retrain
) -> records.Final:
  """Score base, evolved and compared policies on the same sealed problems.

  Args:
    run: The run.
    head: The newest version, whose policy went on training through the search.
    retrained: Its harness, trained from the base policy.
  """
  c = run.config.eval
  seed = run.recorder.find(records.Seal).seed
  outcomes: dict[str, np.ndarray] = {}

  def score_one(
      name: str,
      checkpoint: pathlib.Path | None = None,
      policy: policy_lib.Policy | None = None,
  ) -> None:
    outcomes[name] = run.scorer.scores(
        scoring.Scored(
            folder=run.path / 'sealed' / name,
            checkpoint=checkpoint,
            split='sealed',
            seed=seed,
            problems=c.problems,
            samples=c.samples,
            policy=policy,
        )
    )

  score_one('base')
  score_one('continued', run.path / head.checkpoint)
  score_one('evolved', evolved_checkpoint(run, retrained))
  for other in run.compared:
    score_one(other.name, policy=other.policy)

  scores = dict.fromkeys((*outcomes, *COMPARED))
  return records.Final(
      harness=head.harness,
      version=head.version,
      problems=c.problems,
      samples=c.samples,
      scores=scores
      | {name: estimates.over_problems(x) for name, x in outcomes.items()},
      gains={
          name: estimates.over_problems(values - outcomes['base'])
          for name, values in outcomes.items()
          if name != 'base'
      },
      evolved_over={
          name: estimates.over_problems(outcomes['evolved'] - values)
          for name, values in outcomes.items()
          if name != 'evolved'
      },
      compute=_compute(run),
  )


def evolved_checkpoint(
    run: opening.Run, retrained: records.Retrain
) -> pathlib.Path:
  """Return the checkpoint of the retrained policy."""
  folder = run.path / retrain_lib.FOLDER
  return arm_lib.checkpoint_of(folder, retrained.updates)


def _compute(run: opening.Run) -> dict[str, records.Tokens]:
  """Sampled tokens of each policy's own training, and of its whole run."""

  def count() -> dict[str, dict[str, int]]:
    final = compared_lib.total_tokens(run.path / retrain_lib.FOLDER)
    total = compared_lib.total_tokens(run.path)
    versions = run.recorder.history.versions
    continued = sum(version.sampled_tokens for version in versions)
    found = {
        'evolved': records.Tokens(training=final, total=total),
        'continued': records.Tokens(training=continued, total=total - final),
    }
    for other in run.compared:
      found[other.name] = compared_lib.tokens_of(other.path)
    return {name: dataclasses.asdict(tokens) for name, tokens in found.items()}

  return {
      name: records.Tokens(**tokens)
      for name, tokens in decisions.decide(count).items()
  }
