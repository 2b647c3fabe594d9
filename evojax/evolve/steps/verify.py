"""Verify: the verdict on a candidate."""

from collections.abc import Sequence
import dataclasses

from evojax.eval import perturb
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.evolve import recorder
from evojax.evolve import standings
from evojax.evolve.steps import race as race_lib
from evojax.evolve.steps import validation
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions


def before_race(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
    name: str,
) -> records.Verify | None:
  """Return the verdict on a candidate that is not raced; None: it is.

  Args:
    run: The run.
    version: The parent.
    design: The candidate.
    delta: What differs.
    name: Of the version that is made if the candidate is kept.
  """
  trial = design.trial
  admitted = run.recorder.find(records.Admit, trial=trial)
  backtest = run.recorder.find(records.Backtest, trial=trial)
  if admitted.reasons:
    return _unraced(trial, 'disqualified', admitted.reasons)
  if backtest.crash:
    return _unraced(trial, 'preflight_crash', [backtest.crash])
  if not delta.trains:
    found = validation.validated(run, version, design, delta)
    status = 'keep' if found.kept else 'discard'
    verdict = _unraced(trial, status, found.reasons)
    made = name if verdict.status == 'keep' else ''
    return dataclasses.replace(verdict, version=made)
  if backtest.predicted and backtest.predicted[1] < 0:
    low, high = (100 * end for end in backtest.predicted)
    why = (
        f'its replayed updates lose: {low:+.1f} to {high:+.1f} points, so no'
        ' arm is trained'
    )
    return _unraced(trial, 'vetoed', [why])
  return None


def _unraced(trial: int, status: str, reasons: Sequence[str]) -> records.Verify:
  """Return a verdict without numbers.

  Where the machine was too busy for a function, its change was not judged and
  may be proposed again.
  """
  if any(map(run_lib.is_busy, reasons)):
    status = history_lib.BUSY
  return records.Verify(
      trial=trial, version='', status=status, reasons=tuple(reasons)
  )


def after_race(
    run: opening.Run, race: records.Race, field: Sequence[history_lib.Trial]
) -> dict[int, records.Verify | None]:
  """Return the verdict on each candidate of a round; None: it races on.

  At most one is kept, the first of those with the largest e-value. What the
  others change is no single factor of the harness that it makes, so they end
  with it; they may be proposed again.
  """
  e = run.config.evolve
  last = race.round == e.rounds - 1
  found: dict[int, records.Verify | None] = {}
  kept = ''
  order = lambda s: (-(s.e_value or 0.0), s.trial)
  for standing in sorted(race.standings, key=order):
    trial = next(t for t in field if t.number == standing.trial)
    found[trial.number] = _raced(run, race, trial, standing, kept, last)
    if (verdict := found[trial.number]) and verdict.status == 'keep':
      kept = verdict.version
  if kept:
    for number, verdict in found.items():
      if verdict is None:
        standing = next(s for s in race.standings if s.trial == number)
        found[number] = _verdict(
            standing, 'superseded', [f'{kept} has another harness']
        )
  return found


def _raced(
    run: opening.Run,
    race: records.Race,
    trial: history_lib.Trial,
    standing: records.Standing,
    kept: str,
    last: bool,
) -> records.Verify | None:
  """Return the verdict on a candidate after a round; None: it races on."""
  mine = [arm for arm in race.arms if arm.trial == trial.number]
  for arm in mine:
    if arm.status != 'done':
      early = arm.status in ('futility', 'collapse')
      status = 'discard' if early else arm.status
      why = f'{arm.folder}: {arm.status} {arm.why}'
      return _verdict(standing, status, [why])
  if standing.decision == 'keep' and not kept:
    return _keep(run, race, trial, standing)
  if standing.decision == 'keep':
    return _verdict(standing, 'superseded', [f'{kept} has another harness'])
  if standing.decision == 'drop':
    return _verdict(standing, 'discard', [standing.reason])
  if last:
    why = f'{standing.reason}; this was the last round'
    return _verdict(standing, 'discard', [why])
  return None


def _keep(
    run: opening.Run,
    race: records.Race,
    trial: history_lib.Trial,
    standing: records.Standing,
) -> records.Verify:
  """Return the verdict on a candidate whose evidence is enough."""
  first = {
      arm.trial: arm for arm in reversed(race.arms) if arm.status == 'done'
  }
  # Both were trained for as long, from one state.
  before, after = (_criticals(run, first[n]) for n in (None, trial.number))
  alerts = decisions.decide(lambda: sorted(after - before))
  reasons = [f'critical alert that is new: {name}' for name in alerts]
  perturbed = _perturbed_effect(run, race, trial)
  if perturbed is not None:
    effect, error = perturbed
    if why := standings.contradicts(standing, effect, error):
      reasons.append(why)
  status = 'discard' if reasons else 'keep'
  made = '' if reasons else f'v{len(run.recorder.history.versions)}'
  return dataclasses.replace(
      _verdict(standing, status, reasons or [standing.reason]),
      version=made,
      alerts=tuple(alerts),
      perturbed_effect=perturbed and perturbed[0],
      perturbed_error=perturbed and perturbed[1],
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
  """Critical alerts of an arm that speak against it.

  Those about the signal do not: they say what to change next, and a policy
  that solves more leaves more groups without one.
  """
  found = recorded.measure(run, arm.folder, arm.harness, arm.outcome)
  return {
      m.name for m in found if m.level == 'critical' and m.layer != 'signal'
  }


def _perturbed_effect(
    run: opening.Run, race: records.Race, trial: history_lib.Trial
) -> tuple[float, float] | None:
  """Return the effect on problems in other words, and its standard error.

  None where the domain cannot write so many in other words.
  """
  e, domain = run.config.evolve, run.setup.domain
  seed, first = run.config.seed, race.round * e.problems
  enough = first + e.problems
  if not perturb.has_perturbations(domain, enough, seed=seed):
    return None
  other = perturb.Perturbed(domain)
  scores: dict[int | None, dict[int, float]] = {None: {}, trial.number: {}}
  for arm in race.arms:
    if arm.trial in scores and arm.status == 'done':
      folder = f'{race_lib.dev_folder(race.round, arm.folder)}-perturbed'
      wanted = race_lib.on_dev(
          run, race.round, arm, folder=run.path / folder, domain=other
      )
      scores[arm.trial][arm.pair] = float(run.scorer.scores(wanted).mean())
  return decisions.decide(
      lambda: standings.paired(scores[trial.number], scores[None])
  )
