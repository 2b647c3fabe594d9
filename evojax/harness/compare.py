"""Comparison of a function's answers: exact, or up to rounding."""

from typing import Any

import numpy as np

# Sums in a different order differ by rounding.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


def bits(answer: dict[str, np.ndarray]) -> Any:
  """Return a value that is equal for answers that are equal bit for bit."""
  return [
      (name, array.dtype.str, array.shape, array.tobytes())
      for name, array in answer.items()
  ]


def close(a: np.ndarray, b: np.ndarray) -> bool:
  """Return whether arrays are equal up to rounding; flags must be equal."""
  if a.shape != b.shape:
    return False
  if np.array_equal(a, b):  # The common case, and fast.
    return True
  if a.dtype.kind == 'b' or b.dtype.kind == 'b':
    return False
  a, b = a.astype(np.float64), b.astype(np.float64)
  # The scale is per group, so that a huge number in one group does not hide a
  # difference in another.
  size = np.where(np.isfinite(a), np.abs(a), 0.0)
  scale = size.max(tuple(range(1, a.ndim)), keepdims=True, initial=1.0)
  with np.errstate(all='ignore'):
    return np.allclose(
        a, b, rtol=_RELATIVE, atol=_ABSOLUTE * scale, equal_nan=True
    )


def correlation(a: np.ndarray, b: np.ndarray) -> float:
  """Return the correlation of two arrays over their finite entries.

  It is 1 if `a` is constant, since there is no order to keep, and 0 if only
  `b` is.
  """
  a, b = (x.astype(np.float64).ravel() for x in (a, b))
  known = np.isfinite(a) & np.isfinite(b)
  a, b = a[known], b[known]
  if a.size < 2 or np.ptp(a) <= _ABSOLUTE:
    return 1.0
  if np.ptp(b) <= _ABSOLUTE:
    return 0.0
  a, b = (x / np.abs(x).max() for x in (a, b))  # Squares stay finite.
  a, b = a - a.mean(), b - b.mean()
  return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> str:
  """Return the first two values that differ, as text."""
  found = (values(one, b.get(name)) for name, one in a.items())
  return next(filter(None, found), f'{listed(a)} and {listed(b)}')


def values(one: np.ndarray, other: np.ndarray | None) -> str:
  """Return the first two values of arrays that differ; '' if none do."""
  if other is None or other.shape != one.shape:
    return f'shape {one.shape} and {None if other is None else other.shape}'
  same = (one == other) | ((one != one) & (other != other))
  differs = np.argwhere(~same).tolist()
  if not differs:
    return ''
  at = tuple(differs[0])
  short, long = (
      [f'{array[at]:{digits}}' for array in (one, other)]
      for digits in ('.6g', '.17g')
  )
  place = f' at {list(at)}' if at else ''
  return ' and '.join(long if short[0] == short[1] else short) + place


def listed(answer: dict[str, np.ndarray]) -> str:
  """Return the names of an answer, for a sentence."""
  return ', '.join(answer) or 'nothing'
