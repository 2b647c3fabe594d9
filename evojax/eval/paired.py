"""Paired differences between arms: intervals, p-values, e-values, power.

A pair is an arm of a candidate and an arm of the incumbent that start from one
state and share the problems and the sampler's seeds; d is the difference of
their scores, a fraction. Each pair of a round has its own seeds and problems,
so that the differences are independent, and only the spread of d matters: a
candidate may vary less or more than the incumbent.

In a chain, a pair starts where the incumbent's arm of the previous pair ended.
The differences of a change without effect have mean 0 from any state, so that
earlier pairs do not predict later ones. Their spread may fall from pair to
pair; Student's t then keeps its level (`benchmarks.races`, "spread falls").
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

from jaxtyping import Float
import numpy as np
from scipy import special

from evojax.stats import intervals
from evojax.stats import spreads

_SIMULATED = 8000  # Simulated candidates for a power.
_HOPE = 0.84  # Quantile 0.8 of the standard Normal distribution.

Values = float | np.ndarray  # Arrays may have any shapes that broadcast.


@dataclasses.dataclass(frozen=True)
class Gain:
  """The mean of paired differences, a fraction, with its t interval."""

  value: float
  standard_error: float
  df: int
  low: float
  high: float


def _moments(
    differences: Sequence[float], errors: Sequence[float]
) -> tuple[float, float, float]:
  """Return the mean, its standard error, and the samples' part of that error.

  Raises:
    ValueError: If there are fewer than 2 pairs, or values that are not finite.
  """
  count = len(differences)
  if count < 2 or len(errors) != count:
    raise ValueError(
        f'{count} differences with {len(errors)} standard errors; a spread'
        ' needs at least 2 pairs, each with its own'
    )
  if not all(map(math.isfinite, (*differences, *errors))):
    raise ValueError(f'{differences=}, {errors=} hold NaN or infinity')
  mean = math.fsum(differences) / count
  square = math.fsum((d - mean) ** 2 for d in differences) / (count - 1)
  noise = math.fsum(e * e for e in errors) / count
  return mean, math.sqrt(square / count), math.sqrt(noise / count)


def gain(
    differences: Sequence[float],
    errors: Sequence[float],
    level: float = intervals.LEVEL,
    groups: Sequence[Sequence[float]] = (),
) -> Gain:
  """Return the mean difference with Student's interval.

  The standard error is never below the part that comes from the samples alone,
  since a few pairs may agree by chance. With other groups of pairs it is not
  below the one that follows from their spread either, and their degrees of
  freedom count: the interval of two pairs alone would be too wide to be useful.
  If these pairs vary more than those of the groups, it is then too narrow.

  Args:
    differences: Differences of n >= 2 pairs, fractions.
    errors: Standard error of each difference over problems and samples, for
      fixed arms (`estimates.standard_error` of the differences at its
      problems); 0 if it is not known.
    level: Level of the two-sided interval, in (0, 1).
    groups: Groups of differences that are taken to vary as much, these among
      them, see `spreads.pooled`.
  """
  mean, error, noise = _moments(differences, errors)
  pooled = (spreads.pooled(groups) or 0.0) / math.sqrt(len(differences))
  error = max(error, noise, pooled)
  df = max(len(differences) - 1, spreads.degrees(groups))
  half = intervals.margin(error, df, level)
  return Gain(mean, error, df, mean - half, mean + half)


def p_value(
    differences: Sequence[float],
    errors: Sequence[float],
    null: float = 0.0,
) -> float:
  """Return the one-sided p of the hypothesis that the mean is <= `null`.

  It is Student's t of n pairs, exact for Gaussian differences of any variance.
  As in `gain`, the error is at least that of the samples if the mean is above
  `null`; this can only raise p.
  """
  mean, error, noise = _moments(differences, errors)
  over = mean - null
  if over > 0:
    error = max(error, noise)
  if not error:
    return 0.0 if over > 0 else 1.0
  return float(special.stdtr(len(differences) - 1, -over / error))


def threshold(target: Values) -> Values:
  """Return p0 of `bet`, the p at which it reaches its target.

  p0 (1 + log(1 / p0)) = 1 / target, solved by Lambert's W on its lower branch.

  Args:
    target: >= 1; smaller values count as 1, for which p0 is 1.
  """
  whole = np.maximum(target, 1.0)
  p0 = np.exp(1 + special.lambertw(-1 / (math.e * whole), -1).real)
  return np.fmin(p0, 1.0)  # At target 1, rounding may leave the branch.


def bet(p: Values, target: Values, *, last: bool) -> Values:
  """Return the e-value of a round, given the p of its pairs.

  An e-value is nonnegative and has a mean of at most 1 if the hypothesis is
  true, whatever happened before. The product over rounds then has these
  properties too, and reaches 1 / alpha with probability at most alpha, at
  whatever round one stops (Ville). A p-value becomes an e-value by any falling
  function whose integral over (0, 1) is 1 (Vovk and Wang 2021,
  arXiv:1912.06116, sec. 2). This one is proportional to 1 / p, capped at the
  factor that is still missing, since more is of no use:

    e = target min(1, p0 / p), with the p0 of `threshold`.

  In its last round a candidate need not save anything for later, so all is bet
  on the target: e = target if p <= 1 / target, else 0. Compared with the
  likelihood ratio of Student's t under a mixture of effects (Perez-Ortiz et al.
  2024, arXiv:2208.07610), capped in the same way, this loses up to 0.12 of the
  power in a first round of 4 pairs and 0.05 over three rounds, and needs no
  prior.

  Args:
    p: One-sided p-value of pairs that are looked at only once.
    target: 1 / alpha over the e-value of the earlier rounds. At 1 or less the
      candidate has passed, and nothing is bet.
    last: Whether this is the last round, decided before it is run.

  Returns:
    The e-value, at most the target, in the common shape of p and target.
  """
  if last:
    found = np.where(p * target <= 1, target, 0.0)
  else:
    p0 = threshold(target)
    found = target * np.minimum(1, p0 / np.maximum(p, p0))
  return np.where(target <= 1, 1.0, found)[()]


def first_half(pairs: int) -> int:
  """Return the number of a round's pairs that a candidate trains at first."""
  return (pairs + 1) // 2


def is_hopeful(mean: Values, error: Values, worth: Values) -> Any:
  """Return whether a gain is still likely enough to pay for more pairs.

  A candidate that gains `worth` is dropped with a probability of 0.2 per look.
  The arguments and the result have any shapes that broadcast.

  Args:
    mean: Mean of the differences so far.
    error: Its standard error.
    worth: The smallest gain of interest.
  """
  return mean + _HOPE * error >= worth


def power(
    effect: float,
    spread: float,
    *,
    pairs: int,
    alpha: float,
    rounds: int,
    worth: float | None = None,
) -> tuple[float, ...]:
  """Return the probabilities that a candidate has passed after each round.

  They are simulated, with the same random numbers at every call, and accurate
  to 0.01. The power is lower if other candidates of a race vary more, see
  `race.after_round`.

  Args:
    effect: Mean difference of every round, a fraction.
    spread: Standard deviation of the difference of a pair, a fraction, > 0.
    pairs: Number of pairs in a round, >= 2.
    alpha: Level of the candidate, in (0, 1).
    rounds: Maximum number of rounds, >= 1.
    worth: A candidate is dropped once this gain is unlikely, after half of its
      pairs and after each round; None: never.
  """
  # All quantities below are in units of the spread.
  whole, errors, halves = _drawn(pairs, rounds)
  gain, least = effect / spread, None if worth is None else worth / spread
  e_value, total = np.ones(_SIMULATED), np.zeros(_SIMULATED)
  done, races = np.zeros(_SIMULATED, bool), np.ones(_SIMULATED, bool)
  half, found = first_half(pairs), []
  for i in range(rounds):
    seen = i * pairs
    for more, mean in ((half, halves[i]), (pairs, whole[i])):
      if more == pairs:
        # An e-value near 0 cannot recover, and would make the target infinite.
        target = 1 / np.maximum(alpha * e_value, 1e-12)
        p = special.stdtr(pairs - 1, -(mean + gain) / errors[i])
        e_value *= bet(p, target, last=i == rounds - 1)
        done |= races & (e_value * alpha > 1 - 1e-9)
      if least is not None:
        count = seen + more
        so_far = (total + more * (mean + gain)) / count
        races &= is_hopeful(so_far, 1 / math.sqrt(count), least)
    total += pairs * (whole[i] + gain)
    found.append(float(np.mean(done)))
  return tuple(found)


def power_between(
    effects: Float[np.ndarray, 'E'],
    spread: float,
    *,
    pairs: int,
    alpha: float,
    rounds: int,
    worth: float,
) -> Float[np.ndarray, 'E']:
  """Return the `power` after the last round for many effects.

  It is interpolated between effects for which it is simulated once. The other
  arguments are those of `power`.
  """
  known, powers = _curve(spread, pairs, alpha, rounds, worth)
  return np.interp(effects, known, powers)


@functools.lru_cache(maxsize=64)
def _curve(
    spread: float, pairs: int, alpha: float, rounds: int, worth: float
) -> tuple[np.ndarray, np.ndarray]:
  """Return effects in ascending order, and the `power` of each."""
  # The power rises over a few spreads, from 0 or, if the spread is small, from
  # `worth` on.
  steps = spread * np.array([*np.arange(-1, 4, 0.25), *np.arange(4, 11)])
  effects = steps if spread > worth else np.union1d(steps, worth + steps)
  powers = [
      power(
          effect,
          spread,
          pairs=pairs,
          alpha=alpha,
          rounds=rounds,
          worth=worth,
      )[-1]
      for effect in effects.tolist()
  ]
  return effects, np.array(powers)


@functools.cache
def _drawn(
    pairs: int, rounds: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return means of standard Normal pairs, their errors, and means of halves.

  Each is [rounds, S]; the errors are of the whole rounds.
  """
  rng = np.random.default_rng(0)
  drawn = rng.standard_normal((rounds, _SIMULATED, pairs))
  error = drawn.std(axis=2, ddof=1) / math.sqrt(pairs)
  half = drawn[:, :, : first_half(pairs)]
  return drawn.mean(axis=2), error, half.mean(axis=2)


def detectable(
    spread: float,
    *,
    pairs: int,
    alpha: float,
    rounds: int,
    wanted: float = 0.8,
    worth: float | None = None,
) -> float:
  """Return the smallest effect that passes within `rounds` at power `wanted`.

  It is printed before a round is paid for. The arguments are those of `power`;
  the result is a fraction.
  """
  low, high = 0.0, spread
  fixed = dict(pairs=pairs, alpha=alpha, rounds=rounds, worth=worth)
  reaches = lambda effect: power(effect, spread, **fixed)[-1] >= wanted
  while not reaches(high):
    low, high = high, 2 * high
  for _ in range(8):
    middle = (low + high) / 2
    low, high = (low, middle) if reaches(middle) else (middle, high)
  return high
