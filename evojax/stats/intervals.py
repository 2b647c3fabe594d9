"""Means and shares of independent values, with their intervals."""

from collections.abc import Callable, Collection
import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

# Real numbers: a sequence, an array, or a column of pandas.
Reals = Collection[Any]
LEVEL = 0.95  # Default level of an interval.
# Half widths of central intervals at 95 and 90 %, in standard deviations.
Z95, Z90 = 1.96, 1.6449
_RESAMPLES = 400  # Bootstrap samples.


@dataclasses.dataclass(frozen=True)
class Interval:
  """A number with its interval, by default at `LEVEL`."""

  value: float
  low: float
  high: float


def margin(
    standard_error: float, degrees: float | int, level: float = LEVEL
) -> float:
  """Return half of a two-sided interval of Student's t.

  Args:
    standard_error: Standard error of the estimate.
    degrees: Degrees of freedom of this error, > 0.
    level: Level of the interval, in (0, 1). The ends of an interval at 1 - 2 a
      are the bounds of one-sided intervals at 1 - a.
  """
  return float(special.stdtrit(degrees, (1 + level) / 2)) * standard_error


def student(values: Reals) -> Interval:
  """Return the mean of independent values with Student's t interval.

  Values that are not finite are left out. The interval of one value, or none,
  is -inf to inf.
  """
  x = np.asarray(values, np.float64)
  x = x[np.isfinite(x)]
  n = len(x)
  if n < 2:
    return Interval(float(x[0]) if n else math.nan, -math.inf, math.inf)
  middle = float(x.mean())
  half = margin(float(x.std(ddof=1)) / math.sqrt(n), n - 1)
  return Interval(middle, middle - half, middle + half)


def mean(values: Reals) -> Interval:
  """Return the mean of shares as `student` does.

  If all are 0 or all are 1, the rule of three extends the interval by 3 / n.
  """
  found = student(values)
  n = int(np.isfinite(np.asarray(values, np.float64)).sum())
  if found.low == found.high and found.value in (0.0, 1.0):
    low, high = found.value - 3 / n, found.value + 3 / n
    return Interval(found.value, max(low, 0.0), min(high, 1.0))
  return found


def exact(count: int, of: int) -> tuple[float, float]:
  """Return the exact interval of a share (Clopper and Pearson 1934)."""
  tail = (1 - LEVEL) / 2
  low = special.betaincinv(count, of - count + 1, tail) if count else 0.0
  high = 1.0
  if count < of:
    high = special.betaincinv(count + 1, of - count, 1 - tail)
  return float(low), float(high)


def bootstrap(
    groups: int, statistic: Callable[[np.ndarray], float]
) -> Interval:
  """Return a statistic of groups with its 95 % percentile interval.

  Args:
    groups: Number of groups.
    statistic: Returns its value for group indices drawn with replacement.
  """
  rng = np.random.default_rng(0)
  draw = lambda: rng.integers(0, groups, groups)
  found = [statistic(draw()) for _ in range(_RESAMPLES)]
  low, high = np.nanquantile(found, (0.025, 0.975))
  return Interval(float(statistic(np.arange(groups))), float(low), float(high))
