import pytest
from routes import graph
from routes import ways

MAP = graph.make(
    [('a', 'b', 4), ('a', 'c', 1), ('c', 'b', 2), ('b', 'd', 5), ('c', 'd', 8)]
)


def test_lengths():
  best = ways.lengths(MAP, 'a')
  assert best == {'a': (0, None), 'b': (3, 'c'), 'c': (1, 'a'), 'd': (8, 'b')}
  assert ways.lengths({'x': {}}, 'x') == {'x': (0, None)}


def test_shortest():
  assert ways.shortest(MAP, 'a', 'd') == (8, ['a', 'c', 'b', 'd'])
  assert ways.shortest(MAP, 'd', 'c') == (7, ['d', 'b', 'c'])
  assert ways.shortest(MAP, 'b', 'b') == (0, ['b'])


def test_no_way():
  apart = graph.make([('a', 'b'), ('x', 'y')])
  with pytest.raises(LookupError):
    ways.shortest(apart, 'a', 'x')
  with pytest.raises(LookupError):
    ways.shortest(graph.make([('a', 'b')], both=False), 'b', 'a')


def test_farthest():
  assert ways.farthest(MAP, 'a') == 'd'
  assert ways.farthest(MAP, 'd') == 'a'
  assert ways.farthest({'x': {}}, 'x') == 'x'


def test_farthest_of_equals():
  star = graph.make([('m', 'z'), ('m', 'b'), ('m', 'k')])
  assert ways.farthest(star, 'm') == 'b'
  assert ways.farthest(star, 'b') == 'k'


def test_tree():
  assert ways.tree(MAP) == ([('a', 'c'), ('c', 'b'), ('b', 'd')], 8)
  assert ways.tree({'x': {}}) == ([], 0)
