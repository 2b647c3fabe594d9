"""Promote: the policy that training goes on from, after every round."""

from collections.abc import Sequence
import dataclasses
import shutil

from evojax.evolve import opening
from evojax.evolve import pairs
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


@dataclasses.dataclass(frozen=True)
class State:
  """A state that arms of a harness leave: a policy and its moments."""

  checkpoint: str  # Below the workdir.
  end: str  # Fingerprint.
  arm: records.RacedArm  # Stands for it where it is diagnosed and replayed.
  sources: tuple[records.Source, ...]  # Arms that it was trained by.
  outer_learning_rate: float


def state_of(
    run: opening.Run,
    arms: Sequence[records.RacedArm],
    start: str,
    name: str,
) -> State:
  """Return the state that arms of a round leave together.

  Args:
    run: The run.
    arms: All of one harness; or those of a chain, see `trained_on`.
    start: The checkpoint that the round started from, below the workdir.
    name: Folder of a mean, below the workdir.
  """
  e, last = run.config.evolve, arms[-1]
  weights = [1 / len(arms)] * len(arms)
  if e.policy == 'chain':
    # The last arm has all that those before it learned.
    weights = [0.0] * (len(arms) - 1) + [1.0]
  sources = tuple(
      recorder.made_from(records.Source, arm, weight=weight)
      for arm, weight in zip(arms, weights, strict=True)
  )
  places = [arm_lib.checkpoint_of(arm.folder, e.updates) for arm in arms]
  if e.policy == 'chain':
    return State(str(places[-1]), last.end, last, sources, 1.0)
  # The sum of what few arms learned is less sure than that of all.
  rate = min(e.outer_learning_rate, float(len(arms)))
  target = arm_lib.checkpoint_of(name, e.updates)
  end = run.states.merge(
      [run.path / place for place in places],
      weights,
      run.path / target,
      start=run.path / start,
      outer_learning_rate=rate,
  )
  return State(str(target), end, arms[0], sources, rate)


def trained_on(
    run: opening.Run, race: records.Race, role: str, trial: int | None
) -> list[records.RacedArm]:
  """Return the arms of a round that make the state of a harness after it.

  With the mean, those are all of its arms. In a chain it is the last one,
  unless an earlier one solved clearly more (a harness that does harm does more
  of it from pair to pair), and before it the arms that it continues: those of a
  candidate started where the incumbent's of earlier pairs ended.
  """
  arms = arms_of(race, role, trial)
  if run.config.evolve.policy == 'mean' or not arms:
    return arms
  scores = [pairs.own_scores(run, arm)[0] for arm in arms]
  best = len(arms) - 1
  for i in reversed(range(best)):
    if pairs.is_clearly_worse(scores[best], than=scores[i]):
      best = i
  found = [arms[best]]
  earlier = arms if role == 'shadow' else arms_of(race, 'incumbent', None)
  for arm in sorted(earlier, key=lambda arm: arm.pair, reverse=True):
    if arm.pair < found[0].pair and arm.end == found[0].start:
      found.insert(0, arm)
  return found


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
  start = version.checkpoint
  arms = trained_on(run, race, 'incumbent', None)
  if shadow is not None and shadow.decision == 'drop':
    arms = trained_on(run, race, 'shadow', shadow.trial)
    before = run.recorder.find(
        records.Shadow, trial=shadow.trial, look=shadow.look - 1
    )
    start = before.checkpoint
  elif kept:
    arms = trained_on(run, race, 'candidate', kept.trial)
  state = state_of(run, arms, start, f'versions/{name}')
  return recorder.made_from(
      records.Promote,
      state.arm,
      version=name,
      parent=version.version,
      start=arms[0].start,
      end=state.end,
      checkpoint=state.checkpoint,
      # The sum over all arms that trained this policy.
      sampled_tokens=sum(arm.sampled_tokens for arm in arms),
      round=race.round,
      outer_learning_rate=state.outer_learning_rate,
      sources=state.sources,
  )


def tidy(run: opening.Run, race: records.Race) -> None:
  """Delete the checkpoints of a round that no later step reads.

  The arm that stands for the version stays for replays, and the version's own
  state.
  """
  if not run.primary:
    return
  history = run.recorder.history
  used = {v.folder for v in history.versions}
  used |= {s.folder for s in history.all(records.Shadow)}
  for arm in race.arms:
    if arm.folder not in used:
      shutil.rmtree(run.path / arm.folder / 'checkpoints', ignore_errors=True)
