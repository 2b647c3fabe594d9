"""Sets of whole numbers, written as runs: '1-4,7'."""


def compress(numbers):
  """Return the runs of some numbers, as (first, last) pairs in order."""
  runs = []
  for number in sorted(set(numbers)):
    if runs and number == runs[-1][1] + 1:
      runs[-1] = (runs[-1][0], number)
    else:
      runs.append((number, number))
  return runs


def expand(runs):
  """Return all numbers of runs, in order, each once."""
  numbers = set()
  for first, last in runs:
    numbers.update(range(first, last + 1))
  return sorted(numbers)


def write(numbers, sign='-'):
  """Return numbers as text."""
  parts = []
  for first, last in compress(numbers):
    if first == last:
      parts.append(str(first))
    else:
      parts.append(f'{first}{sign}{last}')
  return ','.join(parts)


def read(text, sign='-'):
  """Return the numbers of a text that `write` wrote.

  Raises:
    ValueError: If a run ends before it begins.
  """
  runs = []
  for part in text.split(','):
    if not part:
      continue
    first, _, last = part.partition(sign)
    last = last or first
    if int(last) < int(first):
      raise ValueError(f'{part!r} runs backwards')
    runs.append((int(first), int(last)))
  return expand(runs)
