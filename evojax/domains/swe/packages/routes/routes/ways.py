"""Shortest ways, by the sum of lengths."""


def lengths(graph, start):
  """Return (length of the shortest way, place before) of each place."""
  best = {start: (0, None)}
  waiting = {start}
  while waiting:
    place = min(waiting, key=lambda p: (best[p][0], p))
    waiting.remove(place)
    for end, size in graph[place].items():
      length = best[place][0] + size
      if end not in best or length < best[end][0]:
        best[end] = (length, place)
        waiting.add(end)
  return best


def shortest(graph, start, end):
  """Return (length, places on the way), both ends included.

  Raises:
    LookupError: If there is no way.
  """
  best = lengths(graph, start)
  if end not in best:
    raise LookupError(f'no way from {start} to {end}')
  way = [end]
  while way[-1] != start:
    way.append(best[way[-1]][1])
  return best[end][0], way[::-1]


def farthest(graph, start):
  """Return the place with the longest shortest way, the first by name."""
  best = lengths(graph, start)
  return min(best, key=lambda place: (-best[place][0], place))


def tree(graph):
  """Return the edges of a tree of the smallest sum, and the sum."""
  start = min(graph)
  reached, chosen, total = {start}, [], 0
  while True:
    found = [
        (size, place, end)
        for place in reached
        for end, size in graph[place].items()
        if end not in reached
    ]
    if not found:
      return chosen, total
    size, place, end = min(found)
    reached.add(end)
    chosen.append((place, end))
    total += size
