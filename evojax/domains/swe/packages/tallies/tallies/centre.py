"""Averages and spreads."""


def mean(values, weights=None):
  """Return the average, by weight if weights are given.

  Raises:
    ValueError: If there are no values.
  """
  if not values:
    raise ValueError('no values')
  if weights is None:
    weights = [1] * len(values)
  total = sum(value * weight for value, weight in zip(values, weights))
  return total / sum(weights)


def median(values):
  """Return the value in the middle, or the average of the two there."""
  ordered = sorted(values)
  middle = len(ordered) // 2
  if len(ordered) % 2 == 1:
    return ordered[middle]
  return (ordered[middle - 1] + ordered[middle]) / 2


def mode(values):
  """Return the most frequent value, the smallest of several."""
  counts = {}
  for value in values:
    counts[value] = counts.get(value, 0) + 1
  return min(counts, key=lambda value: (-counts[value], value))


def trimmed(values, cut=1):
  """Return the average without some of the smallest and the largest."""
  ordered = sorted(values)
  if len(ordered) <= 2 * cut:
    raise ValueError(f'{len(ordered)} values, {2 * cut} of them cut')
  return mean(ordered[cut : len(ordered) - cut])


def variance(values, sample=True):
  """Return the average square of the distance from the mean.

  Args:
    values: Numbers.
    sample: Whether they are a sample; then the divisor is one less.
  """
  centre = mean(values)
  squares = sum((value - centre) ** 2 for value in values)
  divisor = len(values) - 1 if sample else len(values)
  return squares / divisor if divisor else 0.0


def spread(values):
  """Return the distance of the largest value from the smallest."""
  return max(values) - min(values)
