"""Scores of P problems with k sampled completions each."""

from jaxtyping import Bool, Float
import numpy as np


def of_problems(
    outcomes: Bool[np.ndarray, 'P n'], graded: Bool[np.ndarray, 'P n']
) -> Float[np.ndarray, 'P']:
  """Return the solved share of each problem's graded completions.

  Args:
    outcomes: bool [P, n].
    graded: bool [P, n], with at least one True for each problem.

  Returns:
    float64 [P], 0..1.
  """
  return (outcomes & graded).sum(axis=1) / graded.sum(axis=1)


def pass_at_k(
    outcomes: Bool[np.ndarray, 'P n'],
    k: int,
    graded: Bool[np.ndarray, 'P n'] | None = None,
) -> float:
  """Estimate the probability that at least one of k completions is solved.

  With n samples of which c_p are right, the unbiased estimate is
  mean_p [1 - C(n - c_p, k) / C(n, k)] (Chen et al. 2021, arXiv:2107.03374,
  eq. 1): the share of the k-subsets of the samples that hold a right one.

  Args:
    outcomes: bool [P, n].
    k: 1..n; pass@1 is Avg@n.
    graded: bool [P, n], with at least one True for each problem; n in the
      estimate is then the number of these. A problem with fewer than k graded
      completions counts with all it has, which gives a lower bound. None: all
      are graded.

  Returns:
    0..1.

  Raises:
    ValueError: If k is outside 1..n, or the array is not bool [P, n].
  """
  if outcomes.ndim != 2 or outcomes.dtype != bool or not outcomes.size:
    raise ValueError(
        f'outcomes of shape {outcomes.shape}, dtype {outcomes.dtype}; need bool'
        ' [P, k] with at least one problem and one sample'
    )
  n = outcomes.shape[1]
  if not 1 <= k <= n:
    raise ValueError(
        f'pass@{k} cannot be estimated from {n} samples per problem; raise'
        ' eval.samples'
    )
  if graded is not None and not graded.all():
    # Problems differ in the number of graded completions, so each is one array.
    there = [row[g][None] for row, g in zip(outcomes, graded, strict=True)]
    each = [pass_at_k(row, min(k, row.size)) for row in there]
    return float(np.mean(each))
  # C(n - c, k) / C(n, k) = prod_{i = n - c + 1 .. n} (1 - k / i), for c = 0..n,
  # as factorials overflow from n ~ 170. Past i = k the product stays 0.
  none_right = np.cumprod(np.r_[1, 1 - k / np.arange(n, 0, -1)])
  return float(1 - none_right[outcomes.sum(axis=1)].mean())
