"""Promote: the policy that training continues from, after every round."""

from collections.abc import Sequence
import dataclasses
import shutil

from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorder
from evojax.ledger import records
from evojax.runtime import copies
from evojax.runtime import mirror
from evojax.runtime import run_files
from evojax.training import arm as arm_lib


def untrained(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    verdict: records.Verify,
) -> records.Promote:
  """Return the version of a kept change that trains nothing.

  It has its parent's policy, whose tokens are counted only once.
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
  """Return the finished arms of one harness of a round."""
  return [
      arm
      for arm in race.arms
      if (arm.role, arm.trial) == (role, trial) and arm.status == 'done'
  ]


@dataclasses.dataclass(frozen=True)
class State:
  """The state that arms of a harness lead to: a policy and Adam's moments."""

  checkpoint: str  # Path below the workdir.
  end: str  # Fingerprint.
  arm: records.RacedArm  # Represents the state in diagnoses and replays.
  sources: tuple[records.Source, ...]  # Arms that trained the state.
  outer_learning_rate: float


def state_of(
    run: opening.Run,
    arms: Sequence[records.RacedArm],
    start: str,
    name: str,
) -> State:
  """Return the state that the arms of a round lead to.

  Args:
    run: The run.
    arms: All arms of one harness, or those of a chain; see `trained_on`.
    start: The checkpoint that the round started from, below the workdir.
    name: Folder for a mean, below the workdir.
  """
  e, last = run.config.evolve, arms[-1]
  weights = [1 / len(arms)] * len(arms)
  if e.policy == 'chain':
    # In a chain the last arm continues all arms before it.
    weights = [0.0] * (len(arms) - 1) + [1.0]
  sources = tuple(
      recorder.made_from(records.Source, arm, weight=weight)
      for arm, weight in zip(arms, weights, strict=True)
  )
  places = [arm_lib.checkpoint_of(arm.folder, e.updates) for arm in arms]
  if e.policy == 'chain':
    return State(str(places[-1]), last.end, last, sources, 1.0)
  # The more arms, the lower the variance of their mean, and the larger the
  # step.
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
  """Return the arms of a round that train the state of a harness after it.

  With evolve.policy=mean, these are all of its arms. In a chain, they are one
  arm and all that it continues: the last arm that is not left out for lack of
  progress (`pairs.is_left_out`), or an earlier one that solved clearly more, as
  the harm of a bad harness grows from pair to pair. If every arm would be left
  out, the choice is among all of them. Where the chain followed a candidate,
  the incumbent's arms that continue those of the candidate are left out.
  """
  arms = arms_of(race, role, trial)
  if run.config.evolve.policy == 'mean' or not arms:
    return arms
  lines = [_line(race, arm) for arm in arms]
  if role == 'incumbent':
    lines = [line for line in lines if {arm.role for arm in line} == {role}]
  taught = [
      line
      for line in lines
      if not pairs.is_left_out(run, race.version, role, line[-1])
  ]
  lines = taught or lines
  scores = [pairs.own_scores(run, line[-1]) for line in lines]
  best = len(lines) - 1
  for i in reversed(range(best)):
    if pairs.is_clearly_worse(scores[best], than=scores[i]):
      best = i
  return lines[best]


def _line(race: records.Race, arm: records.RacedArm) -> list[records.RacedArm]:
  """Return the arms of a round that an arm continues, and the arm itself."""
  found = [arm]
  # If arms of two harnesses ended in equal states, because no update changed
  # the policy, the arm continues the one of its own harness.
  order = lambda a: (-a.pair, a.role != arm.role)
  for earlier in sorted(race.arms, key=order):
    before = earlier.pair < found[0].pair and earlier.status == 'done'
    if before and earlier.end == found[0].start:
      found.insert(0, earlier)
  return found


def has_followed(race: records.Race) -> bool:
  """Return whether the chain of a round followed a candidate."""
  starts = {arm.start for arm in race.arms}
  return any(a.role == 'candidate' and a.end in starts for a in race.arms)


def advance(
    run: opening.Run,
    version: records.Version,
    race: records.Race,
    kept: records.Verify | None,
    shadow: records.Shadow | None,
) -> records.Promote:
  """Return the policy after a round, trained by the arms of the winner.

  Arms of a candidate that was not kept are left out, because its harness is not
  part of the run's result. In a chain, the policy stays as it was before the
  round if all of the incumbent's arms are left out, see `pairs.is_left_out`.

  Args:
    run: The run.
    version: The state that the round started from.
    race: The round.
    kept: Verdict on the candidate that is kept, if any.
    shadow: The shadow after the round, if any. If it takes a change back, its
      policy becomes the run's.
  """
  name = f'v{len(run.recorder.history.versions)}'
  start = version.checkpoint
  state = None  # Set here only if the policy stays as it was.
  arms = trained_on(run, race, 'incumbent', None)
  if shadow is not None and shadow.decision == 'drop':
    arms = trained_on(run, race, 'shadow', shadow.trial)
    before = run.recorder.find(
        records.Shadow, trial=shadow.trial, look=shadow.look - 1
    )
    start = before.checkpoint
  elif kept:
    arms = trained_on(run, race, 'candidate', kept.trial)
  elif run.config.evolve.policy == 'chain' and pairs.is_left_out(
      run, race.version, 'incumbent', arms[-1]
  ):
    state = State(version.checkpoint, version.end, arms[-1], (), 1.0)
  state = state or state_of(run, arms, start, f'versions/{name}')
  # The tokens of all arms that trained this policy.
  tokens = sum(arm.sampled_tokens for arm in arms) if state.sources else 0
  return recorder.made_from(
      records.Promote,
      state.arm,
      version=name,
      parent=version.version,
      start=arms[0].start,
      end=state.end,
      checkpoint=state.checkpoint,
      sampled_tokens=tokens,
      round=race.round,
      outer_learning_rate=state.outer_learning_rate,
      sources=state.sources,
  )


def tidy(run: opening.Run, race: records.Race) -> None:
  """Delete the checkpoints of a round that no later step reads.

  The checkpoints of the version, and of the arm that represents it in replays,
  stay. The other arms do not change any more.
  """
  if not copies.writes(run.path):
    return
  history = run.recorder.history
  used = {v.folder for v in history.versions}
  used |= {s.folder for s in history.all(records.Shadow)}
  for arm in race.arms:
    if arm.folder not in used:
      folder = run.path / arm.folder
      shutil.rmtree(folder / run_files.CHECKPOINTS, ignore_errors=True)
      mirror.settle(folder)
