"""Field: the candidates of a round, from diagnosis to backtest.

    (diagnose  hypothesize  design  admit  backtest  [verify  accumulate])*

A candidate that is refused by the gate or by its backtest, or that trains
nothing, gets its verdict here and does not race.
"""

import math

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
  """Return the candidates of a round: those still racing, then new ones.

  For each refused change another is tried, up to stages.TRIES per place, so
  that refusals cannot keep a round from training.
  """
  first = _first_trial(run, number)
  racing = _racing_on(run, first)
  free = places(run, number) or 0
  full = len(racing) + free
  for trial in range(first, first + stages.TRIES * free):
    if len(racing) >= full or not _begin(run, number, trial):
      break
    # Read after `_begin`: a trial that a kill stopped between its backtest and
    # its verdict looks like a candidate until then.
    racing = [t for t in _undecided(run) if t.number <= trial]
  return racing


def places(run: opening.Run, number: int) -> int | None:
  """Return how many candidates may enter a round; None: no further round.

  The number is at most evolve.candidates, at most what is left of
  evolve.entries, and at most what evolve.tokens pays for. Candidates that race
  on from the round before, and a shadow that trains on, have places of their
  own.
  """
  e = run.config.evolve
  promised = run.recorder.find(records.Open).config['evolve']['entries']
  free = promised - len(standings.entered(run))
  first = _first_trial(run, number)
  others = len(_racing_on(run, first)) + (shadow.current(run) is not None)
  free = max(min(e.candidates - others, free), 0)
  if not e.tokens:
    return free
  history, grpo = run.recorder.history, run.config.grpo
  # Sampling for dev scores, relative to the sampling of an arm's training.
  dev = e.problems * e.samples / (e.updates * grpo.prompts * grpo.group_size)
  # Replays of this round do not count: a killed process may have made some.
  replays = [t.backtest for t in history.trials if t.number < first]
  spent = history.trained_tokens
  spent += sum(replay.sampled_tokens for replay in replays if replay)
  for race in history.races:
    if race.scored_by == 'dev':
      spent += dev * sum(arm.sampled_tokens for arm in race.arms)
  # The cost of the last arms; a harness may make completions longer.
  last = history.races[-1].arms if history.races else [history.base]
  update = max(a.sampled_tokens / max(a.updates, 1) for a in last)
  if run.config.rollout.token_limit and not history.races:
    # A candidate may lift the token limit of the first arm; completions then
    # use about half of rollout.max_tokens.
    most = run.config.rollout.max_tokens * grpo.prompts * grpo.group_size
    update = max(update, most / 2)
  arms = e.updates * update * e.pairs  # Of one harness.
  left = e.tokens - spent
  # The incumbent's arms are paid for first.
  payable = math.floor(left / (arms * (1 + dev))) - 1 - others
  if payable >= 0:
    return min(free, payable)
  # Arms that are compared with none need no dev scores.
  return 0 if not others and left >= arms else None


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


def _begin(run: opening.Run, number: int, trial: int) -> bool:
  """Do the steps of a trial up to its race, or up to a verdict without one.

  Returns:
    Whether there was a proposal.
  """
  record = run.recorder.record
  if found := run.recorder.find(records.Diagnose, trial=trial):
    # After a kill following 'promote', the newest version is not its parent.
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
