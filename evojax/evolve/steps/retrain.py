"""Retrain: the base policy is trained under the final harness.

This training has the steps and prompts of the config, as with any recipe. Its
result shows whether the recipe is good, or only the one policy that was trained
through the search was lucky.
"""

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorder
from evojax.ledger import records
from evojax.training import stages

FOLDER = 'arms/final'


def retrain(run: opening.Run, head: records.Version) -> records.Retrain:
  """Train the base policy under the harness of the newest version.

  Raises:
    ValueError: If training fails.
  """
  job = arms.job(
      run,
      folder=FOLDER,
      harness=head.harness,
      changes={'eval.sealed': False},
      label=f'the final harness from the base policy: {run.config.steps} steps',
  )
  refusal = 'the final harness did not train from the base policy'
  arm = arms.train_one(run, job, stages.RETRAINING, refusal)
  return recorder.made_from(records.Retrain, arm, version='final')
