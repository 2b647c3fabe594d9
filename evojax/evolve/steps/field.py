"""Field: the candidates of a round, from diagnosis to backtest.

    (diagnose  hypothesize  design  admit  backtest  [verify  accumulate])*

A candidate that the gate or its backtest refuses, or that trains nothing, has
its verdict here and races nobody.
"""

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


def fill(run: opening.Run, number: int) -> list[history_lib.Trial]:
  """Return the candidates of a round: those that race on, and new ones.

  Where a change is refused, another is looked for, but only stages.TRIES for a
  place: refusals cannot keep a round from training.
  """
  begun = run.recorder.history.all(records.Diagnose)
  first = min(
      (d.trial for d in begun if d.round == number),
      default=1 + max((d.trial for d in begun), default=-1),
  )
  racing = [t for t in _undecided(run) if t.number < first]
  promised = run.recorder.find(records.Open).config['evolve']['entries']
  free = promised - len(standings.entered(run))
  # A shadow that trains on has the place of a candidate.
  busy = len(racing) + (shadow.current(run) is not None)
  places = min(run.config.evolve.candidates - busy, free)
  full = len(racing) + places
  for trial in range(first, first + stages.TRIES * max(places, 0)):
    if len(racing) >= full or not _begin(run, number, trial):
      break
    # Only now: a kill between backtest and verdict leaves one that looks so.
    racing = [t for t in _undecided(run) if t.number <= trial]
  return racing


def _undecided(run: opening.Run) -> list[history_lib.Trial]:
  """Return the candidates that were backtested and have no verdict yet."""
  trials = run.recorder.history.trials
  return [t for t in trials if t.backtest and t.verify is None]


def _begin(run: opening.Run, number: int, trial: int) -> bool:
  """Bring a change up to its race, or to its verdict; False: nothing to try."""
  record = run.recorder.record
  if found := run.recorder.find(records.Diagnose, trial=trial):
    # A kill after 'promote' leaves a newer version than the one it changes.
    version = run.recorder.history.version(found.version)
  else:
    version = run.recorder.history.versions[-1]
  stage = stages.round_name(run.config, number, 'backtest')
  run.progress.enter(stage, arm=0)
  diagnosis = record(
      records.Diagnose,
      lambda: diagnose.diagnose(run, number, trial, version),
      trial=trial,
  )
  proposal = record(
      records.Hypothesize,
      lambda: hypothesize.hypothesize(run, diagnosis, version),
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
