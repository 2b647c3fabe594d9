"""Spans of days: pairs of a first and a last day number, both included."""


def length(span):
  """Return the days of a span."""
  first, last = span
  return last - first + 1


def overlap(one, other):
  """Return how many days two spans share."""
  first = max(one[0], other[0])
  last = min(one[1], other[1])
  return max(0, last - first + 1)


def merge(spans):
  """Return spans that neither overlap nor touch, in order."""
  merged = []
  for first, last in sorted(spans):
    if merged and first <= merged[-1][1] + 1:
      merged[-1] = merged[-1][0], max(merged[-1][1], last)
    else:
      merged.append((first, last))
  return merged


def gaps(spans, whole):
  """Return the parts of a whole span that none of the others cover."""
  free = []
  start = whole[0]
  for first, last in merge(spans):
    if first > start:
      free.append((start, min(first - 1, whole[1])))
    start = max(start, last + 1)
  if start <= whole[1]:
    free.append((start, whole[1]))
  return free
