"""Field: the candidates of a round, from diagnosis to backtest.

    (diagnose  hypothesize  design  admit  backtest  [verify  accumulate])*

A candidate that is refused by the gate or by its backtest, or that trains
nothing, gets its verdict here and does not race. The training so far is
diagnosed in every round, also where no candidate may enter any more.
"""

import math

from evojax.evolve import costs
from evojax.evolve import opening
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
from evojax.training import stages

# From this many on, the last entry of a run is for the repair of a critical
# fault alone: faults that appear late would otherwise find none left.
_ENTRIES_WITH_RESERVE = 3


def fill(run: opening.Run, number: int) -> list[history_lib.Trial]:
  """Return the candidates of a round: those still racing, then new ones.

  For each refused change another is tried, up to stages.TRIES per place, so
  that refusals cannot keep a round from training.
  """
  first = _first_trial(run, number)
  free = places(run, number)
  racing = _racing_on(run, first) if is_payable(run, number) else []
  full = len(racing) + free
  if not free:
    diagnosis = _diagnose(run, number, first)
    run.recorder.record(
        records.Hypothesize, lambda: hypothesize.none(diagnosis), trial=first
    )
  for trial in range(first, first + stages.TRIES * free):
    if len(racing) >= full or not _begin(run, number, trial):
      break
    # Read after `_begin`: a trial that a kill stopped between its backtest and
    # its verdict looks like a candidate until then.
    racing = [t for t in _undecided(run) if t.number <= trial]
  return racing


def places(run: opening.Run, number: int) -> int:
  """Return how many candidates may enter a round.

  The number is at most evolve.candidates, at most what is left of
  evolve.entries, and at most what evolve.tokens pays for. Candidates that race
  on from the round before, and a shadow that trains on, have places of their
  own.
  """
  others = _others(run, number)
  free = min(run.config.evolve.candidates - others, _entries(run)[1])
  # The arms of the incumbent and of these others are paid for first.
  payable = costs.payable(run, number) - 1 - others
  return max(math.floor(min(free, payable)), 0)


def is_payable(run: opening.Run, number: int) -> bool:
  """Return whether the tokens pay for what trains on from the round before.

  If they do not, the incumbent trains alone in the round.
  """
  return costs.payable(run, number) >= 1 + _others(run, number)


def _others(run: opening.Run, number: int) -> int:
  """Return how many harnesses train on beside the incumbent."""
  racing = _racing_on(run, _first_trial(run, number))
  return len(racing) + (shadow.current(run) is not None)


def _entries(run: opening.Run) -> tuple[int, int]:
  """Return the number of promised entries, and how many of them are left."""
  promised = run.recorder.find(records.Open).config['evolve']['entries']
  return promised, promised - len(standings.entered(run))


def _is_for_repairs(run: opening.Run, trial: int) -> bool:
  """Return whether only the repair of a critical fault may enter as a trial."""
  promised, left = _entries(run)
  fresh = sum(not t.races and t.number < trial for t in _undecided(run))
  return promised >= _ENTRIES_WITH_RESERVE and left - fresh <= 1


def _first_trial(run: opening.Run, number: int) -> int:
  """Return the number of the first trial of a round."""
  begun = run.recorder.history.all(records.Diagnose)
  return min(
      (d.trial for d in begun if d.round == number),
      default=1 + max((d.trial for d in begun), default=-1),
  )


def _racing_on(run: opening.Run, first: int) -> list[history_lib.Trial]:
  """Return the candidates of rounds before the one with trial `first`."""
  return [t for t in _undecided(run) if t.number < first]


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


def _begin(run: opening.Run, number: int, trial: int) -> bool:
  """Do the steps of a trial up to its race, or up to a verdict without one.

  Returns:
    Whether there was a proposal.
  """
  record = run.recorder.record
  diagnosis = _diagnose(run, number, trial)
  # After a kill following 'promote', the newest version is not its parent.
  version = run.recorder.history.version(diagnosis.version)
  repairs_only = _is_for_repairs(run, trial)
  proposal = record(
      records.Hypothesize,
      lambda: hypothesize.hypothesize(run, diagnosis, version, repairs_only),
      trial=trial,
  )
  if not proposal.proposer:
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
