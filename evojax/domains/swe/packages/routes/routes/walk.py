"""Walks through a graph, by breadth."""


def steps(graph, start):
  """Return how many steps each place is away that can be reached."""
  away = {start: 0}
  waiting = [start]
  while waiting:
    place = waiting.pop(0)
    for neighbour in sorted(graph[place]):
      if neighbour not in away:
        away[neighbour] = away[place] + 1
        waiting.append(neighbour)
  return away


def within(graph, start, limit=2):
  """Return the places at most so many steps away, the start not counted."""
  away = steps(graph, start)
  return sorted(p for p, count in away.items() if 0 < count <= limit)


def parts(graph):
  """Return the connected parts of a graph, each sorted, the largest first."""
  found = []
  seen = set()
  for place in sorted(graph):
    if place in seen:
      continue
    part = steps(graph, place)
    seen.update(part)
    found.append(sorted(part))
  return sorted(found, key=lambda part: (-len(part), part))


def has_circle(graph):
  """Tell if a graph whose edges lead both ways has a circle."""
  count = sum(len(ends) for ends in graph.values()) // 2
  return count > len(graph) - len(parts(graph))
