"""How alike two words are."""


def distance(one, other):
  """Return how many letters must be changed, added or left out."""
  row = list(range(len(other) + 1))
  for i, letter in enumerate(one):
    previous, row = row, [i + 1]
    for j, another in enumerate(other):
      change = previous[j] + (letter != another)
      row.append(min(change, previous[j + 1] + 1, row[j] + 1))
  return row[-1]


def closest(word, known, limit=2):
  """Return the known word that is most alike, or None beyond the limit."""
  best = min(known, key=lambda other: (distance(word, other), other))
  if distance(word, best) > limit:
    return None
  return best


def common_start(words):
  """Return the letters that all words begin with."""
  first, last = min(words), max(words)
  length = 0
  while length < len(first) and first[length] == last[length]:
    length += 1
  return first[:length]


def pairs(word):
  """Return the pairs of letters that stand beside each other, sorted."""
  return sorted(word[i : i + 2] for i in range(len(word) - 1))


def score(one, other):
  """Return 0 to 100: the share of pairs of letters that two words have."""
  left, right = pairs(one), pairs(other)
  count = len(left) + len(right)
  if count == 0:
    return 100 if one == other else 0
  shared = 0
  for pair in left:
    if pair in right:
      right.remove(pair)
      shared += 1
  return round(200 * shared / count)
