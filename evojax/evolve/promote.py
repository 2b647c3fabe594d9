"""The test of a child against its parent, and its error rates.

A trial trains C control arms (the parent under C seeds) and K child arms from
one restored state and scores all of them on the same fresh problems:
y[a, p] = mean over the samples of problem p under arm a. Decisions are plain
NumPy: no device, no randomness.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Literal

from jaxtyping import Float
import numpy as np
from scipy import special

LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Effect:
  """Mean score of the children minus mean score of the controls."""

  value: float  # Fraction of problems solved: 0.01 is a point.
  standard_error: float
  df: float  # Degrees of freedom of standard_error.
  sigma_seed: float  # Standard deviation of one arm's mean score.
  se_problems: float  # What pairing over problems alone would give.
  low: float  # Ends of the two-sided interval at LEVEL.
  high: float
  p_one_sided: float  # Of the hypothesis value <= 0.
  wilcoxon_p: float  # One-sided signed ranks over problems; reported only.


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The decision on a trial."""

  status: Literal['keep', 'discard']
  reasons: tuple[str, ...]  # One sentence per condition that decided.


def _check(scores: np.ndarray, arms: int, who: str) -> None:
  if scores.shape[0] < arms:
    raise ValueError(
        f'{scores.shape[0]} {who} arms; need at least {arms}: train more seeds'
    )
  if scores.shape[1] < 2:
    raise ValueError(f'{scores.shape[1]} problems; need at least 2')
  if not np.isfinite(scores).all():
    raise ValueError(f'the scores of the {who} arms hold NaN or infinity')


def _pooled(*roles: np.ndarray) -> tuple[float, float, int]:
  """Return the variance of arms' means, the residual mean square, and degrees.

  Both are about the means of each role, [A, P]: the first is the spread of
  arms, the second the residual of arms and problems, with P - 1 times as many
  degrees of freedom as the first. Arms of a few problems may tie exactly, which
  is no proof that seeds agree: the sampling noise, rest / P, then replaces the
  variance.
  """
  spread, rest, degrees = 0.0, 0.0, 0
  for scores in roles:
    from_problem = scores - scores.mean(axis=0)
    of_arm = from_problem.mean(axis=1, keepdims=True)
    spread += float((of_arm**2).sum())
    rest += float(((from_problem - of_arm) ** 2).sum())
    degrees += len(scores) - 1
  problems = roles[0].shape[1]
  rest /= degrees * (problems - 1)
  return spread / degrees or rest / problems, rest, degrees


def estimate(
    control: Float[np.ndarray, 'C P'], child: Float[np.ndarray, 'K P']
) -> Effect:
  """Estimate the effect of a change on Avg@k, with seeds and problems in error.

  y[a, p] = mu + problem_p + treatment + seed_a + (treatment x problem)_p
  + rest_ap, and value = mean of the children - mean of the controls. Problems
  are shared, so problem_p cancels. What remains:

    SE^2 = sigma_seed^2 (1/C + 1/K) + interaction.

  sigma_seed^2, the pooled variance of the arms' means about their role's, holds
  the spread between seeds and rest / P (sampling noise); C + K - 2 degrees of
  freedom. From the controls alone it would be as exact for a change that does
  nothing, and wrong for one that makes training unsteady, as a higher learning
  rate does: with twice the spread and no effect, 12 % of children would pass a
  5 % test at C = K = 4, and 6 % do so (at K = 2, 13 % and 10 %).

  interaction is the problem x treatment variance over P, the chance that these
  problems happen to like the change. With d_p the difference at problem p,
  var_p(d_p) / P holds it together with rest (1/C + 1/K) / P, which sigma_seed
  has already; so

    interaction = max(0, var_p(d_p) / P - rest (1/C + 1/K) / P),

  with rest the mean square that arms and problems leave over (two-way analysis
  of variance by role, pooled). value / SE is compared with Student's t at
  degrees of freedom by Satterthwaite (1946, Biometrics Bulletin 2:110), at
  least C + K - 2. Exact for independent Gaussian arms but for the cut at 0,
  which errs on the safe side where seeds hardly differ; so does a child that
  meets the prompts of a control, as what they share then cancels.

  Args:
    control: [C, P], C, P >= 2, mean score of each problem under each arm.
    child: [K, P], K >= 1, column p about the problem of `control`'s column p.

  Raises:
    ValueError: If there are too few arms or problems, or they differ.
  """
  _check(control, 2, 'control')
  _check(child, 1, 'child')
  if control.shape[1] != child.shape[1]:
    raise ValueError(
        f'{control.shape[1]} problems of the controls and {child.shape[1]} of'
        ' the children cannot be paired; score all arms on the same problems'
    )
  controls, problems = control.shape
  children = child.shape[0]
  difference = child.mean(axis=0) - control.mean(axis=0)  # [P]
  value = float(difference.mean())

  variance, rest, degrees = _pooled(control, child)
  share = 1 / controls + 1 / children
  by_problem = float(difference.var(ddof=1)) / problems
  noise = rest * share / problems
  square = variance * share
  uncertainty = square**2 / degrees
  if by_problem > noise:
    square += by_problem - noise
    uncertainty += by_problem**2 / (problems - 1)
    uncertainty += noise**2 / (degrees * (problems - 1))
  df = max(float(degrees), square**2 / uncertainty if uncertainty else 0.0)
  error = math.sqrt(square)
  if error:
    p = float(special.stdtr(df, -value / error))
  else:  # Every arm of a role has the same score on every problem.
    p = 0.0 if value > 0 else 1.0
  margin = float(special.stdtrit(df, (1 + LEVEL) / 2)) * error
  return Effect(
      value=value,
      standard_error=error,
      df=df,
      sigma_seed=math.sqrt(variance),
      se_problems=math.sqrt(by_problem),
      low=value - margin,
      high=value + margin,
      p_one_sided=p,
      wilcoxon_p=_wilcoxon(difference),
  )


def _wilcoxon(difference: np.ndarray) -> float:
  """Return the one-sided p of Wilcoxon's signed ranks, with ties, as Normal."""
  difference = difference[difference != 0]
  if not len(difference):
    return 1.0
  _, rank, count = np.unique(
      np.abs(difference), return_inverse=True, return_counts=True
  )
  rank = (count.cumsum() - (count - 1) / 2)[rank]
  signed = (rank * np.sign(difference)).sum()
  return float(special.ndtr(-signed / math.sqrt((rank**2).sum())))


def mde(
    control: Float[np.ndarray, 'C P'],
    children: int,
    alpha: float,
    power: float = 0.8,
) -> float:
  """Return the least effect that a trial detects with probability `power`.

  It is a multiple m of the error that the controls predict, which are all there
  is before a child is trained: MDE = m S, with S = sigma_seed sqrt(1/C + 1/K).
  At this effect the test of `estimate`, value > t S' with S' from all arms,
  passes with probability

    E Phi(m x - t y),  x^2 = X / (C - 1),  y^2 = (X + Y) / (C + K - 2),

  X and Y chi-square with C - 1 and K - 1 degrees of freedom, t the quantile
  t_{1 - alpha, C + K - 2}: m solves it for `power`, exactly for Gaussian arms
  whose spread the change leaves alone. With one child y = x, and m is
  t_{1 - alpha} + t_{power}. A problem x treatment interaction, unknown before
  there is a child, comes on top; and with the controls of another trial the
  power is less (two thirds instead of 80 % at C = 4): train the controls first.

  Args:
    control: [C, P], scores of the control arms of this trial.
    children: K, child arms that would be trained.
    alpha: Level of the one-sided test, in (0, 1).
    power: In (0, 1).

  Returns:
    In the unit of the scores.
  """
  _check(control, 2, 'control')
  variance, _, own = _pooled(control)
  square = variance * (1 / (own + 1) + 1 / children)
  return _multiple(own, children - 1, alpha, power) * math.sqrt(square)


@functools.cache
def _multiple(own: int, added: int, alpha: float, power: float) -> float:
  """Return m of `mde`, given degrees of freedom of controls and children."""
  t = special.stdtrit(own + added, 1 - alpha)
  # Equally likely values of a chi-square variable: m is exact to 0.1 %.
  likely = (np.arange(128) + 0.5) / 128
  chi_square = lambda degrees: 2 * special.gammaincinv(degrees / 2, likely)
  of_control = chi_square(own)[:, None]
  of_child = chi_square(added) if added else 0.0
  x = np.sqrt(of_control / own)
  y = np.sqrt((of_control + of_child) / (own + added))
  passes = lambda multiple: special.ndtr(multiple * x - t * y).mean()

  low, high = 0.0, 1.0
  while passes(high) < power:
    high *= 2
  for _ in range(40):
    middle = (low + high) / 2
    low, high = (middle, high) if passes(middle) < power else (low, middle)
  return high


def children_needed(
    control: Float[np.ndarray, 'C P'],
    predicted: float,
    alpha: float,
    maximum: int,
    power: float = 0.8,
) -> int | None:
  """Return the fewest child arms whose `mde` is at most `predicted`.

  It is None if `maximum` child arms are not enough; more controls might be.
  """
  for children in range(1, maximum + 1):
    if mde(control, children, alpha, power) <= predicted:
      return children
  return None


def alpha_t(level: float, horizon: int, rejections: Sequence[bool]) -> float:
  """Return the level of the next test: false discoveries stay below `level`.

  LORD++ (Ramdas, Yang, Wainwright, Jordan 2017, arXiv:1710.00499, sec. 3, after
  Javanmard and Montanari 2018, arXiv:1603.09000): with the initial wealth w_0
  and tau_j the time of the j-th rejection,

    alpha_t = gamma_t w_0 + (level - w_0) gamma_{t - tau_1}
              + level sum_{j >= 2} gamma_{t - tau_j}.

  Any gamma that falls and sums to 1 will do. A run makes at most `horizon`
  tests and knows it, so gamma_j = 1 / j up to there, scaled, and w_0 is 3/4 of
  level: with 4 tests at level 0.2 and no rejection they have 0.072, 0.036,
  0.024 and 0.018, where the endless 6 / (pi j)^2 and half of level leave 0.061,
  0.015, 0.007 and 0.004, and what the last two could detect is not worth an
  arm. Whatever the data, sum_t alpha_t <= level max(1, rejections): the
  expected share of false among all rejections is at most `level` for
  independent p-values, and the ratio of expectations (mFDR) for any that are
  uniform or larger given the past. Trials on one version may share its control
  arms: until a change is kept, and controls are trained anew, no alpha depends
  on what they showed, and the chance of a false one is at most the sum of the
  alphas whatever the dependence. So the bound on mFDR stays.

  Args:
    level: Bound on the rate of false discoveries of the whole run, in (0, 1).
    horizon: Number of tests that the run may make, >= 1.
    rejections: True for each former test that rejected, oldest first. It is
      safe to count fewer (only those whose change was kept).
  """
  t = len(rejections) + 1
  start = 0.75 * level
  whole = math.fsum(1 / j for j in range(1, horizon + 1))
  gamma = lambda j: 1 / j / whole if j <= horizon else 0.0
  alpha = start * gamma(t)
  payout = level - start
  for tau, rejected in enumerate(rejections, 1):
    if rejected:
      alpha += payout * gamma(t - tau)
      payout = level
  return alpha


@dataclasses.dataclass(frozen=True)
class Wealth:
  """The error budget that is left for tests, see `alpha_t`."""

  level: float
  horizon: int
  rejections: tuple[bool, ...] = ()

  @property
  def alpha(self) -> float:
    """Return the level of the next test."""
    return alpha_t(self.level, self.horizon, self.rejections)

  def after(self, rejected: bool) -> 'Wealth':
    """Return the wealth once the next test has been made."""
    return dataclasses.replace(self, rejections=(*self.rejections, rejected))


def decide(
    effect: Effect,
    alpha: float,
    *,
    critical_alerts: Sequence[str],
    perturbed: Effect | None,
) -> Verdict:
  """Keep a change with a real effect that also holds on perturbed problems.

  Args:
    effect: Effect that the trial measured.
    alpha: Level of its test; see `alpha_t`.
    critical_alerts: Names of the critical alerts that the child raises and its
      parent does not.
    perturbed: Effect on perturbed problems, None if there are none. Its sign
      must be the same: a child that learned the wording of the problems gains
      nothing on them.
  """
  passes = effect.p_one_sided <= alpha
  sign = '<=' if passes else '>'
  found = [(passes, f'p {effect.p_one_sided:.4g} {sign} alpha {alpha:.4g}')]
  found += [
      (False, f'critical alert that is new: {n}') for n in critical_alerts
  ]
  if perturbed is not None:
    agrees = perturbed.value * effect.value > 0
    text = 'agrees in sign' if agrees else f'disagrees with {effect.value:+.4f}'
    score = f'effect on perturbed problems {perturbed.value:+.4f}'
    found.append((agrees, f'{score} {text}'))
  # All conditions that failed are named, not only the first.
  failed = tuple(why for holds, why in found if not holds)
  if failed:
    return Verdict('discard', failed)
  return Verdict('keep', tuple(why for _, why in found))


def no_loss(effect: Effect, margin: float = 0.02) -> bool:
  """Return whether the interval excludes a loss of `margin` (a fraction)."""
  return effect.low > -margin
