"""The meta-loop: the order of its steps over an append-only ledger.

    open  train  (diagnose  hypothesize  design  admit  backtest  trial  verify
    promote  accumulate)*  retrain  seal  final

Every step is one row, written after what it left on disk; a step whose row is
there is not done again. So a run that was killed goes on where it was, and ends
with the rows of a run that nobody disturbed.
"""

from collections.abc import Sequence
from typing import Any

import ml_collections

from evojax.evolve import executor as executor_lib
from evojax.evolve import opening
from evojax.evolve import promote as promote_lib
from evojax.evolve import recorder as recorder_lib
from evojax.evolve import summary as summary_lib
from evojax.evolve.propose import human
from evojax.evolve.steps import accumulate
from evojax.evolve.steps import admit
from evojax.evolve.steps import backtest
from evojax.evolve.steps import design
from evojax.evolve.steps import diagnose
from evojax.evolve.steps import final
from evojax.evolve.steps import hypothesize
from evojax.evolve.steps import promote
from evojax.evolve.steps import retrain
from evojax.evolve.steps import seal
from evojax.evolve.steps import start
from evojax.evolve.steps import trial as trial_lib
from evojax.evolve.steps import verify
from evojax.ledger import records
from evojax.report import page
from evojax.runtime import output
from evojax.training import stages


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    *,
    compare: Sequence[str] = (),
    fork_from: str = '',
    fork_version: str = '',
    executor: str = 'inprocess',
    workers: int = 0,
) -> dict[str, Any]:
  """Evolve policy and harness; the same call continues a run.

  Args:
    config: Of the run, with evolve.trials > 0.
    workdir: The run's directory.
    compare: Workdirs of finished runs, scored on the same sealed problems.
    fork_from: Workdir of another evolving run, which a new one starts from.
    fork_version: The version of it; its newest one if ''.
    executor: Where arms are trained, one of `executor.KINDS`.
    workers: Arms that are trained at a time; 0 for 'inprocess'.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If config, domain, model, harness, workdir or a flag is wrong.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  placement = executor_lib.Placement(executor, workers)
  options = opening.Options(compare, fork_from, fork_version, placement)
  with opening.open_run(config, workdir, options) as opened:
    try:
      reason = _steps(opened)
    except recorder_lib.BudgetExhaustedError:
      reason = 'budget'
      opened.recorder.stop(reason)
      if opened.compared:
        opened.say('--compare scores nothing: the budget is spent; raise it')
    return summary_lib.finish(opened, reason)


def _steps(run_: opening.Run) -> str:
  """Run all steps that are left; return why there were no more trials."""
  record, find = run_.recorder.record, run_.recorder.find
  if run_.primary:
    for line in human.review(run_.inbox, run_.setup.surface):
      output.say(line)
  opened = record(records.Open, lambda: start.open_ledger(run_))
  start.check_opened(run_, opened)
  record(records.Train, lambda: start.train(run_), version='v0')
  reason = 'trials'
  trials = run_.config.evolve.trials
  # Once the final harness is trained, more trials would be about another one.
  ended = find(records.Retrain) is not None
  if ended and find(records.Accumulate, trial=trials - 1) is None:
    run_.say('this run has ended; --fork_from it to try more changes')
  for trial in range(0 if ended else trials):
    if find(records.Accumulate, trial=trial):
      continue
    wealth = trial_lib.wealth(run_)
    if not wealth.alpha:
      reason = 'no wealth left'
      run_.say(
          f'{trial} tests were promised at the start and found nothing to pay'
          ' for more; --fork_from this run to try further changes'
      )
      break
    if not _trial(run_, trial, wealth):
      reason = 'nothing to propose'
      break
    if run_.primary:
      page.build(run_.path)
  head = run_.recorder.history.versions[-1]
  retrained = record(
      records.Retrain, lambda: retrain.retrain(run_, head), version='final'
  )
  record(records.Seal, lambda: seal.seal(run_))
  scores = record(records.Final, lambda: final.score(run_, head, retrained))
  # A run that had ended is compared with further ones in a row of its own.
  if set(final.placed(run_)) - final.scored(scores):
    run_.recorder.append(final.score(run_, head, retrained))
  return reason


def _trial(run_: opening.Run, trial: int, wealth: promote_lib.Wealth) -> bool:
  """Run one trial, from diagnosis to skills; False: nothing to try."""
  record, find = run_.recorder.record, run_.recorder.find
  version = run_.recorder.history.versions[-1]
  if found := find(records.Diagnose, trial=trial):
    # A kill after 'promote' leaves a newer version than the one it changes.
    version = next(
        v for v in run_.recorder.history.versions if v.version == found.version
    )
  run_.progress.enter(stages.trial_name(run_.config, trial, 'backtest'))
  diagnosis = record(
      records.Diagnose,
      lambda: diagnose.diagnose(run_, trial, version),
      trial=trial,
  )
  proposal = record(
      records.Hypothesize,
      lambda: hypothesize.hypothesize(run_, diagnosis, version),
      trial=trial,
  )
  if not proposal.proposer:
    return False
  if run_.primary:
    human.taken(run_.inbox, proposal.trigger)
  designed = record(
      records.Design,
      lambda: design.design(run_, version, proposal),
      trial=trial,
  )
  run_.say(f'trial {trial}: {designed.delta.text}. {proposal.hypothesis}')
  admitted = record(
      records.Admit, lambda: admit.admit(run_, version, designed), trial=trial
  )
  delta = run_.harnesses.delta(version.harness, designed.harness)
  if not admitted.reasons:
    record(
        records.Backtest,
        lambda: backtest.backtest(run_, version, designed, delta),
        trial=trial,
    )
    if delta.trains:
      record(
          records.Trial,
          lambda: trial_lib.train(run_, version, proposal, wealth),
          trial=trial,
      )
  name = f'v{len(run_.recorder.history.versions)}'
  verdict = record(
      records.Verify,
      lambda: verify.verify(run_, version, designed, delta, name),
      trial=trial,
  )
  if verdict.status == 'keep':
    record(
        records.Promote,
        lambda: promote.promote(run_, version, designed, delta, verdict),
        version=verdict.version,
    )
  record(
      records.Accumulate,
      lambda: accumulate.accumulate(run_, version, delta, proposal, verdict),
      trial=trial,
  )
  run_.say(summary_lib.in_a_line(verdict))
  return True
