"""Field: the candidates of a round, from diagnosis to backtest.

    (diagnose  hypothesize  design  admit  backtest  [verify  accumulate])*

A candidate that is refused by the gate or by its backtest, or that trains
nothing, gets its verdict here and does not race. More of the others are
backtested than there are places; predictions decide which of them enter, and
the rest wait for the next round. While the policy learns fast, only repairs and
the user's changes are proposed and enter (`learning`). The training so far is
diagnosed in every round, even if no candidate may enter any more.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from evojax.evolve import costs
from evojax.evolve import learning
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import prospects
from evojax.evolve import ranking
from evojax.evolve import repairs
from evojax.evolve import standings
from evojax.evolve.propose import human
from evojax.evolve.steps import accumulate
from evojax.evolve.steps import admit
from evojax.evolve.steps import backtest
from evojax.evolve.steps import design
from evojax.evolve.steps import diagnose
from evojax.evolve.steps import hypothesize
from evojax.evolve.steps import promote
from evojax.evolve.steps import shadow
from evojax.evolve.steps import verify
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.training import stages


@dataclasses.dataclass(frozen=True)
class Field:
  """The candidates of a round."""

  racing: list[history_lib.Trial]  # Those still racing, then those that enter.
  queue: tuple[records.Queued, ...]  # Candidates that had not raced before.


def fill(run: opening.Run, number: int) -> Field:
  """Return the candidates of a round: those still racing, then new ones.

  For each refused change another is tried, but at most stages.TRIES per place,
  so that refusals cannot keep a round from training.
  """
  first = _first_trial(run, number)
  free = places(run, number)
  # The reason to wait depends on earlier rounds alone.
  wait = learning.why_wait(run, number)
  if not free:
    diagnosis = _diagnose(run, number, first)
    run.recorder.record(
        records.Hypothesize, lambda: hypothesize.none(diagnosis), trial=first
    )
  for trial in range(first, first + stages.TRIES * free):
    # Each round tries at least one change: its diagnosis may call for a repair,
    # which enters before all waiting candidates.
    if trial > first and _is_full(run, trial, free, wait):
      break
    if not _begin(run, number, trial, free, wait):
      break
  queue = _queue(run, number, free, waits=bool(wait))
  trials = {trial.number: trial for trial in _undecided(run)}
  racing = _racing_on(run) if is_paid(run, number) else []
  racing += [trials[place.trial] for place in queue if place.enters]
  return Field(racing, queue)


def _queue(
    run: opening.Run, number: int, free: int, *, waits: bool
) -> tuple[records.Queued, ...]:
  """Return the queue for a round; print it if not all of it enter."""

  def decide() -> list[dict]:
    trials, waiting = run.recorder.history.trials, _waiting(run)
    found = ranking.queue(
        waiting,
        trials,
        free,
        _ordinary(run),
        lambda predicted: standings.chance(run, number, predicted),
        prospects.least_chance(run, number),
        lambda entering: is_paid(run, number, entering),
        waits=waits,
    )
    return [dataclasses.asdict(place) for place in found]

  # Decided in process 0, so that all processes have the same bits.
  queue = tuple(map(_place, decisions.decide(decide)))
  if not all(place.enters for place in queue):
    told = '; '.join(f'trial {p.trial} {p.reason}' for p in queue)
    enter = sum(place.enters for place in queue)
    run.say(f'round {number}: {enter} of {len(queue)} candidates enter: {told}')
  return queue


def _place(values: dict[str, Any]) -> records.Queued:
  """Return a place in the queue from its JSON values."""
  interval = values['predicted']
  return records.Queued(
      **values | dict(predicted=interval and tuple(interval))
  )


def places(run: opening.Run, number: int) -> int:
  """Return how many candidates may enter a round.

  Candidates still racing since an earlier round, and a shadow, take some of the
  evolve.candidates places. The rest is limited by what is left of
  evolve.entries, and by what evolve.tokens pays for.
  """
  others = _others(run, number)
  if number >= run.config.evolve.rounds:  # Only a shadow still trains.
    return 0
  free = min(run.config.evolve.candidates - others, _entries(run)[1])
  # The arms of the incumbent and of these others are paid for first.
  payable = costs.payable(run, number)
  rest = payable - 1 - others
  # A single candidate may race in fewer pairs.
  more = run.config.evolve.pairs / costs.LEAST_PAIRS
  if rest < 1 <= payable * more - 1 - others:
    rest = 1
  return max(math.floor(min(free, rest)), 0)


def is_paid(
    run: opening.Run, number: int, entering: Sequence[history_lib.Trial] = ()
) -> bool:
  """Return whether the tokens pay for all that trains in a round.

  That is the incumbent, the shadow, candidates still racing since an earlier
  round, and candidates that enter. If the tokens do not suffice, no candidate
  races on, and the last of `entering` has to wait.
  """
  shadowed = pairs.shadowed(run, shadow.current(run))
  scored_by = pairs.scored_by([*_racing_on(run), *entering, *shadowed])
  paid = costs.pairs_of(
      run,
      number,
      harnesses=1 + _others(run, number) + len(entering),
      dev=scored_by == 'dev',
  )
  return paid > 0


def _others(run: opening.Run, number: int) -> int:
  """Return how many harnesses keep training in addition to the incumbent."""
  return len(_racing_on(run)) + (shadow.current(run) is not None)


def _entries(run: opening.Run) -> tuple[int, int]:
  """Return the number of promised entries, and how many of them are left."""
  promised = run.recorder.find(records.Open).config['evolve']['entries']
  return promised, promised - len(standings.entered(run))


def _ordinary(run: opening.Run) -> int:
  """Return how many entries are left besides the reserved one, if any."""
  promised, left = _entries(run)
  return left - promised + ranking.ordinary_entries(promised)


def _is_full(run: opening.Run, trial: int, free: int, wait: str) -> bool:
  """Return whether enough candidates of trials before this one wait.

  If only as many waited as there are places, all would enter, whatever their
  predictions. So one more is needed, unless repairs and the user's changes take
  all places, or the repair of a critical fault enters alone.
  """
  waiting = _able(run, trial, wait)
  if any(map(ranking.enters_alone, waiting)):
    return True
  first = sum(map(ranking.enters_first, waiting))
  return first >= free or len(waiting) >= free + stages.SPARE


def _is_for_repairs(
    run: opening.Run, trial: int, free: int, wait: str
) -> bool:
  """Return whether a new trial may only be the repair of a critical fault.

  Another change is not tried if it could not enter, or if enough candidates
  wait already. Those whose gain could hardly be proved do not count: they may
  wait forever, so each round tries another change.
  """
  waiting = sum(
      not (t.queued and t.queued.hopeless)
      for t in _able(run, trial, wait)
  )
  may_enter = min(free, _ordinary(run))
  return may_enter <= 0 or waiting >= may_enter + stages.SPARE


def _able(
    run: opening.Run, trial: int, wait: str
) -> list[history_lib.Trial]:
  """Return the candidates before a trial that wait and may enter a round.

  Args:
    run: The run.
    trial: Number of the trial.
    wait: See `learning.why_wait`.
  """
  waiting = [t for t in _waiting(run) if t.number < trial]
  return [t for t in waiting if not wait or ranking.enters_first(t)]


def _first_trial(run: opening.Run, number: int) -> int:
  """Return the number of the first trial of a round."""
  begun = run.recorder.history.all(records.Diagnose)
  return min(
      (d.trial for d in begun if d.round == number),
      default=1 + max((d.trial for d in begun), default=-1),
  )


def _racing_on(run: opening.Run) -> list[history_lib.Trial]:
  """Return the candidates that raced in the round before."""
  return [t for t in _undecided(run) if t.races]


def _waiting(run: opening.Run) -> list[history_lib.Trial]:
  """Return the candidates that have not raced yet."""
  return [t for t in _undecided(run) if not t.races]


def _undecided(run: opening.Run) -> list[history_lib.Trial]:
  """Return the candidates that are backtested but have no verdict yet."""
  trials = run.recorder.history.trials
  return [t for t in trials if t.backtest and t.verify is None]


def _diagnose(run: opening.Run, number: int, trial: int) -> records.Diagnose:
  """Return the diagnosis that a trial begins with."""
  run.progress.enter(stages.round_name(run.config, number, 'backtest'), arm=0)
  return run.recorder.record(
      records.Diagnose,
      lambda: diagnose.diagnose(
          run, number, trial, run.recorder.history.versions[-1]
      ),
      trial=trial,
  )


def _begin(
    run: opening.Run, number: int, trial: int, free: int, wait: str
) -> bool:
  """Do the steps of a trial up to its race, or up to a verdict without one.

  Returns:
    Whether there was a proposal.
  """
  record = run.recorder.record
  diagnosis = _diagnose(run, number, trial)
  # After a kill following 'promote', the newest version is not the
  # trial's parent.
  version = run.recorder.history.version(diagnosis.version)
  only, note = repairs.FAULTS if wait else (), wait
  if _is_for_repairs(run, trial, free, wait):
    only, note = ('critical',), ''
  proposal = record(
      records.Hypothesize,
      lambda: hypothesize.hypothesize(run, diagnosis, version, only, note),
      trial=trial,
  )
  if not proposal.proposer:
    if proposal.note:
      run.say(f'round {number}: {proposal.note}')
    return False
  if run.primary:
    human.taken(run.inbox, proposal.trigger)
  designed = record(
      records.Design,
      lambda: design.design(run, version, proposal),
      trial=trial,
  )
  run.say(f'trial {trial}: {designed.delta.text}. {proposal.hypothesis}')
  admitted = record(
      records.Admit, lambda: admit.admit(run, version, designed), trial=trial
  )
  delta = run.harnesses.delta(version.harness, designed.harness)
  if not admitted.reasons:
    record(
        records.Backtest,
        lambda: backtest.backtest(run, version, designed, delta),
        trial=trial,
    )
  verdict = run.recorder.find(records.Verify, trial=trial)
  if verdict is None:
    name = f'v{len(run.recorder.history.versions)}'
    verdict = verify.before_race(run, version, designed, delta, name)
  if verdict is None:
    return True
  verdict = record(records.Verify, lambda: verdict, trial=trial)
  if verdict.status == 'keep':
    record(
        records.Promote,
        lambda: promote.untrained(run, version, designed, verdict),
        version=verdict.version,
    )
  accumulate.conclude(run, verdict)
  return True
