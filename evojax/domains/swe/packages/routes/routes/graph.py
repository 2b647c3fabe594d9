"""Graphs are dictionaries: place -> {neighbour: length}."""


def make(edges, both=True):
  """Return the graph of some edges.

  Args:
    edges: (place, place) or (place, place, length); a length is 1 by default.
    both: Whether edges lead both ways.
  """
  graph = {}
  for start, end, *length in edges:
    size = length[0] if length else 1
    graph.setdefault(start, {})[end] = size
    graph.setdefault(end, {})
    if both:
      graph[end][start] = size
  return graph


def edges(graph):
  """Return (place, place, length) of all edges, in order."""
  found = []
  for start in sorted(graph):
    for end in sorted(graph[start]):
      found.append((start, end, graph[start][end]))
  return found


def turned(graph):
  """Return the graph with each edge the other way round."""
  return make([(end, start, size) for start, end, size in edges(graph)], False)


def degrees(graph):
  """Return how many edges lead to each place."""
  counts = dict.fromkeys(graph, 0)
  for _, end, _ in edges(graph):
    counts[end] += 1
  return counts
