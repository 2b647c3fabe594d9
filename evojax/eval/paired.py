"""Paired differences between arms: intervals, p-values, e-values, power.

A pair is an arm of a candidate and an arm of the incumbent that start from one
state and share the problems and the sampler's seeds; d is the difference of
their scores, a fraction. Pairs of a round have seeds and problems of their own,
so their differences are independent and the only spread that counts is that
of d: a candidate may be steadier or wilder than the incumbent.

In a chain, a pair starts where the incumbent's arm of the pair before ended. A
change that does nothing has differences around 0 from whatever state, so that
they stay independent; their spread may fall from pair to pair, under which
Student's t keeps its level (`benchmarks.races`, "spread falls").
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import special

from evojax.eval import estimates

_SIMULATED = 8000  # Candidates in a computation of power.
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
  """Return the mean, its standard error, and what the samples give of that.

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
    level: float = estimates.LEVEL,
) -> Gain:
  """Return the mean difference with Student's interval.

  The standard error is never below what the samples alone give: a few pairs may
  agree by chance.

  Args:
    differences: Of n >= 2 pairs, fractions.
    errors: Of each, the standard error that its problems and samples give, with
      arms that are as they are (`estimates.standard_error` of the differences
      at its problems); 0 if it is not known.
    level: Of the two-sided interval, in (0, 1).
  """
  mean, error, noise = _moments(differences, errors)
  error, df = max(error, noise), len(differences) - 1
  margin = float(special.stdtrit(df, (1 + level) / 2)) * error
  return Gain(mean, error, df, mean - margin, mean + margin)


def p_value(
    differences: Sequence[float],
    errors: Sequence[float],
    null: float = 0.0,
) -> float:
  """Return the one-sided p of the hypothesis that the mean is <= `null`.

  Student's t of n pairs, exact for Gaussian differences of any variance. As in
  `gain`, the error is at least that of the samples where the mean is above
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
    target: >= 1; below, it counts as 1, and p0 is 1.
  """
  whole = np.maximum(target, 1.0)
  p0 = np.exp(1 + special.lambertw(-1 / (math.e * whole), -1).real)
  return np.fmin(p0, 1.0)  # Rounding may leave the branch where target is 1.


def bet(p: Values, target: Values, *, last: bool) -> Values:
  """Return the e-value of a round, given the p of its pairs.

  An e-value is nonnegative and has a mean of at most 1 if the hypothesis is
  true, whatever happened before; the product over rounds then has one too, and
  is 1 / alpha or more with probability at most alpha, at whatever round one
  stops (Ville). A p-value becomes one by any function that falls and whose
  integral over (0, 1) is 1 (Vovk and Wang 2021, arXiv:1912.06116, sec. 2). This
  one is 1 / p, cut where it reaches what is still missing, as more is of no
  use:

    e = target min(1, p0 / p), with the p0 of `threshold`.

  In its last round a candidate has nothing to save for, and all is bet on the
  target: e = target if p <= 1 / target, else 0. Beside the likelihood ratio of
  Student's t under a mixture of effects (Perez-Ortiz et al. 2024,
  arXiv:2208.07610), cut in the same way, this loses up to 0.12 of the power
  in a first round of 4 pairs and 0.05 over three rounds, and needs no prior.

  Args:
    p: One-sided, from pairs that are looked at once.
    target: 1 / alpha over the e-value of the rounds before. At 1 or less the
      candidate has passed, and nothing is bet.
    last: Whether this is the last round, known before it is run.

  Returns:
    Of the shape of both together; at most the target.
  """
  if last:
    found = np.where(p * target <= 1, target, 0.0)
  else:
    p0 = threshold(target)
    found = target * np.minimum(1, p0 / np.maximum(p, p0))
  return np.where(target <= 1, 1.0, found)[()]


def first_half(pairs: int) -> int:
  """Return how many pairs of a round a candidate is trained for at first."""
  return (pairs + 1) // 2


def is_hopeful(mean: Values, error: Values, worth: Values) -> Any:
  """Return whether a gain is not unlikely, so that more pairs are worth it.

  A candidate that gains `worth` is given up with a probability of 0.2 at a
  look. Arguments and the result have any shapes that broadcast.

  Args:
    mean: Of the differences so far.
    error: Its standard error.
    worth: The least gain that is looked for.
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

  Simulated with the same random numbers at every call, to 0.01. It is less
  where other candidates of a race are wilder, see `race.after_round`.

  Args:
    effect: Mean difference of every round, a fraction.
    spread: Standard deviation of the difference of a pair, a fraction, > 0.
    pairs: Of a round, >= 2.
    alpha: Level of the candidate, in (0, 1).
    rounds: At most, >= 1.
    worth: A candidate is given up where this gain is unlikely, after half of
      its pairs and after each round; None: never.
  """
  # All below in units of the spread.
  whole, errors, halves = _drawn(pairs, rounds)
  gain, least = effect / spread, None if worth is None else worth / spread
  e_value, total = np.ones(_SIMULATED), np.zeros(_SIMULATED)
  done, races = np.zeros(_SIMULATED, bool), np.ones(_SIMULATED, bool)
  half, found = first_half(pairs), []
  for i in range(rounds):
    seen = i * pairs
    for more, mean in ((half, halves[i]), (pairs, whole[i])):
      if more == pairs:
        # An e-value near 0 has no chance, and would make the target infinite.
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
  """Return the least effect that passes within `rounds` with power `wanted`.

  It is printed before a round is paid for. Arguments are those of `power`; the
  result is a fraction.
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


def pooled_spread(
    groups: Sequence[Sequence[float]],
) -> float | None:
  """Return the standard deviation of differences about their group's mean.

  Args:
    groups: Differences of one candidate in one round each. Groups of one pair
      say nothing.

  Returns:
    Pooled over groups; None if no group has 2 pairs.
  """
  squares, degrees = 0.0, 0
  for group in groups:
    squares += float(np.var(group)) * len(group) if len(group) else 0.0
    degrees += max(0, len(group) - 1)
  return math.sqrt(squares / degrees) if degrees else None
