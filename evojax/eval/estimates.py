"""Uncertainty of scores: bootstrap over problems, and over seeds and problems.

Completions of one problem are not independent, so a problem is resampled with
all its samples (cluster bootstrap): all functions here start from the mean of
each problem. Resampling problems leaves out the spread between training runs,
which is often larger than the spread over problems; `over_seeds` includes it.

Intervals are expanded percentile intervals (Hesterberg 2015, arXiv:1411.5279).
Plain percentiles are too narrow: the spread of resampled means of n items
understates their variance by (n - 1) / n, and they use normal quantiles where t
quantiles are due; with 5 seeds, 95 % would cover about 85 %. So percentiles are
read at tail = Phi(-t_{(1 + level) / 2, df} * SE / spread), with SE the unbiased
standard error and df its degrees of freedom: for a symmetric distribution the
interval is mean +- t SE, for a skewed one it keeps the skew. With two or three
seeds, no resample reaches so far, since none lies beyond the best or the worst
seed; the interval is then mean +- t SE.
"""

from collections.abc import Callable
import math

from jaxtyping import Float
import numpy as np
from scipy import special

from evojax.ledger import records
from evojax.stats import intervals

SHARES = 0.0, 1.0  # The range of a problem's solved share.
GAINS = -1.0, 1.0  # The range of the gain on a problem.
RESAMPLES = 10_000
_FEWEST = 5  # Resamples beyond a percentile that can be read.
# Draws held at once: large problem sets are resampled in pieces that fit into
# the processor's cache.
_DRAWS = 1 << 18


def _check(scores: np.ndarray, axis: int, what: str, remedy: str) -> None:
  if scores.shape[axis] < 2:
    raise ValueError(
        f'{scores.shape[axis]} {what} have no spread to estimate an interval'
        f' from; need at least 2: {remedy}'
    )
  if not np.isfinite(scores).all():
    raise ValueError('scores hold NaN or infinity')


def standard_error(scores: Float[np.ndarray, 'P']) -> float:
  """Return the standard error of the mean over problems.

  SE^2 = sum_p (m_p - mean)^2 / (P (P - 1)). With m_p the mean of a problem's
  samples this is the clustered standard error of Avg@k (Miller 2024,
  arXiv:2411.00640), for problems drawn at random.

  Args:
    scores: [P], P >= 2, the mean of each problem.

  Raises:
    ValueError: If there are fewer than 2 problems.
  """
  _check(scores, 0, 'problems', 'raise eval.problems')
  return float(scores.std(ddof=1) / math.sqrt(len(scores)))


def _resample(draw: Callable[[int], np.ndarray], size: int) -> np.ndarray:
  """Return RESAMPLES values of `draw(count)`, each from `size` random draws."""
  piece = max(1, _DRAWS // size)
  counts = [piece] * (RESAMPLES // piece) + [RESAMPLES % piece]
  return np.concatenate([draw(count) for count in counts if count])


def _estimate(
    value: float, error: float, degrees: float, resamples: np.ndarray
) -> records.Estimate:
  """Return the expanded percentile interval; see the module docstring."""
  spread = resamples.std()
  half = intervals.margin(error, degrees)
  # Without a spread, both ends are the median, the one value of all resamples.
  tail = special.ndtr(-half / spread) if spread else 0.5
  if tail * len(resamples) < _FEWEST:
    low, high = value - half, value + half
  else:
    low, high = np.quantile(resamples, (tail, 1 - tail))
  return records.Estimate(float(value), float(error), float(low), float(high))


def over_problems(
    scores: Float[np.ndarray, 'P'],
    *,
    within: tuple[float, float] | None = None,
    rng: np.random.Generator | None = None,
) -> records.Estimate:
  """Estimate the mean over problems by the cluster bootstrap.

  Args:
    scores: [P], P >= 2, the mean of each problem: `outcomes.mean(1)`.
    within: The least and the largest value that a problem can have, for the
      case that all P values are equal, such as 0: up to 1 - 0.05^(1 / P) of all
      problems, about 3 / P, may still have another value, at the extreme one of
      these two. Without it, the interval of equal values has no width, and
      means nothing.
    rng: Draws the resamples; None gives equal resamples for equal scores.

  Returns:
    The mean, `standard_error` and the expanded percentile interval.

  Raises:
    ValueError: If there are fewer than 2 problems.
  """
  error = standard_error(scores)
  count = len(scores)
  if within and np.ptp(scores) == 0:
    value, others = float(scores[0]), 1 - 0.05 ** (1 / count)
    low, high = (value + others * (end - value) for end in within)
    return records.Estimate(value, 0.0, low, high)
  rng = rng or np.random.default_rng(0)

  def draw(resamples):
    chosen = rng.integers(count, size=(resamples, count))
    return scores.take(chosen).mean(axis=1)

  resamples = _resample(draw, count)
  return _estimate(scores.mean(), error, count - 1.0, resamples)


def paired_gain(
    before: Float[np.ndarray, 'P'],
    after: Float[np.ndarray, 'P'],
    *,
    rng: np.random.Generator | None = None,
) -> records.Estimate:
  """Estimate the difference of two Avg@k on the same problems.

  The bootstrap resamples problems, each with its difference
  d_p = mean_k after_pk - mean_j before_pj, so that the difficulty of a problem
  for both policies cancels.

  Args:
    before: [P], the mean of each problem.
    after: [P]; entry p belongs to the same problem as entry p of `before`.
    rng: Draws the resamples; None gives equal resamples for equal scores.

  Returns:
    The mean difference with its standard error and interval.

  Raises:
    ValueError: If the problems do not correspond or are fewer than 2.
  """
  if len(before) != len(after):
    raise ValueError(
        f'{len(before)} problems before and {len(after)} after cannot be paired'
    )
  return over_problems(after - before, within=GAINS, rng=rng)


def over_seeds(
    scores: Float[np.ndarray, 'S P'],
    *,
    same_problems: bool,
    rng: np.random.Generator | None = None,
) -> records.Estimate:
  """Estimate the mean over training seeds and problems hierarchically.

  Seeds are drawn first, then problems. If every seed was scored on problems of
  its own, each drawn seed draws from its own (nested). If all were scored on
  the same ones, one draw of problems serves all drawn seeds (crossed; the
  pigeonhole bootstrap, Owen 2007, arXiv:0712.1111): separate draws would treat
  the difficulty of the shared problems as S independent samples.

  The standard error comes from the analysis of variance, because the spread of
  the resamples counts the noise of problems twice: the seed means contain it
  already. Nested: SE^2 = var_s / S, with S - 1 degrees of freedom, where var_s
  is the variance of the S seed means. Crossed: SE^2 = var_s / S + var_p / P
  - var_sp / (S P), where var_p is the variance of the P problem means and
  var_sp the mean square of the residuals of both; degrees of freedom by
  Satterthwaite (1946). Since a few seeds may agree by chance, SE^2 is never
  below the part that the problems contribute (nested), or any single term
  (crossed).

  Args:
    scores: [S, P], S, P >= 2: the mean of each problem under each seed, or its
      gain.
    same_problems: Whether column p is the same problem under every seed.
    rng: Draws the resamples; None gives equal resamples for equal scores.

  Returns:
    The mean with its standard error and interval.

  Raises:
    ValueError: If there are fewer than 2 seeds or problems.
  """
  _check(scores, 0, 'seeds', 'train more seeds')
  _check(scores, 1, 'problems', 'raise eval.problems')
  seeds, problems = scores.shape
  mean = scores.mean()
  of_seed, of_problem = scores.mean(axis=1), scores.mean(axis=0)
  by_seed = of_seed.var(ddof=1) / seeds
  cells = seeds * problems
  rng = rng or np.random.default_rng(0)

  if same_problems:
    rest = scores - of_seed[:, None] - of_problem + mean
    rest_degrees = (seeds - 1) * (problems - 1)
    by_both = (rest**2).sum() / rest_degrees / cells
    by_problem = of_problem.var(ddof=1) / problems
    total = by_seed + by_problem - by_both
    square = max(by_seed, by_problem, by_both, total)
    noise = (
        by_seed**2 / (seeds - 1)
        + by_problem**2 / (problems - 1)
        + by_both**2 / rest_degrees
    )
    degrees = square**2 / noise if noise else seeds - 1.0

    def draw(resamples):
      weights = rng.multinomial(seeds, [1 / seeds] * seeds, size=resamples)
      of_drawn = weights @ scores / seeds  # [R, P]
      chosen = rng.integers(problems, size=(resamples, problems))
      return np.take_along_axis(of_drawn, chosen, axis=1).mean(axis=1)

  else:
    noise = scores.var(axis=1, ddof=1).mean() / cells
    square, degrees = max(by_seed, noise), seeds - 1.0

    def draw(resamples):
      drawn = rng.integers(seeds, size=(resamples, seeds, 1))
      chosen = rng.integers(problems, size=(resamples, seeds, problems))
      # Positions in the flat array: one `take` is faster than two indices.
      return scores.take(drawn * problems + chosen).mean(axis=(1, 2))

  resamples = _resample(draw, cells)
  return _estimate(mean, math.sqrt(square), degrees, resamples)
