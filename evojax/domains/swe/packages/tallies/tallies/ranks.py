"""Ranks and quantiles."""


def ranks(values, down=False):
  """Return the rank of each value, from 1; equal ones share the better."""
  ordered = sorted(values, reverse=down)
  return [ordered.index(value) + 1 for value in values]


def quantile(values, share):
  """Return the value below which a share of the values lies, 0 to 1.

  Between two values it lies on a straight line.
  """
  ordered = sorted(values)
  place = share * (len(ordered) - 1)
  low = int(place)
  high = min(low + 1, len(ordered) - 1)
  part = place - low
  return ordered[low] + part * (ordered[high] - ordered[low])


def percent_below(values, limit):
  """Return which part of the values is below a limit; equals count half."""
  below = sum(1 for value in values if value < limit)
  equal = sum(1 for value in values if value == limit)
  return 100 * (below + equal / 2) / len(values)


def top(scores, count=3):
  """Return the names with the best scores, the first by name of equals."""
  names = sorted(scores, key=lambda name: (-scores[name], name))
  return names[:count]


def outliers(values, factor=1.5):
  """Return values far outside of the middle half, in their order."""
  low, high = quantile(values, 0.25), quantile(values, 0.75)
  reach = factor * (high - low)
  return [v for v in values if v < low - reach or v > high + reach]


def agree(one, other):
  """Return how many pairs two lists order alike, less the other pairs."""
  score = 0
  for i in range(len(one)):
    for j in range(i + 1, len(one)):
      product = (one[i] - one[j]) * (other[i] - other[j])
      if product > 0:
        score += 1
      elif product < 0:
        score -= 1
  return score
