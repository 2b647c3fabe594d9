"""The parts of a diagnosis: findings, and checks that could not tell."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from evojax.ledger import records
from evojax.stats import intervals

SEVERITIES = ('critical', 'warning', 'note')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number:
  """One number behind a finding, with its 95 % interval if it has one."""

  name: str
  value: float
  low: float | None = None
  high: float | None = None
  unit: str = ''


def number(name: str, of: intervals.Interval, unit: str = '') -> Number:
  """Return an interval as a named number."""
  return Number(name=name, value=of.value, low=of.low, high=of.high, unit=unit)


@dataclasses.dataclass(frozen=True)
class Cause:
  """A possible cause of a finding that is only a symptom."""

  text: str  # What may be wrong.
  look: str  # What would show it.
  # Check whose finding agrees with it; check that would probably have found it,
  # but found nothing.
  found_by: str = ''
  unlikely_by: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """A fault of a run, the evidence for it, and what to change."""

  check: str  # Name of the check.
  severity: str  # One of SEVERITIES.
  text: str  # One line without the step and the p-value.
  since: int | None = None  # First step; None: from the start, or unknown.
  p: float | None = None  # P-value of the change or trend in the text.
  numbers: tuple[Number, ...] = ()
  rows: tuple[int, ...] = ()  # Rollouts to read, as rows of `Run.rollouts`.
  change: str = ''  # What to change, in the terms of the trainer.
  # The same change for the meta-loop, which can try it; most likely one first.
  remedies: tuple[records.Remedy, ...] = ()
  replay: str = ''  # Predicted effect of the change on recorded rollouts.
  # Names in `evojax.diagnosis.causes.CAUSES` that this finding rules out.
  ruled_out: tuple[str, ...] = ()
  causes: tuple[Cause, ...] = ()  # See `evojax.diagnosis.causes`.
  # (name, steps, values) of the curves that show it; both [n].
  curves: tuple[tuple[str, Any, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Unknown:
  """A check that could not tell."""

  check: str
  why: str
  # Names of columns, as --columns takes them. Empty if an option of the trainer
  # is known that would log them; then `why` has that option.
  missing: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Diagnosis:
  """All findings of a run, worst first, and the checks without one."""

  findings: tuple[Finding, ...]
  unknown: tuple[Unknown, ...]
  quiet: tuple[str, ...]  # Checks that found nothing wrong.
  verdict: str  # 'healthy', 'findings', 'too_short' or 'cannot_tell'.
  summary: str  # One sentence.


def plain_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
  """Return a mapping with JSON values."""
  return {
      str(k): plain_mapping(v) if isinstance(v, Mapping) else plain(v)
      for k, v in values.items()
  }


def plain(value: Any) -> Any:
  """Return a value for JSON: plain numbers, None for NaN and infinity."""
  if dataclasses.is_dataclass(value):
    return {
        field.name: plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
    }
  if isinstance(value, (list, tuple)) or hasattr(value, 'tolist'):
    inner = value.tolist() if hasattr(value, 'tolist') else list(value)
    return (
        [plain(v) for v in inner] if isinstance(inner, list) else plain(inner)
    )
  if isinstance(value, float):
    return value if abs(value) < float('inf') else None
  return value
