"""The meta-loop: the order of its steps over an append-only ledger.

    open  train  ((diagnose  hypothesize  design  admit  backtest)*  race
    (shadow  verify  accumulate)*  promote)*  verify*  accumulate*  retrain
    seal  final

The incumbent is the harness that trains the policy now; a candidate is a
harness that differs from it by one change. An arm trains a policy for some
updates under one harness. In a round, the arms of the candidates race those of
the incumbent, and the policy continues from the arms of the winner. While the
policy learns fast, a round only races repairs and the user's changes, or trains
the incumbent alone. It also trains the incumbent alone if too few tokens are
left for a race. The rounds end when all are done, when evolve.tokens are spent,
or at a critical fault that no harness can repair. If a change was kept late,
further rounds train only the policy and its shadow, the policy as it would be
without the change, to compare the two.

Every step is one row, written after its files are on disk; a step that has a
row is not done again. A run that was killed therefore continues where it
stopped, and ends with the same rows as an uninterrupted run.
"""

from collections.abc import Sequence
import itertools
from typing import Any

import ml_collections

from evojax.evolve import costs
from evojax.evolve import executor as executor_lib
from evojax.evolve import opening
from evojax.evolve import recorder as recorder_lib
from evojax.evolve import summary as summary_lib
from evojax.evolve.propose import human
from evojax.evolve.steps import accumulate
from evojax.evolve.steps import field as field_lib
from evojax.evolve.steps import final
from evojax.evolve.steps import hypothesize
from evojax.evolve.steps import promote
from evojax.evolve.steps import race as race_lib
from evojax.evolve.steps import retrain
from evojax.evolve.steps import seal
from evojax.evolve.steps import shadow as shadow_lib
from evojax.evolve.steps import start
from evojax.evolve.steps import verify
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.report import page
from evojax.runtime import output

_BEYOND_REPAIR = (
    'the run ends here, as training and races would not help: repair the fault'
    ' and start a new run. With evolve.end_at_fault=False, a run goes on'
)


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    *,
    compare: Sequence[str] = (),
    fork_from: str = '',
    fork_version: str = '',
    **placement: Any,
) -> dict[str, Any]:
  """Evolve policy and harness; the same call continues a run.

  Args:
    config: Config of the run, with evolve.rounds > 0.
    workdir: The run's directory.
    compare: Workdirs of finished runs, scored on the same sealed problems.
    fork_from: Workdir of another evolving run that a new run starts from.
    fork_version: Name of its version to start from; '' is the newest.
    **placement: Where arms are trained: fields of `executor.Placement`.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If config, domain, model, harness, workdir or a flag is wrong.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  options = opening.Options(
      compare, fork_from, fork_version, executor_lib.Placement(**placement)
  )
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
  """Run all steps that are left; return why the rounds ended."""
  record = run_.recorder.record
  if run_.primary:
    for line in human.review(run_.inbox, run_.setup.surface):
      output.say(line)
  opened = record(records.Open, lambda: start.open_ledger(run_))
  start.check_opened(run_, opened)
  final.check_stored(run_)
  record(records.Train, lambda: start.train(run_), version='v0')
  ended_by = _rounds(run_, opened)
  if run_.recorder.find(records.Seal) is None:
    shadow_lib.leave(run_, f'the run ended: {ended_by}')
    _conclude_all(run_, ended_by)
  head = run_.recorder.history.versions[-1]
  retrained = None
  if run_.config.evolve.retrain:
    retrained = record(
        records.Retrain, lambda: retrain.retrain(run_, head), version='final'
    )
  record(records.Seal, lambda: seal.seal(run_))
  scores = record(records.Final, lambda: final.score(run_, head, retrained))
  # If the run had ended, newly compared runs are scored in a row of their own.
  if set(final.placed(run_)) - final.scored(scores):
    run_.recorder.append(final.score(run_, head, retrained))
  return ended_by


def _conclude_all(run_: opening.Run, why: str) -> None:
  """Give a verdict to every candidate that has none when the rounds end."""
  for trial, verdict in verify.at_end(run_, why).items():
    run_.recorder.record(records.Verify, lambda v=verdict: v, trial=trial)
  for trial in run_.recorder.history.trials:
    if trial.verify and not run_.recorder.find(
        records.Accumulate, trial=trial.number
    ):
      accumulate.conclude(run_, trial.verify)


def _rounds(run_: opening.Run, opened: records.Open) -> str:
  """Run the rounds that are left; return why they ended."""
  find = run_.recorder.find
  # Once the sealed problems are drawn, nothing may be trained any more.
  has_ended = find(records.Seal) is not None
  for number in itertools.count():
    if find(records.Promote, round=number) is not None:
      continue
    if number >= run_.config.evolve.rounds:
      # Only the comparison of the last kept change with its shadow is left.
      if has_ended or not shadow_lib.paid(run_, number):
        return 'rounds'
    if has_ended:
      run_.say(
          'this run has ended; to race more changes, start a new one with'
          ' --fork_from'
      )
      if find(records.Diagnose, round=number) is not None:
        return history_lib.FAULT
      promised = opened.config['evolve']['rounds']
      return 'tokens' if number < promised else 'rounds'
    if not costs.payable_pairs(run_, number):
      return 'tokens'
    if not _round(run_, number):
      run_.say(_BEYOND_REPAIR)
      return history_lib.FAULT
    if run_.primary:
      page.build(run_.path)


def _round(run_: opening.Run, number: int) -> bool:
  """Find candidates, race them, decide, and promote the winner.

  Returns:
    False if nothing raced, because no harness can repair what is wrong.
  """
  record = run_.recorder.record
  race = run_.recorder.find(records.Race, round=number)
  if race is None:
    beside = shadow_lib.paid(run_, number)
    field = field_lib.fill(run_, number)
    diagnosis = run_.recorder.find(records.Diagnose, round=number)
    if not field.racing and hypothesize.ends_run(run_, diagnosis):
      return False
    version = run_.recorder.history.versions[-1]
    race = record(
        records.Race,
        lambda: race_lib.race(
            run_, version, number, field.racing, field.queue, beside
        ),
        round=number,
    )
  version = run_.recorder.history.version(race.version)
  known = {found.trial for found in (*race.standings, *race.queue)}
  field = [t for t in run_.recorder.history.trials if t.number in known]
  shadow = _look(run_, race)
  kept = None
  # A stopped run may have some verdicts; each depends on the whole round.
  verdicts = [(t.number, t.verify) for t in field]
  if any(verdict is None for _, verdict in verdicts):
    found = verify.after_race(run_, race, field, shadow)
    verdicts = [(n, known or found.get(n)) for n, known in verdicts]
  for trial, verdict in verdicts:
    if verdict is None:
      continue
    verdict = record(records.Verify, lambda v=verdict: v, trial=trial)
    kept = verdict if verdict.status == 'keep' else kept
    accumulate.conclude(run_, verdict)
  if kept and shadow_lib.is_needed(run_, race, kept):
    record(
        records.Shadow,
        lambda: shadow_lib.begin(run_, version, race, kept.trial),
        trial=kept.trial,
        round=number,
    )
  record(
      records.Promote,
      lambda: promote.advance(run_, version, race, kept, shadow),
      round=number,
  )
  promote.tidy(run_, race)
  return True


def _look(run_: opening.Run, race: records.Race) -> records.Shadow | None:
  """Return the decision on the shadow that trained in a round, if any."""
  found = [arm.trial for arm in race.arms if arm.role == 'shadow']
  if not found:
    return None
  before = run_.recorder.find(
      records.Shadow, trial=found[0], round=race.round - 1
  )
  shadow = run_.recorder.record(
      records.Shadow,
      lambda: shadow_lib.look(run_, before, race),
      trial=found[0],
      round=race.round,
  )
  run_.say(
      f'trial {shadow.trial}, look {shadow.look} at its shadow:'
      f' {shadow.decision}, {shadow.reason}'
  )
  return shadow
