"""Validation of changes that train nothing: diagnostics and backtests.

No trial can measure the value of such a change, since it leaves every policy
unchanged. It is judged by the run's records instead. A diagnostic must work on
every past version and be informative: within versions, its values follow the
score, or they measure a difference between solved and unsolved completions. A
statistic of a backtest must have predicted the effects of past trials. Both
must beat chance at LEVEL, corrected for the number of tests (Bonferroni), one
or two for each value that the function returns. If the records cannot decide,
the change is discarded, with the counts as reason.

Differences between versions prove nothing: whatever drifts during training
differs between versions, as the score does, and a run has few versions.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
from typing import Any

from jaxtyping import Float, Int
import numpy as np

from evojax.evolve import predicates
from evojax.harness import run
from evojax.stats import ranks

LEVEL = 0.1
# Fewer pairs cannot reach LEVEL: 3 have 6 orders, and 2 / 6 > LEVEL.
LEAST = 4
SLICES = 8
_MOST_REASONS = 8


@dataclasses.dataclass(frozen=True)
class Validation:
  """The decision on a diagnostic or a statistic, and the numbers behind it."""

  kept: bool
  reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Reading:
  """The numbers of a diagnostic on one piece of evidence."""

  score: float  # Share of the valid completions that are solved.
  values: Mapping[str, float]  # Empty where it failed.
  status: str = ''  # The failure: crash, hang, ...; '' if it did not fail.


@dataclasses.dataclass(frozen=True)
class Readings:
  """The numbers of a diagnostic on the evidence of one version."""

  version: str
  whole: Reading  # Numbers on all of the evidence, as a diagnosis has them.
  slices: tuple[Reading, ...]  # Numbers on disjoint sets of its groups.


@dataclasses.dataclass(frozen=True)
class PastTrial:
  """The numbers of a statistic for a trial whose effect is known."""

  trial: int
  effect: float  # Realised effect on Avg@k, a fraction.
  values: Mapping[str, float]  # Empty where it failed.
  status: str = ''


# -------------------------------------------------------------------- evidence


def discarded(*reasons: str) -> Validation:
  """Return the decision against a change, with its reasons."""
  return Validation(False, reasons)


def slices(rows: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
  """Cut evidence into at most SLICES disjoint sets of whole groups.

  Slices of one version are exchangeable, but its updates are not: two numbers
  that merely drift during training would seem to agree over updates.

  Args:
    rows: Columns of shape [rows]; 'group' is numbered from 0.

  Returns:
    The columns of each slice, with groups numbered from 0.
  """
  count = min(SLICES, int(rows['group'].max()) + 1)
  found = []
  for i in range(count):
    # Groups are dealt in turn, so that every slice has groups of all updates.
    chosen = rows['group'] % count == i
    part = {name: values[chosen] for name, values in rows.items()}
    found.append(part | {'group': part['group'] // count})
  return found


def read(functions: run.Functions, name: str, view: Any) -> Reading:
  """Run a diagnostic on one piece of evidence, an `evidence.views.View`.

  Args:
    functions: The functions of the candidate harness.
    name: The diagnostic that the candidate adds.
    view: Evidence of reader 'diagnostic'.
  """
  solved = view.outcome[view.valid]
  score = float(solved.mean()) if solved.size else math.nan
  try:
    return Reading(score, functions.measure(name, view))
  except run.FunctionError as error:
    return Reading(score, {}, status=error.status)


def predict(
    functions: run.Functions,
    name: str,
    views: tuple[Any, Any],
    *,
    trial: int,
    effect: float,
) -> PastTrial:
  """Return the output of a candidate's `predict` for a past trial.

  Args:
    functions: The functions of the candidate harness.
    name: The backtest that the candidate adds.
    views: The parent's evidence under the parent and under the past trial.
    trial: Number of the past trial.
    effect: Its realised effect, a fraction of Avg@k.
  """
  try:
    return PastTrial(trial, effect, functions.predict(name, *views))
  except run.FunctionError as error:
    return PastTrial(trial, effect, {}, error.status)


# -------------------------------------------------------------------- verdicts


def diagnostic(versions: Sequence[Readings]) -> Validation:
  """Decide on a diagnostic from its readings of all past versions.

  It is kept if it never fails, returns the same names everywhere, and one of
  its numbers, not constant over the slices of all versions, either

  - follows the score: Spearman's rank correlation with the share solved, over
    the slices of each version, beats chance in a permutation test in which
    slices keep their version; or
  - is a difference between solved and unsolved completions, whose name ends
    with `predicates.GAP`, and has one sign over the slices beyond chance
    (Wilcoxon's signed ranks).

  Args:
    versions: Readings of at least one version, or of arms that count as one.
  """
  if not versions:
    return discarded('there is no evidence but that on which it was chosen')
  failed = [
      f'it fails on {v.version}: {reading.status}'
      for v in versions
      for reading in (v.whole, *v.slices)
      if reading.status
  ]
  if failed:
    return discarded(*dict.fromkeys(failed))
  names = sorted(set().union(*(v.whole.values for v in versions)))
  silent = [v.version for v in versions if not v.whole.values]
  if silent:
    return discarded(f'it has no number for {", ".join(silent)}')
  for v in versions:
    if missing := set(names) - v.whole.values.keys():
      return discarded(
          f'it has {min(missing)} for other versions, but not for {v.version}'
      )
  where = f'{sum(len(v.slices) for v in versions)} slices of' + (
      f' {len(versions)} version{"s" if len(versions) > 1 else ""}'
  )

  def tests(name: str) -> list[_Test]:
    there = [
        (r.values[name], r.score, i)
        for i, v in enumerate(versions)
        for r in v.slices
        if name in r.values and math.isfinite(r.score)
    ]
    values, scores, of = np.array(there, np.float64).reshape(-1, 3).T
    what = f'the score over {where}'
    found = [_follows(name, values, scores, what, of.astype(int))]
    if name.endswith(predicates.GAP) and len(values) >= LEAST:
      p = ranks.p_zero(values)
      mean = f'{name}: {values.mean():+.2f} on average'
      found.append(_Test(f'{mean} over {where}', p))
    return found

  return _earned(names, tests)


def backtest(trials: Sequence[PastTrial]) -> Validation:
  """Decide on a statistic of a backtest from its values for past trials.

  It is kept if it never fails and the rank correlation of one of its numbers
  with the realised effects beats chance. Its sign may be either: a statistic
  may predict harm. The share of equal signs is reported as well.

  Args:
    trials: Past trials with a realised effect, oldest first.
  """
  if failed := [t for t in trials if t.status]:
    return discarded(
        *(f'it fails on trial {t.trial}: {t.status}' for t in failed)
    )
  if len(trials) < LEAST:
    return discarded(
        f'{len(trials)} past trials have a realised effect; agreement with'
        f' fewer than {LEAST} proves nothing'
    )

  def tests(name: str) -> list[_Test]:
    there = [(t.values[name], t.effect) for t in trials if name in t.values]
    values, effects = np.array(there, np.float64).T
    found = _follows(name, values, effects, f'{len(there)} realised effects')
    signs = np.sign(values) * np.sign(effects)
    agree, said = int((signs > 0).sum()), int((signs != 0).sum())
    text = f'{found.text}, signs agree in {agree} of {said}'
    return [dataclasses.replace(found, text=text)]

  names = sorted(set().union(*(t.values for t in trials)))
  if not names:
    return discarded('it has no number for any past trial')
  return _earned(names, tests)


@dataclasses.dataclass(frozen=True)
class _Test:
  """One test of whether a number agrees with the records beyond chance."""

  text: str
  p: float  # Probability of such agreement by chance, two-sided.


def _earned(
    names: Sequence[str], tests: Callable[[str], list[_Test]]
) -> Validation:
  """Keep a function if a number of it beats chance; best tests come first."""
  found = sorted((t for name in names for t in tests(name)), key=lambda t: t.p)
  level = LEVEL / len(found)  # Bonferroni; a number may have two tests.
  passed = [t for t in found if t.p <= level]
  sign = '<=' if passed else '>'
  shown = (passed or found)[:_MOST_REASONS]
  return Validation(
      bool(passed),
      tuple(f'{t.text}, p {t.p:.3g} {sign} {level:.3g}' for t in shown),
  )


def _follows(
    name: str,
    values: Float[np.ndarray, 'N'],
    wanted: Float[np.ndarray, 'N'],
    what: str,
    groups: Int[np.ndarray, 'N'] | None = None,
) -> _Test:
  """Test the rank agreement of a number with the values it should follow.

  Args:
    name: The number.
    values: Its values.
    wanted: The values that it should follow.
    what: Description of these values.
    groups: The group of each value if only agreement within groups counts.
  """
  if len(values) < LEAST:
    return _Test(f'{name}: only {len(values)} values beside {what}', 1.0)
  if not np.ptp(values):
    return _Test(f'{name}: {values[0]:.4g} everywhere, beside {what}', 1.0)
  if groups is None:
    correlation, p = ranks.agreement(values, wanted)
  else:
    correlation, p = ranks.agreement_within(values, wanted, groups)
  return _Test(f'{name}: rank agreement {correlation:+.2f} with {what}', p)
