"""Verify: the verdict on a candidate."""

from collections.abc import Sequence
import dataclasses

from evojax.eval import perturb
from evojax.eval import race as race_lib
from evojax.evolve import costs
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorded
from evojax.evolve import recorder
from evojax.evolve import standings
from evojax.evolve.steps import admit
from evojax.evolve.steps import backtest as backtest_lib
from evojax.evolve.steps import promote
from evojax.evolve.steps import validation
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.ledger import calibration
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions

# Without a second judge, a change that only looks good may be kept.
_NOT_AUDITED = (
    'not scored by a second judge: the domain cannot perturb enough problems,'
    ' and has no audit'
)


class _SpentError(Exception):
  """The run has used up its audits (evolve.audits)."""


def before_race(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
    name: str,
) -> records.Verify | None:
  """Return the verdict on a candidate before its race; None: it may race.

  Args:
    run: The run.
    version: The parent.
    design: The candidate.
    delta: The change.
    name: Name of the version that is made if the candidate is kept.
  """
  trial = design.trial
  admitted = run.recorder.find(records.Admit, trial=trial)
  backtest = run.recorder.find(records.Backtest, trial=trial)
  if admitted.reasons:
    sizes = [r.startswith(admit.SIZE_BLOCKED) for r in admitted.reasons]
    status = 'size_blocked' if all(sizes) else 'disqualified'
    return _unraced(trial, status, admitted.reasons)
  if backtest.crash:
    return _unraced(trial, 'preflight_crash', [backtest.crash])
  if not delta.trains:
    found = validation.validated(run, version, design, delta)
    status = 'keep' if found.kept else 'discard'
    verdict = _unraced(trial, status, found.reasons)
    made = name if verdict.status == 'keep' else ''
    return dataclasses.replace(verdict, version=made)
  if backtest.statistics.get(backtest_lib.EQUAL):
    why = 'replayed updates are those of its parent, to the bit'
    return _unraced(trial, 'vetoed', [why])
  trials = run.recorder.history.trials
  mine = next(t for t in trials if t.number == trial)
  # Replays of a class that mispredicted before have less weight.
  predicted = calibration.in_class(mine, trials, lambda t: t.backtested)
  if race_lib.vetoed(predicted):
    low, high = (100 * end for end in backtest.predicted)
    why = f'replayed updates lose, {low:+.1f} to {high:+.1f} points'
    return _unraced(trial, 'vetoed', [why])
  return None


def _unraced(trial: int, status: str, reasons: Sequence[str]) -> records.Verify:
  """Return a verdict without numbers.

  If the machine was too busy to run a function, the change was not judged and
  may be proposed again.
  """
  if any(map(run_lib.is_busy, reasons)):
    status = history_lib.BUSY
  return records.Verify(
      trial=trial, version='', status=status, reasons=tuple(reasons)
  )


def after_race(
    run: opening.Run,
    race: records.Race,
    field: Sequence[history_lib.Trial],
    shadow: records.Shadow | None,
) -> dict[int, records.Verify]:
  """Return the verdicts on a round's candidates; the others race on, or wait.

  At most one is kept. The others then end, because the incumbent that they were
  compared with has been replaced; they may be proposed again. None is kept
  while the shadow of an earlier change trains: the shadow would then compare
  two changes, and end too early.

  Args:
    run: The run.
    race: The round.
    field: Its candidates, and those that waited.
    shadow: The shadow after the round, if any. It may take a change back.
  """
  found = _after_race(run, race, field, shadow)
  waiting = [place for place in race.queue if not place.enters]
  replaced = shadow is not None and shadow.decision == 'drop'
  if replaced or any(verdict.status == 'keep' for verdict in found.values()):
    ended = 'the harness that it changes was replaced'
  elif _is_last(run, race):
    ended = 'no round was left'
  else:
    return found
  for place in waiting:
    why = f'it waited: {place.reason}; then {ended}'
    found[place.trial] = _unraced(place.trial, 'superseded', [why])
  return found


def at_end(run: opening.Run, why: str) -> dict[int, records.Verify]:
  """Return verdicts on the candidates that still race or wait at the end.

  There are some if the tokens paid for fewer rounds than was expected in the
  last one.

  Args:
    run: The run.
    why: Why its rounds ended.
  """
  found = {}
  for trial in run.recorder.history.trials:
    if trial.backtest is None or trial.verify is not None:
      continue
    reasons = [f'no round was left: {why}']
    rounds = standings.rounds_of(trial)
    found[trial.number] = (
        _verdict(rounds[-1], 'superseded', reasons)
        if rounds
        else _unraced(trial.number, 'superseded', reasons)
    )
  return found


def _after_race(
    run: opening.Run,
    race: records.Race,
    field: Sequence[history_lib.Trial],
    shadow: records.Shadow | None,
) -> dict[int, records.Verify]:
  """Return the verdicts on the candidates that raced in a round."""
  e = run.config.evolve
  placed = {s.trial: s for s in race.standings}
  if shadow and shadow.decision == 'drop':
    why = ['the change that it was compared with was taken back']
    return {n: _verdict(s, 'superseded', why) for n, s in placed.items()}
  trials = {t.number: t for t in field if t.number in placed}
  found: dict[int, records.Verify] = {}
  for number, standing in placed.items():
    if failed := _failed(race, standing) or _given_up(race, standing):
      found[number] = failed
  racing = {
      str(n): standings.of_record(t)
      for n, t in trials.items()
      if n not in found and placed[n].threshold
  }
  thresholds = {name: placed[int(name)].threshold for name in racing}
  kept, waiting = '', []
  for name in race_lib.passed(racing, thresholds):
    trial, standing = trials[int(name)], placed[int(name)]
    if shadow and shadow.decision == 'go_on':
      verdict = _waits(run, race, trial, standing)
    else:
      verdict = _passed(run, race, trial, standing)
    if verdict is None:
      waiting.append(name)
      continue
    found[int(name)] = verdict
    if verdict.status == 'keep':
      kept = name
      break
    del racing[name]
  # The last round of a run is the last round of every candidate.
  ended = _is_last(run, race)
  rounds = 0 if ended else e.patience
  sorted_out = race_lib.sort_out(
      racing,
      rounds=rounds,
      spread=standings.spread_after(run, race.round),
      kept=kept,
      waiting=waiting,
  )
  for name, decided in sorted_out.items():
    number = int(name)
    if number not in found and decided.status == 'drop':
      status = 'superseded' if kept else 'discard'
      found[number] = _verdict(placed[number], status, [decided.reason])
  return found


def _is_last(
    run: opening.Run,
    race: records.Race,
    trial: history_lib.Trial | None = None,
) -> bool:
  """Return whether a round is the last one of all candidates, or of one."""
  count = len(race.standings)
  if trial is None:
    dev = race.scored_by == 'dev'
    return costs.is_last(run, race.round, count, dev=dev)
  return standings.is_last(run, race.round, trial, count, race.scored_by)


def _failed(
    race: records.Race, standing: records.Standing
) -> records.Verify | None:
  """Return the verdict on a candidate with an arm that failed, or None."""
  for arm in race.arms:
    mine = (arm.role, arm.trial) == ('candidate', standing.trial)
    if mine and arm.status != 'done':
      early = arm.status in ('futility', 'collapse')
      status = 'discard' if early else arm.status
      why = f'{arm.folder}: {arm.status} {arm.why}'
      return _verdict(standing, status, [why])
  if standing.threshold is None:
    why = (
        f'{len(standing.differences)} pairs can be compared, too few: both arms'
        ' need scores of two problems'
    )
    return _verdict(standing, 'harness_abort', [why])
  return None


def _given_up(
    race: records.Race, standing: records.Standing
) -> records.Verify | None:
  """Return the verdict on a candidate that was stopped after half its pairs.

  It is never kept: a second test, on fewer pairs, would add false keeps. Pairs
  are counted by their arms, as not all that were trained can be compared.
  """
  whole = len(promote.arms_of(race, 'incumbent', None))
  done = len(promote.arms_of(race, 'candidate', standing.trial))
  if done >= whole:
    return None
  why = f'given up after {done} of {whole} pairs'
  return _verdict(standing, 'discard', [why])


def _waits(
    run: opening.Run,
    race: records.Race,
    trial: history_lib.Trial,
    standing: records.Standing,
) -> records.Verify | None:
  """Return the verdict on a candidate that passed while a shadow trains.

  None lets it race on; it can be kept after the decision about the shadow.
  """
  if not _is_last(run, race, trial):
    return None
  why = (
      'its evidence is enough, but the change that was kept before it still has'
      ' a shadow'
  )
  return _verdict(standing, 'superseded', [why])


def _passed(
    run: opening.Run,
    race: records.Race,
    trial: history_lib.Trial,
    standing: records.Standing,
) -> records.Verify | None:
  """Return the verdict on a candidate whose e-value reached its threshold.

  None lets it race on, as perturbed problems cannot decide yet.
  """
  first = {
      arm.role: arm
      for arm in reversed(race.arms)
      if arm.status == 'done' and arm.trial in (None, trial.number)
  }
  # Both arms were trained equally long, from one state.
  before, after = (
      _criticals(run, first[role]) for role in ('incumbent', 'candidate')
  )
  alerts = decisions.decide(lambda: sorted(after - before))
  evidence = f'e-value {standing.e_value:.3g} >= {standing.threshold:.3g}'
  margin = standings.of_record(trial).margin
  if margin:
    evidence += f' against a loss of {100 * margin:.0f} points'
  status, reasons = 'keep', [evidence]
  try:
    gate = _perturbed(run, race, trial, standing)
  except _SpentError as error:
    why = f'not verified: {error}'
    return _verdict(standing, history_lib.UNVERIFIED, [*reasons, why])
  if alerts:
    status = 'discard'
    reasons += [f'critical alert that is new: {name}' for name in alerts]
  if gate is not None:
    reasons.append(gate.reason)
    if gate.status == 'open' and not alerts:
      if not _is_last(run, race, trial):
        return None
    if gate.status != 'holds':
      status = 'discard'
  elif status == 'keep':
    reasons.append(_NOT_AUDITED)
  verdict = _verdict(standing, status, reasons)
  made = f'v{len(run.recorder.history.versions)}' if status == 'keep' else ''
  return dataclasses.replace(
      verdict,
      version=made,
      alerts=tuple(alerts),
      perturbed_effect=gate and gate.perturbed.value,
      perturbed_error=gate and gate.perturbed.standard_error,
  )


def _verdict(
    standing: records.Standing, status: str, reasons: Sequence[str]
) -> records.Verify:
  return recorder.made_from(
      records.Verify,
      standing,
      version='',
      status=status,
      reasons=tuple(reasons),
  )


def _criticals(run: opening.Run, arm: records.RacedArm) -> set[str]:
  """Return the critical alerts of an arm that count against it.

  Alerts about the signal do not count: they suggest what to change next, and a
  policy that solves more has more groups without a signal. A falling outcome
  does not count either: the race has compared all arms by their outcomes, and
  in a sound recipe of math, the outcome falls by chance in 5 of 100 arms.
  """
  found = recorded.measure(run, [arm.folder], arm.harness, arm.outcome)
  return {
      m.name
      for m in found
      if m.level == 'critical'
      and m.layer != 'signal'
      and m.name != 'outcome_falling'
  }


def _perturbed(
    run: opening.Run,
    race: records.Race,
    trial: history_lib.Trial,
    standing: records.Standing,
) -> race_lib.Gate | None:
  """Return the result of a candidate on the evaluator's own problems.

  They are judged by the domain's audit, and perturbed if the domain can perturb
  enough of them. The result is None if it cannot, and has no audit of its own.

  Every result is a row of the ledger, so that a continued run counts it once.

  Raises:
    _SpentError: If the run may not score any more candidates on them.
  """
  e, own = run.config.evolve, run.setup.domain
  domain = own.audit
  enough = (race.round + 1) * e.pairs * e.problems
  tokenizer = run.setup.policy.tokenizer
  most = run.config.data.max_prompt_tokens
  fits = lambda problem: len(tokenizer.render(problem.messages)) <= most
  seed = run.config.seed
  perturbed = lambda judge: judge
  if perturb.has_perturbations(domain, enough, seed=seed, fits=fits):
    perturbed = lambda judge: perturb.Perturbed(judge, fits)
  elif domain is own:
    return None

  def score() -> records.Audit:
    found, errors = pairs.differences(
        run,
        race.round,
        race.arms,
        race.scored_by,
        'candidate',
        trial.number,
        perturbed=perturbed,
    )
    return records.Audit(
        **key, differences=tuple(found), errors=tuple(errors)
    )

  key = dict(trial=trial.number, round=race.round)
  spent = len(run.recorder.history.all(records.Audit))
  if run.recorder.find(records.Audit, **key) is None and spent >= e.audits:
    raise _SpentError(
        f'the budget of perturbed scores is spent (evolve.audits={e.audits})'
    )
  audit = run.recorder.record(records.Audit, score, **key)
  return race_lib.gate(
      standing.differences,
      audit.differences,
      audit.errors,
      margin=standings.of_record(trial).margin,
  )
