"""Retrain: the final harness from the base policy.

It has the steps and prompts of the config, as a recipe of someone else would
have. That tells a good recipe from the luck of the policy that was trained on
through the search.
"""

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorder
from evojax.ledger import records
from evojax.training import stages

FOLDER = 'arms/final'


def retrain(run: opening.Run, head: records.Version) -> records.Retrain:
  """Train the harness of the newest version from the base policy.

  Raises:
    ValueError: If it does not train.
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
