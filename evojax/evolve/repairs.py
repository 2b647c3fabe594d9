"""Values that remedies of a diagnosis set, and which changes are repairs."""

from collections.abc import Iterable, Sequence
import math
from typing import Any

from evojax.diagnosis import findings as findings_lib
from evojax.diagnosis import words
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records

FAULTS = ('critical', 'warning')  # Severities of findings that are faults.
FILES = ('reward.py', 'keep.py', 'weight.py')
_LEAST = 1.1  # Least factor of a repair that ends at a bound.
Change = tuple[str, Any, Any]  # Path, value before, value after.


def path_of(remedy: records.Remedy) -> str:
  """Return the config path or harness file that a remedy changes."""
  return words.word('evojax', remedy.setting, remedy.part)


def target(remedy: records.Remedy) -> Any:
  """Return the value that a remedy sets; None if it scales the present one.

  For a list of tools, it is the tool to add.
  """
  if remedy.setting == 'max_tokens':
    # Remove the training limit; sampling stops at rollout.max_tokens anyway.
    return 0
  return () if remedy.setting == 'data' else remedy.value


def severity(
    findings: Iterable[records.Finding], changes: Sequence[Change]
) -> str:
  """Return the severity of the worst finding that changes repair; '' if none.

  Only the changed values decide, not the text of the proposer. A changed
  function of a harness never counts as a repair, because there are many ways to
  write one.

  Args:
    findings: The findings, worst first.
    changes: The changed values.
  """
  for finding in findings:
    for remedy in finding.remedies:
      if any(_makes(change, remedy) for change in changes):
        return finding.severity
  return ''


def severity_of(trial: history_lib.Trial, before: int | None = None) -> str:
  """Return the `severity` of a trial, the worst while it was under test.

  Args:
    trial: The trial.
    before: Only the diagnoses of earlier rounds count; None counts all.
  """
  if trial.diagnose is None or trial.delta is None:
    return ''
  found = [
      severity(diagnosis.findings, trial.delta.changes)
      for diagnosis in (trial.diagnose, *trial.later)
      if before is None or diagnosis.round < before
  ]
  return next((s for s in findings_lib.SEVERITIES if s in found), '')


def repairs_fault(trial: history_lib.Trial) -> bool:
  """Return whether a candidate repairs a finding that is more than a note."""
  return severity_of(trial) in FAULTS


def is_due(trial: history_lib.Trial, number: int) -> bool:
  """Return whether a trial races in a round as the repair of a critical fault.

  It does so in one round, the first after a diagnosis calls the fault critical.
  In that round, the chain follows the repair. It is also the repair's last
  round, so that the test uses all its evidence: if the decision took another
  round, the training of this one would be lost.

  Args:
    trial: A candidate.
    number: Number of the round.
  """
  has_raced = any(race.round < number for race in trial.races)
  before = severity_of(trial, before=number) if has_raced else ''
  return severity_of(trial, before=number + 1) == 'critical' != before


def _makes(change: Change, remedy: records.Remedy) -> bool:
  """Return whether a change of a value carries out a remedy."""
  path, before, after = change
  if path != path_of(remedy) or path in FILES:
    return False
  value = target(remedy)
  if remedy.setting == 'tools':  # A list, to which the remedy adds one.
    return value in after and value not in before
  if value is not None:
    return spec.as_float(after) == spec.as_float(value)
  if not before or (after / before - 1) * (remedy.times - 1) <= 0:
    return False
  # A repair need not show a gain, only no loss, and a tiny change never loses.
  # So a change counts only if it makes at least half of the step, in logarithm,
  # or, where a bound may have stopped it, a factor of at least _LEAST.
  least = _LEAST if _may_be_bound(path, after) else math.sqrt(remedy.times)
  return _size(after / before) >= min(_size(least), _size(remedy.times) / 2)


def _may_be_bound(path: str, value: int | float) -> bool:
  """Return whether a value may lie on a bound of its path.

  The result is True where the bounds are not known here: for paths of a domain,
  and where another config value is the bound.
  """
  try:
    field = surface_lib.recipe().field(path)
  except surface_lib.SurfaceError:
    return True
  return bool(field.end) or not field.low < value < field.high


def _size(ratio: float) -> float:
  """Return |log ratio|; infinite for a step to 0, which turns a value off."""
  return abs(math.log(ratio)) if ratio > 0 else math.inf
