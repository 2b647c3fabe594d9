from routes import graph

EDGES = [('a', 'b'), ('b', 'c', 3)]


def test_make():
  assert graph.make(EDGES) == {
      'a': {'b': 1},
      'b': {'a': 1, 'c': 3},
      'c': {'b': 3},
  }
  assert graph.make([]) == {}


def test_make_one_way():
  assert graph.make(EDGES, both=False) == {
      'a': {'b': 1},
      'b': {'c': 3},
      'c': {},
  }
  assert graph.make([('x', 'y', 0)], False) == {'x': {'y': 0}, 'y': {}}


def test_edges():
  found = graph.edges(graph.make(EDGES))
  assert found == [('a', 'b', 1), ('b', 'a', 1), ('b', 'c', 3), ('c', 'b', 3)]
  assert graph.edges({}) == []


def test_turned():
  made = graph.turned(graph.make(EDGES, False))
  assert made == {'b': {'a': 1}, 'a': {}, 'c': {'b': 3}}
  assert graph.edges(made) == [('b', 'a', 1), ('c', 'b', 3)]


def test_degrees():
  assert graph.degrees(graph.make(EDGES)) == {'a': 1, 'b': 2, 'c': 1}
  assert graph.degrees(graph.make(EDGES, False)) == {'a': 0, 'b': 1, 'c': 1}
