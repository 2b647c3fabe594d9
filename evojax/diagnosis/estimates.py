"""Statistics of the checks: intervals over groups, trends, change points."""

from collections.abc import Callable, Sequence
import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import optimize
from scipy import special

Reals = Sequence[float | int] | np.ndarray | pd.Series
_PERMUTATIONS = 999
# Number of values that are permuted at a time, unless one series is longer.
_BLOCK = 1 << 16
_STRETCH = 4  # Fewest values of a stretch.
_MEDIAN_SQUARE = 0.455  # Median of the square of a standard Normal variable.


@dataclasses.dataclass(frozen=True)
class Interval:
  """A number with its 95 % interval."""

  value: float
  low: float
  high: float


def student(values: Reals) -> Interval:
  """Return the mean of independent values with Student's t interval.

  The interval of one value, or none, is -inf to inf.
  """
  x = np.asarray(values, np.float64)
  x = x[np.isfinite(x)]
  n = len(x)
  if n < 2:
    return Interval(float(x[0]) if n else math.nan, -math.inf, math.inf)
  middle = float(x.mean())
  half = float(x.std(ddof=1)) / math.sqrt(n) * special.stdtrit(n - 1, 0.975)
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


@dataclasses.dataclass(frozen=True)
class Trend:
  """A straight line through a series."""

  start: float
  rise: float  # Difference between its last and its first point.
  low: float  # 95 % interval of the rise.
  high: float
  p: float  # Two-sided p-value of no rise.


def trend(y: Reals) -> Trend:
  """Fit a line; autocorrelation of the values widens its interval.

  With r, the lag-1 autocorrelation of the residuals (at least 0), n values
  count as n (1 - r) / (1 + r) independent ones (Bartlett's correction).

  Raises:
    ValueError: For fewer than four values.
  """
  y = np.asarray(y, np.float64)
  n = len(y)
  if n < 4:
    raise ValueError(f'{n} values have no trend: at least 4')
  x = np.arange(n) - (n - 1) / 2
  slope = float(x @ y / (x @ x))
  residual = y - y.mean() - slope * x
  square = float(residual @ residual)
  r = float(residual[1:] @ residual[:-1]) / square if square > 0 else 0.0
  r = min(max(r, 0.0), 0.95)
  effective = max(n * (1 - r) / (1 + r), 3.0)
  error = math.sqrt(square / (n - 2) / float(x @ x) * n / effective)
  rise, half = slope * (n - 1), 0.0
  p = 0.0 if slope else 1.0
  if error > 0:
    degrees = max(effective - 2, 1.0)
    half = float(special.stdtrit(degrees, 0.975)) * error * (n - 1)
    p = float(2 * special.stdtr(degrees, -abs(slope) / error))
  return Trend(
      float(y.mean() + slope * x[0]), rise, rise - half, rise + half, p
  )


@dataclasses.dataclass(frozen=True)
class Change:
  """The place where the mean of a series changes most."""

  index: int  # The first value after it.
  p: float  # Permutation p-value of no change anywhere.
  before: float
  after: float


def change_point(y: Reals, least: int = 3) -> Change:
  """Find the place where the mean changes most, and its p-value.

  The statistic is the largest |difference of means| sqrt(k (n - k) / n) over
  all places k (cumulative sums; Page 1954). Its p-value is the share of random
  orders of the same values with at least as large a statistic.

  Args:
    y: The series, at least 2 * least values.
    least: The fewest values on either side.

  Raises:
    ValueError: If it is too short.
  """
  y = np.asarray(y, np.float64)
  n = len(y)
  if n < 2 * least:
    raise ValueError(f'{n} values have no change point: {2 * least} needed')
  k = np.arange(least, n - least + 1)
  scale = np.sqrt(n / (k * (n - k)))
  centred = y - y.mean()

  def statistic(series: np.ndarray) -> np.ndarray:
    return np.abs(np.cumsum(series, -1)[..., k - 1]) * scale

  found = statistic(centred)
  best = int(np.argmax(found))
  rng = np.random.default_rng(0)
  rows, beyond = max(1, _BLOCK // n), 0
  # The generator orders one row after the other, so that the size of a block
  # makes no difference. All rows of 30,000 steps would take 800 MB.
  for first in range(0, _PERMUTATIONS, rows):
    block = np.tile(centred, (min(rows, _PERMUTATIONS - first), 1))
    reached = statistic(rng.permuted(block, axis=1)).max(1)
    beyond += int((reached >= found[best] - 1e-12).sum())
  i = int(k[best])
  p = (1 + beyond) / (1 + _PERMUTATIONS)
  return Change(i, p, float(y[:i].mean()), float(y[i:].mean()))


def fall_from_peak(y: Reals) -> Change | None:
  """Find a fall from the highest stretch of a series, after a rise to it.

  A stretch has an eighth of the values, at least 4. The p-value is the share of
  series without a fall whose highest stretch is as far above their end: these
  are the nondecreasing series that fits best, with independent Normal noise. A
  fall does not add to this noise, whose variance is taken from the median
  difference of neighbours.

  Args:
    y: The series.

  Returns:
    The fall, with the means of the highest stretch and of the end; None if the
    series is too short, or rose by less than half as much before.
  """
  y = np.asarray(y, np.float64)
  n, width = len(y), max(len(y) // 8, _STRETCH)
  if n < 2 * width:
    return None
  means = _moving_mean(y, width)
  peak = int(np.argmax(means))
  before, after = float(means[peak]), float(means[-1])
  fall = before - after
  if fall <= 0 or before - float(means[: peak + 1].min()) < fall / 2:
    return None
  spread = math.sqrt(float(np.median(np.diff(y) ** 2)) / (2 * _MEDIAN_SQUARE))
  fit = optimize.isotonic_regression(y).x
  rng = np.random.default_rng(0)
  rows, beyond = max(1, _BLOCK // n), 0
  for first in range(0, _PERMUTATIONS, rows):
    shape = min(rows, _PERMUTATIONS - first), n
    made = _moving_mean(fit + rng.normal(0, spread, shape), width)
    beyond += int((made.max(1) - made[:, -1] >= fall).sum())
  # Where the sum of what exceeds the middle of both means is highest.
  excess = np.cumsum(y[peak:] - (before + after) / 2)
  index = min(peak + int(np.argmax(excess)) + 1, n - 1)
  return Change(index, (1 + beyond) / (1 + _PERMUTATIONS), before, after)


def _moving_mean(y: np.ndarray, width: int) -> np.ndarray:
  """Return the means of `width` neighbouring values along the last axis."""
  total = np.cumsum(y, -1)
  total = np.concatenate([np.zeros((*y.shape[:-1], 1)), total], -1)
  return (total[..., width:] - total[..., :-width]) / width


def step_up(y: Reals, at: int) -> Interval:
  """Return by how much the mean from an index on exceeds that before it.

  Both means have their own 95 % interval, so that this one is wide.
  """
  before, after = student(y[:at]), student(y[at:])
  return Interval(
      after.value - before.value,
      after.low - before.high,
      after.high - before.low,
  )


def standstill(y: Reals, least: int = 4) -> int:
  """Return the index at which a series that first rises stops rising.

  The series is fitted by a line up to an index and the line's end value after
  it; the index has the least squared error. 0 if no such line rises.
  """
  y = np.asarray(y, np.float64)
  n = len(y)
  t = np.arange(n, dtype=np.float64)
  best, at = float(np.square(y - y.mean()).sum()), 0
  for k in range(least, n - least + 1):
    hinge = np.minimum(t, k)
    hinge -= hinge.mean()
    slope = float(hinge @ y / (hinge @ hinge))
    error = float(np.square(y - y.mean() - slope * hinge).sum())
    if slope > 0 and error < best * (1 - 1e-9):
      best, at = error, k
  return at


def bootstrap(
    groups: int, statistic: Callable[[np.ndarray], float], draws: int = 400
) -> Interval:
  """Return a statistic of groups with its percentile interval.

  Args:
    groups: Number of groups.
    statistic: Returns its value for group indices drawn with replacement.
    draws: Number of bootstrap samples.
  """
  rng = np.random.default_rng(0)
  found = [statistic(rng.integers(0, groups, groups)) for _ in range(draws)]
  low, high = np.nanquantile(found, (0.025, 0.975))
  return Interval(float(statistic(np.arange(groups))), float(low), float(high))
