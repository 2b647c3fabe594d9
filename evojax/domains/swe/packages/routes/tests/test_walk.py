from routes import graph
from routes import walk

LINE = graph.make([('a', 'b'), ('b', 'c'), ('c', 'd'), ('d', 'e')])
TWO = graph.make([('a', 'b'), ('x', 'y'), ('y', 'z')])


def test_steps():
  assert walk.steps(LINE, 'a') == {'a': 0, 'b': 1, 'c': 2, 'd': 3, 'e': 4}
  assert walk.steps(LINE, 'd') == {'d': 0, 'c': 1, 'e': 1, 'b': 2, 'a': 3}
  assert walk.steps(TWO, 'b') == {'b': 0, 'a': 1}


def test_steps_take_the_shorter_way():
  ring = graph.make(['ab', 'bc', 'cd', 'da'])
  assert walk.steps(ring, 'a') == {'a': 0, 'b': 1, 'd': 1, 'c': 2}
  assert walk.steps(ring, 'c')['a'] == 2


def test_within():
  assert walk.within(LINE, 'a') == ['b', 'c']
  assert walk.within(LINE, 'c', 1) == ['b', 'd']
  assert walk.within(LINE, 'c', limit=0) == []


def test_parts():
  assert walk.parts(TWO) == [['x', 'y', 'z'], ['a', 'b']]
  assert walk.parts(LINE) == [['a', 'b', 'c', 'd', 'e']]
  assert walk.parts({}) == []


def test_has_circle():
  assert walk.has_circle(LINE) is False
  assert walk.has_circle(TWO) is False
  assert walk.has_circle(graph.make(['ab', 'bc', 'ca', 'xy'])) is True
