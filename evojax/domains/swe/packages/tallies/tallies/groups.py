"""Groups of values."""

from tallies import centre


def group(rows, key, value):
  """Return {key: values} of rows, which are dictionaries."""
  found = {}
  for row in rows:
    found.setdefault(row[key], []).append(row[value])
  return found


def summary(rows, key, value):
  """Return {key: (count, mean)} of rows; values that are None do not count."""
  result = {}
  for name, values in group(rows, key, value).items():
    values = [v for v in values if v is not None]
    average = centre.mean(values) if values else None
    result[name] = (len(values), average)
  return result


def histogram(values, width, start=0):
  """Return {lower end: count} of classes of one width, in order."""
  counts = {}
  for value in values:
    low = start + (value - start) // width * width
    counts[low] = counts.get(low, 0) + 1
  return dict(sorted(counts.items()))


def shares(counts, digits=1):
  """Return counts in percent of their sum."""
  total = sum(counts.values())
  if total == 0:
    return dict.fromkeys(counts, 0.0)
  return {
      name: round(100 * count / total, digits) for name, count in counts.items()
  }


def bars(counts, width=10, mark='#'):
  """Return a line of marks for each count; the largest one has full width."""
  most = max(counts.values(), default=0)
  lines = []
  for name, count in counts.items():
    size = count * width // most if most else 0
    lines.append(f'{name} {mark * size}'.rstrip())
  return lines


def chunks(values, size):
  """Return the values in lists of a size; the last one may be shorter."""
  return [values[i : i + size] for i in range(0, len(values), size)]
