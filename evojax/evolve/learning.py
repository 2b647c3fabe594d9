"""How fast the policy still learns, measured on its training rollouts.

While it learns fast, tokens gain more if they train the policy than if they pay
for a race: what an early change gains, training alone gains a little later. So
changes that repair nothing wait until the policy learns slowly
(`evolve.settled`). From then on, the slower it learns, the smaller the chance
of success that makes a race worth its tokens.
"""

from collections.abc import Sequence
import itertools
import math
import statistics

from evojax.diagnosis import rules
from evojax.evolve import opening
from evojax.ledger import records

# Rounds whose updates are fitted. The mean of 12 problems varies by about 10
# points from update to update, so that the rise in one round of 32 updates is
# known to within 6 points, and that in two rounds to within 2.
ROUNDS = 2


def rise(run: opening.Run, number: int) -> float | None:
  """Return the rise of the policy's solved share per round, a fraction.

  It is the slope of the least-squares line through the solved shares of the
  updates that trained the policy in the two rounds before, times the number of
  its updates in a round. A round without progress, after which the policy
  stayed as it was, adds no updates. Sums are rounded once, so that all
  processes, and a process on another machine that resumes the round, get the
  same bits.

  Args:
    run: The run.
    number: Number of the round; only rounds before it count.

  Returns:
    The rise; None before the first round has ended.
  """
  history = run.recorder.history
  arms = {arm.folder: arm for race in history.races for arm in race.arms}
  lines = []
  for made in history.all(records.Promote):
    if made.round is None or not number - ROUNDS <= made.round < number:
      continue
    outcomes = [arms[source.folder].outcome for source in made.sources]
    if run.config.evolve.policy == 'mean':  # All arms start from one state.
      each = zip(*filter(None, outcomes), strict=True)
      outcomes = [list(map(statistics.fmean, each))]
    lines.append(list(itertools.chain(*outcomes)))
  return rise_of(lines) if lines else None


def rise_of(rounds: Sequence[Sequence[float]]) -> float:
  """Return the rise of the solved share per round, a fraction.

  Args:
    rounds: Solved share of each update, by round; at least one round.
  """
  solved = list(itertools.chain(*rounds))
  if len(solved) < 2:
    return 0.0
  fitted = statistics.linear_regression(range(len(solved)), solved)
  return fitted.slope * len(solved) / len(rounds)


def why_wait(run: opening.Run, number: int) -> str:
  """Return why changes that repair nothing wait in a round; '' if they do not.

  Args:
    run: The run.
    number: Number of the round.
  """
  most = run.config.evolve.settled
  if most >= 1:
    return ''
  found = rise(run, number)
  waits = 'changes that repair nothing wait until'
  if found is None:
    return f'{waits} the policy has trained for a round'
  if found <= most:
    return ''
  return (
      f'the policy still gains {100 * found:.1f} points in a round; {waits} it'
      f' gains at most {100 * most:g} (evolve.settled)'
  )


def least_chance(run: opening.Run, number: int) -> float:
  """Return the chance of proving a gain that a change needs to race.

  The arms of a candidate use as many tokens as a round of the policy's training
  and so cost the rise of one round. A race is worth this cost if the chance of
  a gain, times the gain, is larger. A proven gain is valued at
  `evolve.settled`: if training alone gains as much in a round, no chance is
  large enough, see `why_wait`.

  Args:
    run: The run.
    number: Number of a round in which changes do not wait anyway.

  Returns:
    A probability; 0 where every change may race.
  """
  worth = run.config.evolve.settled
  found = rise(run, number) or 0.0
  if worth >= 1 or found <= 0:
    return 0.0
  return min(found / worth, 1.0)


def could_catch_up(
    outcome: Sequence[float], behind: float, rounds: int, mends: bool
) -> bool:
  """Return whether a former harness can catch up within some rounds.

  The rise in a round is known to within about 6 points, more than sound recipes
  rise per round by the time that changes race. So the upper end of its
  one-sided 95 % interval counts, unless the change repairs a fault: a broken
  recipe is expected not to learn.

  Args:
    outcome: Solved share of each update of its arms of one round.
    behind: Lower bound of its deficit in the solved share.
    rounds: Number of rounds that are left.
    mends: Whether the change that it lacks repairs a fault.
  """
  curve = rules.learning_curve(outcome)
  rise = curve.get('outcome_rise' if mends else 'outcome_rise_high', math.inf)
  return rise * rounds > behind
