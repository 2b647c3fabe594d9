"""Promote: the policy that training goes on from, after every round."""

import shutil

from evojax.evolve import opening
from evojax.evolve import recorder
from evojax.ledger import records
from evojax.training import arm as arm_lib


def untrained(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    verdict: records.Verify,
) -> records.Promote:
  """Return the version of a kept change that trains nothing.

  It has the policy of its parent, whose tokens are counted once.
  """
  return recorder.made_from(
      records.Promote,
      version,
      version=verdict.version,
      parent=version.version,
      harness=design.harness,
      updates=0,
      sampled_tokens=0,
      round=None,
      sources=(),
  )


def advance(
    run: opening.Run,
    version: records.Version,
    race: records.Race,
    kept: records.Verify | None,
) -> records.Promote:
  """Return the policy that a round leaves: of the arms of the harness that won.

  Arms of a candidate that was not kept never enter it: they were trained by a
  harness that the run does not claim.

  Args:
    run: The run.
    version: The state that the round started from.
    race: The round.
    kept: Verdict on the candidate that is kept, if one is.
  """
  e = run.config.evolve
  trial = kept.trial if kept else None
  arms = [a for a in race.arms if a.trial == trial and a.status == 'done']
  name = f'v{len(run.recorder.history.versions)}'
  if e.policy == 'best':
    arms = [max(arms, key=lambda arm: arm.score)]
  weight = 1 / len(arms)
  checkpoint, end = (
      arm_lib.checkpoint_of(arms[0].folder, e.updates),
      arms[0].end,
  )
  if len(arms) > 1:
    checkpoint = arm_lib.checkpoint_of(f'versions/{name}', e.updates)
    end = run.states.merge(
        [run.path / arm_lib.checkpoint_of(a.folder, e.updates) for a in arms],
        [weight] * len(arms),
        run.path / checkpoint,
    )
  return recorder.made_from(
      records.Promote,
      # Its first arm stands for it where a version is diagnosed and replayed.
      arms[0],
      version=name,
      parent=version.version,
      start=version.end,
      end=end,
      checkpoint=str(checkpoint),
      # Of all that trained this policy.
      sampled_tokens=sum(arm.sampled_tokens for arm in arms),
      round=race.round,
      sources=tuple(
          recorder.made_from(records.Source, arm, weight=weight) for arm in arms
      ),
  )


def tidy(run: opening.Run, race: records.Race) -> None:
  """Delete the checkpoints of a round that no later step reads.

  The first arm of the version stays for replays, and the version's own state.
  """
  if not run.primary:
    return
  used = {v.folder for v in run.recorder.history.versions}
  for arm in race.arms:
    if arm.folder not in used:
      shutil.rmtree(run.path / arm.folder / 'checkpoints', ignore_errors=True)
