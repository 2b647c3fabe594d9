"""Promote: the kept candidate as the version that training goes on from."""

from evojax.evolve import opening
from evojax.evolve import recorder
from evojax.evolve.steps import trial as trial_lib
from evojax.harness import delta as delta_lib
from evojax.ledger import records
from evojax.training import arm as arm_lib


def promote(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
    verdict: records.Verify,
) -> records.Promote:
  """Return the new version.

  Its policy is that of the first child arm, which was named before any was
  scored. A change that trains nothing keeps the policy of its parent.
  """
  named = dict(version=verdict.version, parent=version.version)
  # Nothing was trained: the tokens of the parent are counted once.
  if not delta.trains:
    named |= dict(harness=design.harness, updates=0, sampled_tokens=0)
    return recorder.made_from(records.Promote, version, **named)
  trial = run.recorder.find(records.Trial, trial=verdict.trial)
  child = trial_lib.first(trial, 'child')
  named |= dict(
      checkpoint=str(arm_lib.checkpoint_of(child.folder, child.updates))
  )
  return recorder.made_from(records.Promote, child, **named)
