"""Verify: the verdict on a candidate."""

from collections.abc import Sequence
import dataclasses
import pathlib

from jaxtyping import Float
import numpy as np

from evojax.eval import perturb
from evojax.evidence import store
from evojax.evolve import opening
from evojax.evolve import promote
from evojax.evolve import recorded
from evojax.evolve import recorder
from evojax.evolve.steps import trial as trial_lib
from evojax.evolve.steps import validation
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions


def verify(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
    name: str,
) -> records.Verify:
  """Decide on the candidate of a trial, by how far it came.

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
    verdict = _untested(trial, 'disqualified', admitted.reasons)
  elif backtest.crash:
    verdict = _untested(trial, 'preflight_crash', [backtest.crash])
  elif not delta.trains:
    found = validation.validated(run, version, design, delta)
    status = 'keep' if found.kept else 'discard'
    verdict = _untested(trial, status, found.reasons)
  else:
    verdict = _decide(run, run.recorder.find(records.Trial, trial=trial))
  if verdict.status == 'keep':
    verdict = dataclasses.replace(verdict, version=name)
  return verdict


def _untested(
    trial: int, status: str, reasons: Sequence[str]
) -> records.Verify:
  """Return a verdict without numbers.

  Where the machine was too busy for a function, its change was not judged and
  may be proposed again.
  """
  if any(map(run_lib.is_busy, reasons)):
    status = history_lib.BUSY
  return records.Verify(
      trial=trial, version='', status=status, reasons=tuple(reasons)
  )


def _decide(run: opening.Run, trial: records.Trial) -> records.Verify:
  """Return the verdict on a trial that was run."""
  if trial.refused:
    return _untested(trial.trial, 'disqualified', [trial.refused])
  for arm in trial.arms:
    if arm.status == 'done':
      continue
    why = [f'{arm.scores}: {arm.status} {arm.why}']
    # Without its controls, a trial says nothing about the child.
    if arm.role == 'control':
      return _untested(trial.trial, 'harness_abort', why)
    early = arm.status in ('futility', 'collapse')
    return _untested(trial.trial, 'discard' if early else arm.status, why)
  # The parent was trained on for as long as the child.
  before, after = (
      _criticals(run, trial_lib.first(trial, role))
      for role in ('control', 'child')
  )
  alerts = decisions.decide(lambda: sorted(after - before))
  return judge(run, trial, alerts)


def _criticals(run: opening.Run, arm: records.TrialArm) -> set[str]:
  """Critical alerts of an arm that speak against it.

  Those about the signal do not: they say what to change next, and a policy
  that solves more leaves more groups without one.
  """
  found = recorded.measure(run, arm.folder, arm.harness, arm.outcome)
  return {
      m.name for m in found if m.level == 'critical' and m.layer != 'signal'
  }


def judge(
    run: opening.Run, trial: records.Trial, alerts: Sequence[str]
) -> records.Verify:
  """Return the verdict of the statistics on a trial whose arms are all done.

  Devices are used: all processes call it together.

  Args:
    run: The run.
    trial: With scores on disk.
    alerts: Critical alerts that the child raises and its parent does not.
  """

  read = lambda: [
      store.problem_scores(run.path / arm.scores, 'dev').tolist()
      for arm in trial.arms
  ]
  scores = np.array(decisions.decide(read), np.float64)  # [arms, P]
  # The arms of both roles were scored on the same problems in one order.
  is_child = np.array([arm.role == 'child' for arm in trial.arms])
  control, child = scores[~is_child], scores[is_child]
  effect = _estimate(control, child)
  perturbed = None
  if effect.p_one_sided <= trial.alpha:
    perturbed = _perturbed_effect(run, trial)
  verdict = promote.decide(
      effect, trial.alpha, critical_alerts=alerts, perturbed=perturbed
  )
  return recorder.made_from(
      records.Verify,
      effect,
      effect=effect.value,
      p=effect.p_one_sided,
      trial=trial.trial,
      version='',
      status=verdict.status,
      reasons=verdict.reasons,
      alerts=tuple(alerts),
      alpha=trial.alpha,
      no_loss=promote.no_loss(effect),
      control=float(control.mean()),
      child=float(child.mean()),
      perturbed_effect=perturbed and perturbed.value,
  )


def _estimate(
    control: Float[np.ndarray, 'C P'], child: Float[np.ndarray, 'K P']
) -> promote.Effect:
  """Return the effect, to the last bit the same in every process."""
  estimate = lambda: dataclasses.asdict(promote.estimate(control, child))
  return promote.Effect(**decisions.decide(estimate))


def _perturbed_effect(
    run: opening.Run, trial: records.Trial
) -> promote.Effect | None:
  """Effect on the trial's problems in other words.

  None where the domain cannot write so many in other words.
  """
  e, domain = run.config.evolve, run.setup.domain
  if not perturb.has_perturbations(domain, e.problems, seed=trial.dev_seed):
    return None
  other = perturb.Perturbed(domain)
  found: dict[str, list[np.ndarray]] = {'control': [], 'child': []}
  for arm in trial.arms:
    name = f'{pathlib.PurePath(arm.scores).name}-perturbed'
    scores = trial_lib.score(run, trial.trial, name, arm.folder, other)
    found[arm.role].append(scores)
  return _estimate(np.stack(found['control']), np.stack(found['child']))
