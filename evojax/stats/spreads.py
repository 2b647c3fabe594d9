"""Spreads: within groups, and of the difference between two of them."""

from collections.abc import Sequence
import math

import numpy as np

# Values of each group; a group may be a list or an array.
Groups = Sequence[Sequence[float] | np.ndarray]


def rms(values: Sequence[float]) -> float:
  """Return the root mean square of values, 0 if there are none."""
  return math.sqrt(math.fsum(x * x for x in values) / max(len(values), 1))


def degrees(groups: Groups) -> int:
  """Return the degrees of freedom of the spread within groups."""
  return sum(max(0, len(group) - 1) for group in groups)


def _variance(groups: Groups) -> float:
  squares = [float(np.var(g)) * len(g) if len(g) else 0.0 for g in groups]
  return sum(squares) / degrees(groups)


def pooled(groups: Groups) -> float | None:
  """Return the standard deviation of values around the mean of their group.

  Args:
    groups: Values of each group. Groups of one value do not contribute.

  Returns:
    The pooled value; None if no group has 2 values.
  """
  return math.sqrt(_variance(groups)) if degrees(groups) else None


def of_difference(
    one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray
) -> float:
  """Return the standard error of the difference between two groups' means.

  Both groups have one variance, pooled, with `degrees([one, other])` degrees of
  freedom (Student's test of two samples).

  Args:
    one: At least one value.
    other: At least one value; one of the groups has two.
  """
  per_value = 1 / len(one) + 1 / len(other)
  return math.sqrt(_variance([one, other]) * per_value)
