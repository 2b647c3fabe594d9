"""Diagnose: the measures and faults of the version that a trial changes."""

from collections.abc import Sequence

from evojax.evolve import diagnose as diagnose_lib
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.evolve.propose import remedies
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.training import arm as arm_lib


def diagnose(
    run: opening.Run, number: int, trial: int, version: records.Version
) -> records.Diagnose:
  """Return the measures and findings of a version.

  Args:
    run: The run.
    number: Number of the round in which the trial begins.
    trial: Number of the trial.
    version: The version that the trial changes.
  """
  history = run.recorder.history
  arms, before = history.arms_of(version), history.arms_before(version)
  earlier, outcome = decisions.decide(
      lambda: [_outcomes(run, folders) for folders in (before, arms)]
  )
  # The rise in one round is within its error more often than not.
  recent = earlier + outcome
  measures = recorded.measure(run, arms, version.harness, outcome, recent)
  alerts = diagnose_lib.alerts(measures)
  run.say(f'{version.version}: alerts {", ".join(alerts) or "none"}')
  folders = history.trained_under(version.harness)
  found = recorded.findings(
      run, folders or [version.folder], version.harness
  )
  for finding in found:
    run.say(f'{version.version}: {finding.severity}: {finding.text}')
    for remedy in remedies.outside(run.setup.surface, finding):
      run.say(f'it cannot be repaired here: {remedies.said(remedy)}')
  return records.Diagnose(
      round=number,
      trial=trial,
      version=version.version,
      measures=tuple(measures),
      alerts=tuple(alerts),
      findings=found,
  )


def _outcomes(run: opening.Run, arms: Sequence[str]) -> list[float]:
  """Return the solved share of each update of arms."""
  return [x for arm in arms for x in arm_lib.outcomes(run.path / arm)]
