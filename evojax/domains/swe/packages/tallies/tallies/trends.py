"""Trends in numbers that follow each other."""


def moving(values, width=3):
  """Return the averages of so many numbers in a row."""
  found = []
  for start in range(len(values) - width + 1):
    found.append(sum(values[start : start + width]) / width)
  return found


def changes(values, gap=1):
  """Return by how much each number differs from one before."""
  return [values[i] - values[i - gap] for i in range(gap, len(values))]


def running(values):
  """Return the sums of all numbers so far."""
  sums = []
  total = 0
  for value in values:
    total += value
    sums.append(total)
  return sums


def smooth(values, share=0.5):
  """Return averages in which older numbers count less and less."""
  found = []
  for value in values:
    before = found[-1] if found else value
    found.append(share * value + (1 - share) * before)
  return found


def slope(values):
  """Return by how much a straight line through the numbers rises a step."""
  count = len(values)
  middle = (count - 1) / 2
  centre = sum(values) / count
  above = sum((i - middle) * (v - centre) for i, v in enumerate(values))
  below = sum((i - middle) ** 2 for i in range(count))
  return above / below if below else 0.0


def longest_rise(values):
  """Return how many numbers in a row are larger than the one before."""
  best = run = 0
  for i in range(1, len(values)):
    run = run + 1 if values[i] > values[i - 1] else 0
    best = max(best, run)
  return best


def peaks(values):
  """Return the places of numbers larger than both neighbours."""
  return [
      i
      for i in range(1, len(values) - 1)
      if values[i - 1] < values[i] > values[i + 1]
  ]
