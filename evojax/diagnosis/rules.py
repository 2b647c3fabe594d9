"""Rules that apply to any run: on its learning curve and combined measures.

The meta-loop applies them to the arm that it has just trained, `diagnose` to
the logs of any trainer. Every finding is a `records.Measure` with the number
behind it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses

import numpy as np

from evojax.ledger import records
from evojax.stats import trends

Reals = Sequence[float] | np.ndarray
Values = Mapping[str, float]  # Name -> value of every known measure.


def graded(
    name: str,
    layer: str,
    unit: str,
    value: float,
    warn: records.Threshold | None = None,
    critical: records.Threshold | None = None,
    calls_for: tuple[str, ...] = (),
) -> records.Measure:
  """Return a measure whose level follows from its thresholds."""
  measure_ = records.Measure(
      name, layer, unit, float(value), warn, critical, 'ok', '', calls_for
  )
  return dataclasses.replace(measure_, level=measure_.beyond)


# ------------------------------------------------------------- learning curve


def _line(values: Reals) -> trends.Trend:
  """Fit n >= 3 values; the ends of the rise are one-sided 95 % bounds."""
  return trends.trend(values, level=0.9, independent=True)


def learning_curve(outcome: Reals, reward: Reals = ()) -> Values:
  """Describe the learning of consecutive arms by lines through their updates.

  Args:
    outcome: Share of completions solved, one value per update.
    reward: Mean reward of each update, if known.

  Returns:
    outcome_start and outcome_rise, fractions of the fitted line;
    outcome_rise_high, the upper end of the rise's one-sided 95 % interval; and
    unsolved_closed, the rise as a share of what was unsolved at the start. With
    the reward: shaped_rise, by how much more the reward rose than the outcome,
    and shaped_rise_low, its lower bound; both assume that the reward did not
    change between arms. Empty for fewer than three updates, for which a line
    has no residuals.
  """
  y = np.asarray(outcome, np.float64)
  if len(y) < 3:
    return {}
  line = _line(y)
  start = min(max(line.start, 0.0), 1.0)
  curve = {
      'outcome_start': start,
      'outcome_rise': line.rise,
      'outcome_rise_high': line.high,
  }
  if start < 1:
    curve['unsolved_closed'] = line.rise / (1 - start)
  if len(reward) == len(y):
    shaped = _line(np.asarray(reward, np.float64) - y)
    curve |= {'shaped_rise': shaped.rise, 'shaped_rise_low': shaped.low}
  return curve


def recent_curve(outcome: Reals) -> Values:
  """Describe a policy's recent learning by a line through its updates.

  Args:
    outcome: Share of completions solved, one value per update.

  Returns:
    recent_rise, a fraction; recent_rise_low and recent_rise_high, the ends of
    its one-sided 95 % intervals. Empty for fewer than three updates.
  """
  if len(outcome) < 3:
    return {}
  line = _line(outcome)
  return {
      'recent_rise': line.rise,
      'recent_rise_low': line.low,
      'recent_rise_high': line.high,
  }


def effort_curve(tested: Reals, turns: Reals) -> Values:
  """Describe changes in the work of agents by lines through their updates.

  Args:
    tested: Share of episodes that run tests after their last edit, by update.
    turns: Mean turns of an episode, by update.

  Returns:
    tested_rise, a fraction; tested_rise_high, the upper end of its one-sided
    95 % interval; turns_rise, in turns. Empty for fewer than three updates.
  """
  if len(tested) < 3:
    return {}
  line = _line(tested)
  return {
      'tested_rise': line.rise,
      'tested_rise_high': line.high,
      'turns_rise': _line(turns).rise,
  }


# ----------------------------------------------------------------------- rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  """A finding that only several measures together can show.

  There is no finding if one of these measures is missing.
  """

  layer: str
  unit: str
  value: Callable[[Values], float]  # The number behind the finding.
  warn: records.Threshold
  critical: records.Threshold | None = None
  # Replaces `warn` if the rule alerted in the last diagnosis, so that a value
  # near `warn` does not turn the alert on and off.
  stays: records.Threshold | None = None
  # A condition besides the threshold, and a sentence if it does not hold.
  when: Callable[[Values], bool] = lambda v: True
  otherwise: str = ''


def _much_is_unsolved(values: Values) -> bool:
  """Return whether slow learning, or a policy that is certain, does harm."""
  return 1 - values['outcome'] > 0.1


_MUCH_IS_UNSOLVED = dict(
    when=_much_is_unsolved,
    otherwise='It alerts only below 90% solved, and {outcome:.1%} is solved.',
)

RULES = {
    # A plateau: the learning curve is flat within its error. A policy whose
    # rise is beyond doubt is not slow, however much is unsolved; one that falls
    # is not slow but broken, see outcome_falling.
    'slow_learning': Rule(
        layer='score',
        unit='fraction over recent updates',
        value=lambda v: v['recent_rise_low'],
        warn=('<', 0.0),
        when=lambda v: _much_is_unsolved(v) and v['recent_rise_high'] >= 0,
        otherwise='It alerts only below 90% solved, and {outcome:.1%} is'
        ' solved, and not where the solved share surely falls: the upper end of'
        ' its rise is {recent_rise_high:+.3f}.',
    ),
    # The whole one-sided interval of the rise is below 0.
    'outcome_falling': Rule(
        layer='score',
        unit='fraction over all updates',
        value=lambda v: v['outcome_rise'],
        warn=('<', 0.0),
        critical=('<', -0.05),
        when=lambda v: v['outcome_rise_high'] < 0,
        otherwise='It alerts only where the whole interval of the rise is below'
        ' 0, and its upper end is {outcome_rise_high:+.3f}.',
    ),
    # Only groups whose outcomes differ give a gradient towards solving more.
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
        # In runs of agents, the mean over a third of the run varies by 0.01.
        stays=('>', -0.12),
        **_MUCH_IS_UNSOLVED,
    ),
    # A large part of the unsolved completions has no readable answer.
    'format_bottleneck': Rule(
        layer='behaviour',
        unit='share of what is unsolved',
        value=lambda v: v['format_failures'] / max(1 - v['outcome'], 1e-9),
        warn=('>', 1 / 3),
        **_MUCH_IS_UNSOLVED,
    ),
    # Tests and turns fall, and no more is solved (EvoTrainer,
    # arXiv:2606.03108).
    'laziness': Rule(
        layer='behaviour',
        unit='tested episodes, fraction',
        value=lambda v: v['tested_rise'],
        warn=('<', 0.0),
        critical=('<', -0.2),
        when=lambda v: v['tested_rise_high'] < 0
        and v['turns_rise'] < 0
        and v['outcome_rise'] < 0.01,
        otherwise='It alerts only where the whole interval of the fall is below'
        ' 0, turns fall and the solved share does not rise; the upper end is'
        ' {tested_rise_high:+.3f}, turns change by {turns_rise:+.2f}, the'
        ' solved share by {outcome_rise:+.3f}.',
    ),
    # Longer completions earn more, and some hit the token limit.
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
        unit='reward beyond the outcome',
        value=lambda v: v['shaped_rise'],
        warn=('>', 0.05),
        critical=('>', 0.2),
        when=lambda v: v['outcome_rise'] < 0.01 and v['shaped_rise_low'] > 0,
        otherwise='It alerts only where the solved share rose by less than a'
        ' point, and it changed by {outcome_rise:+.3f}; the lower end of the'
        " reward's own rise is {shaped_rise_low:+.3f}.",
    ),
}


# Names of the measures that are computed here.
_FLAT = (0.0, 0.0, 0.0)
NAMES = set(RULES) | learning_curve(_FLAT, _FLAT).keys()
NAMES |= recent_curve(_FLAT).keys() | effort_curve(_FLAT, _FLAT).keys()


def findings(
    values: Values, alerted: Collection[str] = ()
) -> list[records.Measure]:
  """Return the findings of the rules whose measures are all known.

  Args:
    values: The measures.
    alerted: Names of the rules that alerted in the previous diagnosis.
  """
  found = []
  for name, rule in RULES.items():
    try:
      value, holds = rule.value(values), rule.when(values)
    # A measure is missing, say because its diagnostic failed.
    except KeyError:
      continue
    warn = rule.stays if name in alerted and rule.stays else rule.warn
    measure_ = graded(name, rule.layer, rule.unit, value, warn, rule.critical)
    if not holds and measure_.level != 'ok':
      why = rule.otherwise.format_map(values)
      measure_ = dataclasses.replace(measure_, level='ok', status=why)
    found.append(measure_)
  return found
