"""Tests that use only the order of values.

SciPy's `stats` is imported in the functions, because the import takes a second
and few runs need it.
"""

from collections.abc import Sequence

from jaxtyping import Float
import numpy as np


def agreement(
    x: Float[np.ndarray, 'N'], y: Float[np.ndarray, 'N']
) -> tuple[float, float]:
  """Return Spearman's rank correlation and its two-sided permutation p.

  All orders are tried for N <= 7, else 9,999 random ones under a fixed seed, so
  that a decision is the same in every process. Ties need no correction.

  Returns:
    (correlation, p); (0, 1) where x or y is constant.
  """
  if not (np.ptp(x) and np.ptp(y)):
    return 0.0, 1.0
  from scipy import stats

  ranks = stats.zscore(stats.rankdata(y)) / len(y)
  found = stats.permutation_test(
      (stats.zscore(stats.rankdata(x)),),
      lambda x, axis: (x * ranks).sum(axis=axis),
      permutation_type='pairings',
      vectorized=True,
      rng=np.random.default_rng(0),
  )
  return float(found.statistic), min(1.0, float(found.pvalue))


def p_equal(one: Sequence[float], other: Sequence[float]) -> float:
  """Return the two-sided p of equal distributions (Mann and Whitney 1947)."""
  from scipy import stats

  return float(stats.mannwhitneyu(one, other).pvalue)


def p_zero(values: Float[np.ndarray, 'N']) -> float:
  """Return the two-sided p of a distribution around 0 (Wilcoxon 1945).

  It is exact for N <= 50 without ties; 1 if all values are 0.
  """
  if not values.any():
    return 1.0
  from scipy import stats

  return float(stats.wilcoxon(values).pvalue)
