"""Shadow: the policy as it would be without the last kept change.

A change that helps for a round may do harm later: in math, three times the
learning rate is ahead for about 60 updates and behind afterwards. So the former
harness keeps training from the state of its own arms, in the place of a
candidate, for up to evolve.horizon rounds; no other change is kept meanwhile.
If the policy falls behind its shadow, the change is taken back, and the
shadow's policy becomes the run's. If the rounds of the run end first, further
rounds train only the policy and the shadow. If its tokens are spent first, the
change stays unchecked at this horizon, and the run reports it.
"""

from collections.abc import Sequence
import dataclasses

from evojax.eval import paired
from evojax.eval import race as race_lib
from evojax.evolve import costs
from evojax.evolve import learning
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import repairs
from evojax.evolve.steps import accumulate
from evojax.evolve.steps import promote
from evojax.ledger import records
from evojax.runtime import decisions


def current(run: opening.Run) -> records.Shadow | None:
  """Return the shadow that is training, if any."""
  found = run.recorder.find(records.Shadow)
  return found if found and found.decision == 'go_on' else None


def paid(run: opening.Run, number: int) -> records.Shadow | None:
  """Return the shadow that trains in a round, if any.

  If the tokens do not pay for it in addition to the incumbent, it trains no
  more, and its change stays unchecked at the longer horizon. It is paid for
  before candidates that race on, because its change is already in the policy.
  """
  if current(run) and costs.payable(run, number) < 2:
    leave(run, 'evolve.tokens does not pay for another round of its shadow')
  return current(run)


def leave(run: opening.Run, reason: str) -> None:
  """End the shadow that is training, if any, without a decision on its change.

  Args:
    run: The run.
    reason: Why it trains no more.
  """
  shadow = current(run)
  if shadow is None:
    return
  run.recorder.append(
      dataclasses.replace(shadow, decision='unchecked', reason=reason)
  )
  run.say(f'trial {shadow.trial} stays kept, horizon not checked: {reason}')


def is_needed(
    run: opening.Run, race: records.Race, verdict: records.Verify
) -> bool:
  """Return whether the former harness could catch up while a shadow lasts.

  A former harness that does not learn, or learned too slowly in the round, gets
  no shadow, as a shadow costs as much training as the policy. Where the chain
  followed the repair of a critical fault, the former harness has not continued
  its own training, and so has no state to start a shadow from.

  Args:
    run: The run.
    race: The round in which the change was kept.
    verdict: The verdict on the change.
  """
  looks = run.config.evolve.horizon
  if not looks or promote.has_followed(race):
    return False
  arms = promote.arms_of(race, 'incumbent', None)
  mends = _mends(run, verdict.trial)
  outcome = _outcomes(arms)
  return learning.could_catch_up(outcome, verdict.low, looks, mends)


def _mends(run: opening.Run, number: int) -> bool:
  """Return whether the change of a trial repairs a fault."""
  trials = run.recorder.history.trials
  return any(repairs.repairs_fault(t) for t in trials if t.number == number)


def _outcomes(arms: Sequence[records.RacedArm]) -> list[float]:
  """Return the solved share of each update of arms in a row."""
  return [x for arm in arms for x in arm.outcome]


def begin(
    run: opening.Run,
    version: records.Version,
    race: records.Race,
    trial: int,
) -> records.Shadow:
  """Return the shadow of a kept change, at the end of the incumbent's arms.

  Args:
    run: The run.
    version: The state that the round started from.
    race: The round.
    trial: Number of the trial of the change.
  """
  arms = promote.trained_on(run, race, 'incumbent', None)
  target = f'shadows/t{trial:03d}-0'
  state = promote.state_of(run, arms, version.checkpoint, target)
  e, tokens = run.config.evolve, costs.of_harness(run, race.round + 1)
  more = max(0, race.round + 1 + e.horizon - e.rounds)
  text = f'trial {trial}: its former harness trains beside the policy for up to'
  text += f' {e.horizon} rounds, about {e.horizon * tokens:,.0f} tokens'
  if more:
    text += f'; {more} of them come after the last round, and there the policy'
    text += f' trains on, too, for about {more * tokens:,.0f}'
  run.say(text)
  return records.Shadow(
      trial=trial,
      round=race.round,
      look=0,
      harness=version.harness,
      checkpoint=state.checkpoint,
      end=state.end,
      folder=state.arm.folder,
      differences=(),
      errors=(),
      decision='go_on',
      reason='',
  )


def look(
    run: opening.Run, shadow: records.Shadow, race: records.Race
) -> records.Shadow:
  """Return the shadow after another round, with its decision on the change.

  Args:
    run: The run.
    shadow: The shadow before the round.
    race: The round.
  """
  number = shadow.look + 1
  looks = run.config.evolve.horizon
  last = number >= looks
  arms = promote.trained_on(run, race, 'shadow', shadow.trial)
  found, errors = pairs.differences(
      run, race.round, race.arms, race.scored_by, 'shadow', shadow.trial
  )
  # Policy minus shadow; `differences` gives shadow minus policy.
  ahead = [-d for d in found]
  common = dict(
      trial=shadow.trial,
      round=race.round,
      look=number,
      harness=shadow.harness,
      differences=tuple(ahead),
      errors=tuple(errors),
  )
  if len(ahead) < 2:
    return records.Shadow(
        **common,
        checkpoint=shadow.checkpoint,
        end=shadow.end,
        folder=shadow.folder,
        decision='keep',
        reason='the former harness does not train any more',
    )
  verdict = decisions.decide(
      lambda: _decided(ahead, errors, looks=looks, last=last)
  )
  behind = paired.gain(ahead, errors).low
  raced = promote.arms_of(race, 'shadow', shadow.trial)
  if verdict['decision'] == 'go_on':
    mends, left = _mends(run, shadow.trial), looks - number
    outcome = _outcomes(raced)
    if not learning.could_catch_up(outcome, behind, left, mends):
      verdict['decision'] = 'keep'
      verdict['reason'] += ', out of reach at the pace of the former harness'
  if verdict['decision'] == 'drop':
    accumulate.unlearn(run, shadow.trial)
  target = f'shadows/t{shadow.trial:03d}-{number}'
  state = promote.state_of(run, arms, shadow.checkpoint, target)
  return records.Shadow(
      **common,
      checkpoint=state.checkpoint,
      end=state.end,
      folder=state.arm.folder,
      **verdict,
  )


def _decided(
    ahead: list[float], errors: list[float], *, looks: int, last: bool
) -> dict[str, str]:
  verdict = race_lib.horizon(ahead, errors, looks=looks, last=last)
  return dict(decision=verdict.status, reason=verdict.reason)
