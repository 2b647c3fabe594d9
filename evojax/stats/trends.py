"""Lines through a series, and the places where its mean changes."""

import dataclasses
import math

import numpy as np
from scipy import special

from evojax.stats import intervals

_PERMUTATIONS = 999
# Number of values that are permuted at a time, unless one series is longer.
_BLOCK = 1 << 16
_STRETCH = 4  # Fewest values of a stretch, and before or after a standstill.
_MEDIAN = 0.6745  # Median size of a standard Normal variable.
_MEDIAN_SQUARE = 0.455  # Median of the square of a standard Normal variable.


@dataclasses.dataclass(frozen=True)
class Trend:
  """A straight line through a series."""

  start: float
  rise: float  # Difference between its last and its first point.
  low: float  # Interval of the rise.
  high: float
  p: float  # Two-sided p-value of no rise.

  @property
  def interval(self) -> intervals.Interval:
    """The rise with its interval."""
    return intervals.Interval(self.rise, self.low, self.high)


def trend(
    y: intervals.Reals,
    *,
    level: float = intervals.LEVEL,
    independent: bool = False,
) -> Trend:
  """Fit a line; autocorrelation of the values widens the interval of its rise.

  With r, the lag-1 autocorrelation of the residuals (at least 0), n values
  count as n (1 - r) / (1 + r) independent ones (Bartlett's correction).

  Args:
    y: The series.
    level: Level of the interval, see `intervals.margin`.
    independent: Whether the residuals count as independent; then three values
      are enough.

  Raises:
    ValueError: If there are too few values.
  """
  y = np.asarray(y, np.float64)
  n, least = len(y), 3 if independent else 4
  if n < least:
    raise ValueError(f'{n} values have no trend: at least {least}')
  x = np.arange(n) - (n - 1) / 2
  slope = float(x @ y / (x @ x))
  residual = y - y.mean() - slope * x
  squares = float(residual @ residual)
  variance, degrees = squares / (n - 2) / float(x @ x), n - 2
  if not independent:
    r = float(residual[1:] @ residual[:-1]) / squares if squares > 0 else 0.0
    r = min(max(r, 0.0), 0.95)
    effective = max(n * (1 - r) / (1 + r), 3.0)
    variance = variance * n / effective
    degrees = max(effective - 2, 1.0)
  error = math.sqrt(variance)
  rise, half = slope * (n - 1), 0.0
  p = 0.0 if slope else 1.0
  if error > 0:
    half = intervals.margin(error, degrees, level) * (n - 1)
    p = float(2 * special.stdtr(degrees, -abs(slope) / error))
  return Trend(
      float(y.mean() + slope * x[0]), rise, rise - half, rise + half, p
  )


@dataclasses.dataclass(frozen=True)
class Change:
  """The place where the mean of a series changes most."""

  index: int  # Index of the first value after it.
  p: float  # Permutation p-value of no change anywhere.
  before: float
  after: float


def change_point(y: intervals.Reals, least: int = 3) -> Change:
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


def fall_from_peak(y: intervals.Reals) -> Change | None:
  """Find a fall from the highest stretch of a series, after a rise to it.

  A stretch has an eighth of the values, at least 4. The p-value is the share of
  simulated series without a fall whose highest stretch is as far above their
  last one. A simulated series is the best-fitting nondecreasing series plus
  independent Normal noise. The variance of the noise is estimated from squared
  differences of neighbours, so that a fall hardly affects it: from their median
  or, if that is larger, from their mean without the two extreme differences (it
  is for a reward that is rarely paid, with few values far from the others).

  Args:
    y: The series.

  Returns:
    The fall, with the means of the highest and the last stretch; None if there
    is no fall, the series is too short, or it rose by less than half as much
    before.
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
  # Its import takes a tenth of a second, and few runs fall from a peak.
  from scipy import optimize

  steps = np.sort(np.diff(y))
  usual = float(np.median(steps**2)) / _MEDIAN_SQUARE
  spread = math.sqrt(max(usual, float(np.mean(steps[1:-1] ** 2))) / 2)
  fit = optimize.isotonic_regression(y).x
  rng = np.random.default_rng(0)
  rows, beyond = max(1, _BLOCK // n), 0
  for first in range(0, _PERMUTATIONS, rows):
    shape = min(rows, _PERMUTATIONS - first), n
    made = _moving_mean(fit + rng.normal(0, spread, shape), width)
    beyond += int((made.max(1) - made[:, -1] >= fall).sum())
  # The fall is where the cumulative sum of the values, minus the middle of both
  # means, is highest.
  excess = np.cumsum(y[peak:] - (before + after) / 2)
  index = min(peak + int(np.argmax(excess)) + 1, n - 1)
  return Change(index, (1 + beyond) / (1 + _PERMUTATIONS), before, after)


def noise(y: intervals.Reals) -> float:
  """Return the standard deviation of the noise of one value.

  It is estimated from the median of absolute second differences, which neither
  a slope nor a single jump increases.
  """
  second = float(np.median(np.abs(np.diff(np.asarray(y, np.float64), 2))))
  return second / _MEDIAN / math.sqrt(6)


def _moving_mean(y: np.ndarray, width: int) -> np.ndarray:
  """Return the means of `width` neighbouring values along the last axis."""
  total = np.cumsum(y, -1)
  total = np.concatenate([np.zeros((*y.shape[:-1], 1)), total], -1)
  return (total[..., width:] - total[..., :-width]) / width


def step_up(y: intervals.Reals, at: int) -> intervals.Interval:
  """Return by how much the mean from an index on exceeds that before it.

  The interval combines the 95 % intervals of both means, so that it is wide.
  """
  before, after = intervals.student(y[:at]), intervals.student(y[at:])
  return intervals.Interval(
      after.value - before.value,
      after.low - before.high,
      after.high - before.low,
  )


def standstill(y: intervals.Reals) -> int:
  """Return the index at which a series that first rises stops rising.

  The series is fitted by a line up to an index and the line's end value after
  it; the index has the least squared error. 0 if no such line rises.
  """
  y = np.asarray(y, np.float64)
  n = len(y)
  t = np.arange(n, dtype=np.float64)
  best, at = float(np.square(y - y.mean()).sum()), 0
  for k in range(_STRETCH, n - _STRETCH + 1):
    hinge = np.minimum(t, k)
    hinge -= hinge.mean()
    slope = float(hinge @ y / (hinge @ hinge))
    error = float(np.square(y - y.mean() - slope * hinge).sum())
    if slope > 0 and error < best * (1 - 1e-9):
      best, at = error, k
  return at


def departure(y: intervals.Reals) -> int:
  """Return the index from which a series that is flat at first rises.

  It is found by `standstill` on the reversed series with its sign changed.
  """
  return len(y) - standstill(-np.asarray(y, np.float64)[::-1])
