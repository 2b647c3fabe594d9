"""Promote: the policy that training goes on from, after every round."""

from collections.abc import Sequence
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
      outer_learning_rate=1.0,
      sources=(),
  )


def arms_of(
    race: records.Race, role: str, trial: int | None
) -> list[records.RacedArm]:
  """Return the arms of a harness of a round that ended."""
  return [
      arm
      for arm in race.arms
      if (arm.role, arm.trial) == (role, trial) and arm.status == 'done'
  ]


def outer_learning_rate(
    run: opening.Run, arms: Sequence[records.RacedArm]
) -> float:
  """Return how far a policy goes from where its arms started to their mean.

  At most as far as the sum of what the arms learned: where few of a round end,
  their mean is less sure.
  """
  e = run.config.evolve
  if e.policy == 'best':
    return 1.0
  return min(e.outer_learning_rate, float(len(arms)))


def state_of(
    run: opening.Run,
    arms: Sequence[records.RacedArm],
    start: str,
    name: str,
) -> tuple[str, str, list[records.RacedArm]]:
  """Return the state that the arms of one harness leave together.

  Args:
    run: The run.
    arms: Of one round.
    start: The checkpoint that they started from, below the workdir.
    name: Folder of what they leave, below the workdir.

  Returns:
    Its checkpoint below the workdir, its fingerprint, and the arms that it is
    made of: all, or the best alone, see config.evolve.policy.
  """
  e = run.config.evolve
  if e.policy == 'best':
    arms = [max(arms, key=lambda arm: arm.score)]
  places = [arm_lib.checkpoint_of(arm.folder, e.updates) for arm in arms]
  if e.policy == 'best':
    return str(places[0]), arms[0].end, list(arms)
  target = arm_lib.checkpoint_of(name, e.updates)
  weights = [1 / len(arms)] * len(arms)
  sources = [run.path / place for place in places]
  end = run.states.merge(
      sources,
      weights,
      run.path / target,
      start=run.path / start,
      outer_learning_rate=outer_learning_rate(run, arms),
  )
  return str(target), end, list(arms)


def advance(
    run: opening.Run,
    version: records.Version,
    race: records.Race,
    kept: records.Verify | None,
    shadow: records.Shadow | None,
) -> records.Promote:
  """Return the policy that a round leaves: of the arms of the harness that won.

  Arms of a candidate that was not kept never enter it: they were trained by a
  harness that the run does not claim.

  Args:
    run: The run.
    version: The state that the round started from.
    race: The round.
    kept: Verdict on the candidate that is kept, if one is.
    shadow: After the round; one that takes a change back is the policy again.
  """
  name = f'v{len(run.recorder.history.versions)}'
  back = shadow is not None and shadow.decision == 'drop'
  start = version.checkpoint
  if back:
    arms = arms_of(race, 'shadow', shadow.trial)
    before = run.recorder.find(
        records.Shadow, trial=shadow.trial, look=shadow.look - 1
    )
    start = before.checkpoint
  elif kept:
    arms = arms_of(race, 'candidate', kept.trial)
  else:
    arms = arms_of(race, 'incumbent', None)
  checkpoint, end, arms = state_of(run, arms, start, f'versions/{name}')
  return recorder.made_from(
      records.Promote,
      # Its first arm stands for it where a version is diagnosed and replayed.
      arms[0],
      version=name,
      parent=version.version,
      start=arms[0].start,
      end=end,
      checkpoint=checkpoint,
      # The sum over all arms that trained this policy.
      sampled_tokens=sum(arm.sampled_tokens for arm in arms),
      round=race.round,
      outer_learning_rate=outer_learning_rate(run, arms),
      sources=tuple(
          recorder.made_from(records.Source, arm, weight=1 / len(arms))
          for arm in arms
      ),
  )


def tidy(run: opening.Run, race: records.Race) -> None:
  """Delete the checkpoints of a round that no later step reads.

  The first arm of the version stays for replays, and the version's own state.
  """
  if not run.primary:
    return
  history = run.recorder.history
  used = {v.folder for v in history.versions}
  used |= {s.folder for s in history.all(records.Shadow)}
  if run.config.evolve.policy == 'best':
    used |= {
        v.checkpoint.partition('/checkpoints')[0] for v in history.versions
    }
  for arm in race.arms:
    if arm.folder not in used:
      shutil.rmtree(run.path / arm.folder / 'checkpoints', ignore_errors=True)
