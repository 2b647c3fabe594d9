"""Diagnosis of a version from its evidence and the ledger.

There are four layers. Score, signal and behaviour are measured by the harness's
own diagnostics on recorded rollouts; the learning curve and the layer 'version'
come from the ledger. RULES then combine several measures into one finding, such
as slow_learning. Every finding is a `Measure` with the number behind it.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from evojax.harness import run
from evojax.ledger import calibration
from evojax.ledger import history as history_lib
from evojax.ledger import records

_SEVERITY = {'critical': 0, 'warn': 1}
Values = Mapping[str, float]  # Name -> value of what could be measured.


def _graded(
    name: str,
    layer: str,
    unit: str,
    value: float,
    warn: records.Threshold | None = None,
    critical: records.Threshold | None = None,
    calls_for: tuple[str, ...] = (),
) -> records.Measure:
  """Return a measure with the level that its thresholds give it."""
  measure_ = records.Measure(
      name, layer, unit, float(value), warn, critical, 'ok', '', calls_for
  )
  return dataclasses.replace(measure_, level=measure_.beyond)


def graded(meta: Mapping[str, Any], values: Values) -> list[records.Measure]:
  """Return the measures of one diagnostic, sorted by name.

  Args:
    meta: What the diagnostic declares, see `harness.run.Functions.meta`.
    values: Its numbers by name.
  """
  threshold = lambda pair: pair and (str(pair[0]), float(pair[1]))
  return [
      _graded(
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


# ------------------------------------------------------------- learning curve


def _line(y: np.ndarray) -> tuple[float, float, float]:
  """Fit a straight line through n >= 3 values.

  Returns:
    Its start, its rise, and how far the end of the rise's one-sided 95 %
    interval is from it (Student's t on the residuals).
  """
  n = len(y)
  x = np.arange(n) - (n - 1) / 2
  slope = float(x @ y / (x @ x))
  residual = y - y.mean() - slope * x
  error = math.sqrt(float(residual @ residual) / (n - 2) / float(x @ x))
  quantile = float(special.stdtrit(n - 2, 0.95))
  rise = slope * (n - 1)
  return float(y.mean() + slope * x[0]), rise, quantile * error * (n - 1)


def learning_curve(
    outcome: Sequence[float], reward: Sequence[float] = ()
) -> Values:
  """Describe how an arm learned by straight lines through its updates.

  Args:
    outcome: Share of completions solved, one value per update.
    reward: Mean reward of each update, if it is known.

  Returns:
    outcome_start and outcome_rise, fractions of the fitted line;
    outcome_rise_high, the upper end of the rise's one-sided 95 % interval; and
    unsolved_closed, the rise as a share of what was not solved at the start.
    With the reward, shaped_rise: how much more the reward rose than the
    outcome, and shaped_rise_low, its lower end. Both are of one arm, under one
    reward. Empty for fewer than three updates, where a line has no residuals.
  """
  y = np.asarray(outcome, np.float64)
  if len(y) < 3:
    return {}
  start, rise, half = _line(y)
  start = min(max(start, 0.0), 1.0)
  curve = {
      'outcome_start': start,
      'outcome_rise': rise,
      'outcome_rise_high': rise + half,
  }
  if start < 1:
    curve['unsolved_closed'] = rise / (1 - start)
  if len(reward) == len(y):
    _, rise, half = _line(np.asarray(reward, np.float64) - y)
    curve |= {'shaped_rise': rise, 'shaped_rise_low': rise - half}
  return curve


# -------------------------------------------------------------------- versions


def version_measures(history: history_lib.History) -> list[records.Measure]:
  """Measure the search itself: the layer 'version', from the ledger.

  failures_in_row counts the trials since the last kept one. calibration is the
  mean of realised minus predicted effect (the middle of the interval; fractions
  of Avg@k), negative where predictions are too high. sign_agreement is the
  share of the trials whose 95 % interval excludes 0 that went where the
  prediction said. tried_<class> counts the trials of an intervention class.

  None of them is critical: a bad search must not keep a good version from being
  promoted.
  """
  verdicts = [t for t in history.trials if t.verify]
  # Counted from 1: with nothing kept, every verdict is a failure.
  kept = [i for i, t in enumerate(verdicts, 1) if t.status == 'keep']
  failures = len(verdicts) - max(kept, default=0)
  measured = lambda name, unit, value, warn=None: _graded(
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


# ----------------------------------------------------------------------- rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  """A finding that only several measures together show.

  Without one of the measures that it reads there is no finding.
  """

  layer: str
  unit: str
  value: Callable[[Values], float]  # The number behind the finding.
  warn: records.Threshold
  critical: records.Threshold | None = None
  # A condition besides the threshold, and a sentence for when it does not hold.
  when: Callable[[Values], bool] = lambda v: True
  otherwise: str = ''


# With less than a tenth unsolved, slow learning or certainty is no problem.
_MUCH_IS_UNSOLVED = dict(
    when=lambda v: 1 - v['outcome'] > 0.1,
    otherwise='It alerts only below 90% solved, and {outcome:.1%} is solved.',
)

RULES = {
    # An arm should solve most of what was unsolved at its start.
    'slow_learning': Rule(
        layer='score',
        unit='share of what was unsolved',
        value=lambda v: v['unsolved_closed'],
        warn=('<', 2 / 3),
        **_MUCH_IS_UNSOLVED,
    ),
    # The whole one-sided interval of the rise is below 0.
    'outcome_falling': Rule(
        layer='score',
        unit='fraction per arm',
        value=lambda v: v['outcome_rise'],
        warn=('<', 0.0),
        critical=('<', -0.05),
        when=lambda v: v['outcome_rise_high'] < 0,
        otherwise='It alerts only where the whole interval of the rise is below'
        ' 0, and its upper end is {outcome_rise_high:+.3f}.',
    ),
    # Only groups whose outcomes differ carry a gradient towards solving more.
    'weak_signal': Rule(
        layer='signal',
        unit='fraction of groups',
        value=lambda v: v['alive_by_outcome'],
        warn=('<', 0.7),
    ),
    'too_hard': Rule(
        layer='signal',
        unit='fraction of groups',
        value=lambda v: v['dead_group_ratio'],
        warn=('>', 0.2),
        when=lambda v: v['outcome'] < 0.4,
        otherwise='It alerts only below 40% solved, and {outcome:.1%} is'
        ' solved.',
    ),
    'too_easy': Rule(
        layer='signal',
        unit='fraction of groups',
        value=lambda v: v['dead_group_ratio'],
        warn=('>', 0.2),
        when=lambda v: v['outcome'] > 0.6,
        otherwise='It alerts only above 60% solved, and {outcome:.1%} is'
        ' solved.',
    ),
    # The policy is certain of its tokens although much is unsolved.
    'exploration_collapse': Rule(
        layer='behaviour',
        unit='nats/token',
        value=lambda v: v['mean_logprob'],
        warn=('>', -0.1),
        **_MUCH_IS_UNSOLVED,
    ),
    # A large part of what is unsolved fails by its format, right or wrong.
    'format_bottleneck': Rule(
        layer='behaviour',
        unit='share of what is unsolved',
        value=lambda v: v['format_failures'] / max(1 - v['outcome'], 1e-9),
        warn=('>', 1 / 3),
        **_MUCH_IS_UNSOLVED,
    ),
    # Longer completions earn more, and completions run into the limit.
    'length_gaming': Rule(
        layer='behaviour',
        unit='correlation',
        value=lambda v: v['length_reward_corr'],
        warn=('>', 0.3),
        when=lambda v: v['truncated'] > 0.05,
        otherwise='It alerts only where more than 5% of the completions are'
        ' truncated, and {truncated:.1%} are.',
    ),
    # The reward rose and the outcome did not (EvoTrainer, arXiv:2606.03108).
    'reward_hacking': Rule(
        layer='score',
        unit='reward per arm, beyond the outcome',
        value=lambda v: v['shaped_rise'],
        warn=('>', 0.05),
        critical=('>', 0.2),
        when=lambda v: v['outcome_rise'] < 0.01 and v['shaped_rise_low'] > 0,
        otherwise='It alerts only where the solved share rose by less than a'
        ' point, and it changed by {outcome_rise:+.3f}; the lower end of the'
        " reward's own rise is {shaped_rise_low:+.3f}.",
    ),
}


# Names that no diagnostic may give its numbers: it could hide an alert.
_OURS = set(RULES) | learning_curve((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)).keys()


def _findings(values: Values) -> list[records.Measure]:
  """Return what the rules find whose measures are all there."""
  found = []
  for name, rule in RULES.items():
    try:
      value, holds = rule.value(values), rule.when(values)
    # One of its measures is missing, such as that of a diagnostic that failed.
    except KeyError:
      continue
    measure_ = _graded(
        name, rule.layer, rule.unit, value, rule.warn, rule.critical
    )
    if not holds and measure_.level != 'ok':
      why = rule.otherwise.format_map(values)
      measure_ = dataclasses.replace(measure_, level='ok', status=why)
    found.append(measure_)
  return found


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
) -> list[records.Measure]:
  """Measure everything that is known about a version.

  Args:
    functions: Functions of the version's harness; its diagnostics are run.
    view: Recorded evidence, an `evidence.views.View` of reader 'diagnostic'.
    history: The ledger, without this diagnosis.
    outcome: Outcome per update of the arm that made the evidence.
    reward: Mean reward per update.

  Returns:
    The measures of the harness's diagnostics by name, the learning curve, the
    layer 'version', then the rules. A diagnostic that fails is one measure of
    level 'failed' without a value: what it would have measured is unknown, and
    no rule reads it. A diagnostic that reuses another's name for a number fails
    as well (the package's own go first), so that it cannot hide an alert.
  """
  ours = [
      _graded(name, 'score', 'fraction', value)
      for name, value in learning_curve(outcome, reward).items()
  ]
  ours += version_measures(history)
  taken = _OURS | {m.name for m in ours}
  found: dict[str, list[records.Measure]] = {}
  measured = functions.measure_all(view)
  # Diagnostics of the package go first, so that they keep their names.
  for name in sorted(measured, key=lambda n: not functions.is_shipped(n)):
    found[name] = _measures(functions, name, measured[name], taken)
    taken |= {m.name for m in found[name]}
  every = [m for name in sorted(found) for m in found[name]] + ours
  values = {m.name: m.value for m in every if m.value is not None}
  return every + _findings(values)


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
