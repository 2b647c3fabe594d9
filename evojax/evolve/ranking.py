"""Ranking: which waiting candidates enter a round, and in what order.

More candidates are backtested than there are places. The repair of a critical
fault enters first and alone: if it is kept, it replaces the harness that others
would be compared with, and their arms would be thrown away. Then come the
user's own changes, then repairs of other faults, then all other changes;
predictions decide the order among changes of one rank. A change that repairs
nothing waits while its chance of proving a gain, with the rounds and tokens
that are left, is too small for the training tokens that its arms would use. The
faster the policy learns, the larger that chance has to be, and while it learns
very fast, all such changes wait; see `learning`.

The first to enter get the larger significance levels, see `race.alpha_of`. The
order depends only on rows before the round, and not on the pairs that test the
candidates. So the bound on false keeps holds for any order.
"""

from collections.abc import Callable, Sequence
import statistics

from evojax.evolve import propose as propose_lib
from evojax.evolve import repairs
from evojax.ledger import calibration
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.stats import intervals

# The prior trust in predictions about changes that repair nothing, before a run
# has tested any. The 26 that raced in recorded sound runs gained -0.5 points,
# with a standard deviation of 1.5, where +1.8 had been predicted; the one that
# raced while its policy learned fast gained as much as predicted
# (BUILD_NOTES.md).
_ORDINARY = calibration.Trust(slope=0.5, spread=0.015)
# The possible results of a replay are represented by their quantiles at 1/10,
# 2/10, ..., 9/10.
_OUTLOOKS = 10
# From this many entries on, the last one is reserved for the repair of a
# critical fault or a change of the user's.
_ENTRIES_WITH_RESERVE = 3
# Ranks in the order of entry: the repair of a critical fault, the user's
# change, the repair of another fault, and any other change.
_CRITICAL, _USER, _REPAIR, _OTHER = range(4)


def enters_first(trial: history_lib.Trial) -> bool:
  """Return whether a candidate enters before changes that repair nothing."""
  return _rank(trial) < _OTHER


def enters_alone(trial: history_lib.Trial) -> bool:
  """Return whether a candidate is the repair of a critical fault."""
  return _rank(trial) == _CRITICAL


def ordinary_entries(entries: int) -> int:
  """Return how many entries of a run are not reserved, see `queue`.

  Faults that appear late would otherwise find none left.

  Args:
    entries: `evolve.entries`, what the run promised at its start.
  """
  return entries - (entries >= _ENTRIES_WITH_RESERVE)


def predicted(
    trial: history_lib.Trial, trials: Sequence[history_lib.Trial]
) -> records.Interval | None:
  """Return the predicted effect of a candidate, a 95 % interval of fractions.

  The replay's interval and the proposer's are each corrected by how well such
  intervals predicted effects, in the candidate's class above all, and then
  combined; without a replay, the proposer's is used alone. Repairs gain more
  than other changes, so a prediction is corrected by trials of its own kind.

  Args:
    trial: A candidate.
    trials: All trials so far.
  """
  repairs_fault = repairs.repairs_fault(trial)
  alike = _alike(trials, repairs_fault)
  prior = calibration.Trust() if repairs_fault else _ORDINARY
  each = (
      calibration.in_class(trial, alike, predict, prior)
      for predict in (_replayed, _expected)
  )
  known = [interval for interval in each if interval is not None]
  return calibration.pooled(known) if known else None


def outlooks(
    name: str,
    expected: records.Interval,
    trials: Sequence[history_lib.Trial],
    *,
    replays: bool,
) -> list[records.Interval]:
  """Return equally likely predictions that the replay of a change may lead to.

  The change repairs nothing and has not been replayed. Its replay is assumed to
  show what the proposer expects, plus or minus a typical effect, and to have no
  error over problems. It thus moves the prediction as far as a replay could;
  see `predicted`.

  Args:
    name: Its intervention class.
    expected: The proposer's 90 % interval, in fractions.
    trials: All trials so far.
    replays: Whether a replay can predict anything about it.

  Returns:
    95 % intervals, in fractions; without a replay, the only one.
  """
  alike = _alike(trials, repairs_fault=False)
  trust = lambda predict: calibration.class_trust(
      name, alike, predict, _ORDINARY
  )
  before = calibration.corrected(_widened(expected), trust(_expected))
  if not replays:
    return [before]
  shown = statistics.NormalDist(
      calibration.middle(expected), calibration.TYPICAL
  ).quantiles(_OUTLOOKS)
  worth = trust(_replayed)
  return [
      calibration.pooled([before, calibration.corrected((r, r), worth)])
      for r in shown
  ]


def _alike(
    trials: Sequence[history_lib.Trial], repairs_fault: bool
) -> list[history_lib.Trial]:
  """Return the trials that repair a fault, or those that do not."""
  return [t for t in trials if repairs.repairs_fault(t) == repairs_fault]


def _replayed(trial: history_lib.Trial) -> records.Interval | None:
  """Return the effect that a replay predicts, or None.

  A replay in which no score differs predicts nothing about a repair: under a
  broken recipe, a few updates may change nothing at all. For any other change,
  the bounds of such a replay are its prediction, as the effect is hardly larger
  than they are. Without them, it would enter before changes whose replays show
  a small gain.
  """
  if trial.backtested or not trial.backtest or repairs.repairs_fault(trial):
    return trial.backtested
  found = trial.backtest.statistics
  bounds = found.get('replayed_low'), found.get('replayed_high')
  # Where nothing could be replayed, the bounds are not numbers.
  return bounds if all(isinstance(x, float) for x in bounds) else None


def _expected(trial: history_lib.Trial) -> records.Interval | None:
  """Return the proposer's 90 % interval, widened to 95 %."""
  return None if trial.expected is None else _widened(trial.expected)


def _widened(expected: records.Interval) -> records.Interval:
  """Return the 95 % interval of the Normal distribution of a 90 % interval."""
  low, high = expected
  wider = (intervals.Z95 / intervals.Z90 - 1) * (high - low) / 2
  return low - wider, high + wider


def queue(
    waiting: Sequence[history_lib.Trial],
    trials: Sequence[history_lib.Trial],
    places: int,
    ordinary: int,
    chance_of: Callable[[records.Interval], float],
    least_chance: float,
    is_paid: Callable[[Sequence[history_lib.Trial]], bool],
    *,
    waits: bool,
) -> list[records.Queued]:
  """Return the queue for a round, in the order of entry.

  Equal predictions are ordered by the numbers of the trials.

  Args:
    waiting: Backtested candidates that have not raced.
    trials: All trials so far.
    places: How many candidates may enter.
    ordinary: How many of them may be neither the repair of a critical fault nor
      the user's.
    chance_of: Returns the probability that a candidate proves its gain, given
      the predicted one. It is called only for changes that repair nothing.
    least_chance: The least probability with which such a change enters.
    is_paid: Whether the tokens pay for a round that these candidates enter.
    waits: Whether changes that repair nothing wait, because the policy learns
      fast.
  """
  found = {trial.number: predicted(trial, trials) for trial in waiting}

  def key(trial: history_lib.Trial) -> tuple[int, float, int]:
    rank, interval = _rank(trial), found[trial.number]
    known = rank >= _REPAIR and interval is not None
    middle = calibration.middle(interval) if known else 0.0
    return rank, -middle, trial.number

  queued: list[records.Queued] = []
  entering: list[history_lib.Trial] = []
  for trial in sorted(waiting, key=key):
    rank, interval = _rank(trial), found[trial.number]
    reason = _reason(rank, interval)
    alone = any(map(enters_alone, entering))
    asked = rank == _OTHER and interval is not None and not (alone or waits)
    chance = chance_of(interval) if asked else None
    hopeless = chance is not None and chance < least_chance
    reserved = rank < _REPAIR
    enters = len(entering) < places and (reserved or ordinary > 0)
    if alone:
      enters = False
      reason += ', waits for that repair'
    elif waits and rank == _OTHER:
      enters = False
      reason += ', waits while the policy learns fast'
    elif hopeless:
      enters = False
      reason += (
          f', would prove its gain with probability {chance:.2f} <'
          f' {least_chance:.2f}'
      )
    elif enters and not is_paid([*entering, trial]):
      enters = False
      reason += ', which the tokens do not pay for'
    if enters:
      entering.append(trial)
      ordinary -= not reserved
    queued.append(
        records.Queued(
            trial=trial.number,
            predicted=interval,
            enters=enters,
            reason=reason,
            hopeless=hopeless,
        )
    )
  return queued


def _rank(trial: history_lib.Trial) -> int:
  """Return the rank of a candidate in the order of entry.

  The user's changes enter in the order in which they were left in the inbox.
  """
  if repairs.severity_of(trial) == 'critical':
    return _CRITICAL
  proposal = trial.hypothesize
  if proposal and propose_lib.is_users(proposal.trigger):
    return _USER
  return _REPAIR if repairs.repairs_fault(trial) else _OTHER


def _reason(rank: int, interval: records.Interval | None) -> str:
  if rank < _REPAIR:
    return ('repairs a critical fault', 'was left in the inbox')[rank]
  text = 'repairs a fault, ' if rank == _REPAIR else ''
  if interval is None:
    return text + 'has no prediction'
  low, high = (100 * end for end in interval)
  middle = 100 * calibration.middle(interval)
  return f'{text}predicted {middle:+.1f} points [{low:+.1f}, {high:+.1f}]'
