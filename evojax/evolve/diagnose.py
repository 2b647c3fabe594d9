"""Diagnosis of a version from its evidence and the ledger.

There are four layers. Score, signal and behaviour are measured by the harness's
own diagnostics on recorded rollouts; the learning curve comes from the outcomes
of the arms, and the layer 'version' from the ledger. `diagnosis.rules` then
combines several measures into one, such as slow_learning. Every result is a
`Measure` with the number behind it.
"""

import collections
from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from evojax.diagnosis import rules
from evojax.harness import run
from evojax.ledger import calibration
from evojax.ledger import history as history_lib
from evojax.ledger import records

_SEVERITY = {'critical': 0, 'warn': 1}


def graded(
    meta: Mapping[str, Any], values: rules.Values
) -> list[records.Measure]:
  """Return the measures of one diagnostic, sorted by name.

  Args:
    meta: The constants of the diagnostic, see `harness.run.Functions.meta`.
    values: The numbers that it returned, by name.
  """
  threshold = lambda pair: pair and (str(pair[0]), float(pair[1]))
  return [
      rules.graded(
          name,
          meta['LAYER'],
          meta['UNIT'],
          value,
          threshold(meta['WARN'].get(name)),
          threshold(meta['CRITICAL'].get(name)),
          meta['CALLS_FOR'],
      )
      for name, value in sorted(values.items())
  ]


# -------------------------------------------------------------------- versions


def version_measures(history: history_lib.History) -> list[records.Measure]:
  """Measure the search itself: the layer 'version', from the ledger.

  failures_in_row counts the trials that were judged since the last kept one.
  calibration is the mean of realised minus predicted effect (the middle of the
  interval; fractions of Avg@k); it is negative where predictions are too high.
  sign_agreement: of the trials whose 95 % interval excludes 0, the share whose
  effect has the predicted sign. tried_<class> counts the trials of an
  intervention class.

  None of them is critical: a bad search must not keep a good version from being
  promoted.
  """
  verdicts = [t for t in history.trials if t.verify]
  # Indices start at 1: if nothing was kept, every verdict counts as a failure.
  judged = [t for t in verdicts if t.judged]
  kept = [i for i, t in enumerate(judged, 1) if t.status == 'keep']
  failures = len(judged) - max(kept, default=0)
  measured = lambda name, unit, value, warn=None: rules.graded(
      name, 'version', unit, float(value), warn
  )
  # "After 3 failures in a row": EvoTrainer, arXiv:2606.03108.
  found = [measured('failures_in_row', 'trials', failures, ('>', 2.0))]
  both = calibration.compared(verdicts, lambda t: t.expected)
  pairs = [(calibration.middle(t.expected), t) for t in both]
  if pairs:
    error = np.mean([t.effect - p for p, t in pairs])
    found.append(measured('calibration', 'fraction', error, ('<', -0.05)))
  clear = [(p, t) for p, t in pairs if t.realised[0] > 0 or t.realised[1] < 0]
  if clear:
    agree = np.mean([(p > 0) == (t.effect > 0) for p, t in clear])
    found.append(measured('sign_agreement', 'fraction', agree))
  classes = collections.Counter(
      t.intervention_class for t in verdicts if t.design
  )
  return found + [
      measured(f'tried_{name}', 'trials', count)
      for name, count in sorted(classes.items())
  ]


# ------------------------------------------------------------------ everything


def _measures(
    functions: run.Functions,
    name: str,
    values: dict[str, float] | run.FunctionError,
    taken: Collection[str],
) -> list[records.Measure]:
  """Return the measures of one diagnostic, or one failed measure."""
  failed = records.Measure(name, 'behaviour', '', None, None, None, 'failed')
  try:
    meta = functions.meta(name)
    if isinstance(values, run.FunctionError):
      raise values
  except run.FunctionError as error:
    return [dataclasses.replace(failed, status=error.status)]
  if not values.keys().isdisjoint(taken):
    return [dataclasses.replace(failed, status='name_taken')]
  return graded(meta, values)


def measure(
    functions: run.Functions,
    view: Any,
    history: history_lib.History,
    outcome: Sequence[float],
    reward: Sequence[float] = (),
    effort: rules.Values | None = None,
    recent: Sequence[float] | None = None,
) -> list[records.Measure]:
  """Return all measures of a version.

  Args:
    functions: Functions of the version's harness; its diagnostics are run.
    view: Recorded evidence, an `evidence.views.View` of reader 'diagnostic'.
    history: The ledger, without this diagnosis.
    outcome: Outcome per update of the arms that made the evidence.
    reward: Mean reward per update.
    effort: `rules.effort_curve` of arms with agents.
    recent: Outcome per update of the policy's recent training, by which slow
      learning is judged; None: that of the arms.

  Returns:
    The measures of the harness's diagnostics by name, the learning curve, the
    layer 'version', then the rules. A diagnostic that fails yields one measure
    of level 'failed' without a value; no rule reads it. A diagnostic that
    reuses a name which another one measures fails as well (the package's own
    diagnostics go first), so that it cannot hide an alert.
  """
  ours = [
      rules.graded(name, 'score', 'fraction', value)
      for name, value in (
          *rules.learning_curve(outcome, reward).items(),
          *rules.recent_curve(outcome if recent is None else recent).items(),
      )
  ]
  ours += [
      rules.graded(name, 'behaviour', 'over all updates', value)
      for name, value in (effort or {}).items()
  ]
  ours += version_measures(history)
  taken = rules.NAMES | {m.name for m in ours}
  found: dict[str, list[records.Measure]] = {}
  measured = functions.measure_all(view)
  # The package's diagnostics go first, so that none can take their names.
  for name in sorted(measured, key=lambda n: not functions.is_shipped(n)):
    found[name] = _measures(functions, name, measured[name], taken)
    taken |= {m.name for m in found[name]}
  every = [m for name in sorted(found) for m in found[name]] + ours
  values = {m.name: m.value for m in every if m.value is not None}
  before = history.find(records.Diagnose)
  return every + rules.findings(values, before.alerts if before else ())


def raised(measures: Sequence[records.Measure]) -> list[records.Measure]:
  """Return the measures that call for action, worst first.

  Critical ones come before warnings; within a level they are sorted by layer
  (score, signal, behaviour, version), then by name.
  """
  order = lambda m: (_SEVERITY[m.level], run.LAYERS.index(m.layer), m.name)
  return sorted((m for m in measures if m.level in _SEVERITY), key=order)


def alerts(measures: Sequence[records.Measure]) -> list[str]:
  """Return the names of the measures that call for action, worst first."""
  return [m.name for m in raised(measures)]
