"""Prospects: whether a change that repairs nothing is worth its tokens.

Its arms, and the replay before them, use tokens that could train the policy.
Such a change therefore enters a round only if its chance of proving a gain is
large enough, and is proposed only if its replay is worth its tokens (unless
evolve.settled is 1).
"""

from collections.abc import Sequence
import statistics

from evojax.evolve import costs
from evojax.evolve import learning
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import ranking
from evojax.evolve import repairs
from evojax.evolve import standings
from evojax.harness import delta as delta_lib
from evojax.ledger import records

# The probability of proving a gain that a candidate needs to enter, however
# slowly the policy learns; see `learning.least_chance`. It is larger in the
# last round: a change that is kept there trains no further arms, while the same
# tokens would train the policy.
LEAST_CHANCE, LAST_CHANCE = 0.2, 0.5


def least_chance(run: opening.Run, number: int) -> float:
  """Return the chance of proving a gain that a change needs to enter."""
  last = costs.is_last(run, number, candidates=1)
  least = LAST_CHANCE if last else LEAST_CHANCE
  return max(least, learning.least_chance(run, number))


def is_worth_trying(
    run: opening.Run,
    number: int,
    findings: Sequence[records.Finding],
    delta: delta_lib.Delta,
    expected: records.Interval,
) -> bool:
  """Return whether the backtest of a change is worth its tokens.

  It is if the value of its information exceeds its cost. A race breaks even if
  the chance of a gain is `least_chance`; at a larger chance, its value is the
  difference, in units in which the arms of a candidate cost `least_chance`. A
  replay narrows down this chance, so its own value is the mean of that
  difference over the results that it may have, where a smaller chance counts as
  0: the race would not be run. A replay costs a share of what the arms cost.

  Args:
    run: The run.
    number: Number of the round.
    findings: Findings of the diagnosis; a change that repairs a fault among
      them is always worth trying.
    delta: The change.
    expected: The proposer's 90 % interval of its effect, in fractions.
  """
  # With settled=1 nothing waits to save tokens; what trains nothing costs none.
  if run.config.evolve.settled >= 1 or not delta.trains:
    return True
  if repairs.severity(findings, delta.changes) in repairs.FAULTS:
    return True
  replays = delta.intervention_class not in pairs.SAMPLED_OTHERWISE
  least, cost = least_chance(run, number), 0.0
  if replays:
    cost = least * costs.of_replay(run)
  if least + cost >= 1:  # No chance is large enough.
    return False
  gained = statistics.fmean(
      max(standings.chance(run, number, predicted) - least, 0.0)
      for predicted in ranking.outlooks(
          delta.intervention_class,
          expected,
          run.recorder.history.trials,
          replays=replays,
      )
  )
  return gained > cost
