"""Tests that use only the order of values.

SciPy's `stats` is imported in the functions, because the import takes a second
and few runs need it.
"""

from jaxtyping import Float, Int
import numpy as np

_ORDERS = 9_999


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


def agreement_within(
    x: Float[np.ndarray, 'N'],
    y: Float[np.ndarray, 'N'],
    groups: Int[np.ndarray, 'N'],
) -> tuple[float, float]:
  """Return the rank correlation within groups, and its permutation p.

  Values are ranked and centred within their group, and only orders within the
  groups are tried. Therefore two series do not agree merely because both differ
  from group to group, as all do that drift. With one group the result is that
  of `agreement`; with more, 9,999 random orders are tried under a fixed seed.

  Args:
    x: Values.
    y: Values to compare with.
    groups: The group of each value; the values of a group are adjacent.

  Returns:
    (correlation, p), two-sided; (0, 1) where x or y is constant in each group.
  """
  _, starts = np.unique(groups, return_index=True)
  starts = np.sort(starts)
  if len(starts) < 2:
    return agreement(x, y)
  x, y = (
      np.concatenate([*map(_centred, np.split(values, starts[1:]))])
      for values in (x, y)
  )
  norm = np.sqrt((x @ x) * (y @ y))
  if not norm:
    return 0.0, 1.0
  rng = np.random.default_rng(0)
  orders = np.concatenate(
      [
          rng.permuted(np.tile(part, (_ORDERS, 1)), axis=1)
          for part in np.split(x, starts[1:])
      ],
      axis=1,
  )
  found = float(x @ y / norm)
  # Orders that agree as well as the given one may differ from it by rounding.
  as_good = np.abs(orders @ y / norm) >= abs(found) - 1e-9
  return found, float((1 + as_good.sum()) / (1 + _ORDERS))


def _centred(values: Float[np.ndarray, 'N']) -> Float[np.ndarray, 'N']:
  """Return the ranks of values minus their mean."""
  from scipy import stats

  return stats.rankdata(values) - (len(values) + 1) / 2


def p_zero(values: Float[np.ndarray, 'N']) -> float:
  """Return the two-sided p of a distribution around 0 (Wilcoxon 1945).

  It is exact for N <= 50 without ties; 1 if all values are 0.
  """
  if not values.any():
    return 1.0
  from scipy import stats

  return float(stats.wilcoxon(values).pvalue)
