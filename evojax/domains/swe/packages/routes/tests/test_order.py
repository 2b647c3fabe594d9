import pytest
from routes import order

HOUSE = {'roof': ['walls'], 'walls': ['floor'], 'paint': ['walls'], 'floor': []}


def test_order():
  assert order.order(HOUSE) == ['floor', 'walls', 'paint', 'roof']
  assert order.order({'b': ['a'], 'c': []}) == ['a', 'b', 'c']
  assert order.order({}) == []


def test_circles_are_refused():
  with pytest.raises(ValueError):
    order.order({'a': ['b'], 'b': ['a']})
  with pytest.raises(ValueError):
    order.order({'a': ['a'], 'b': []})


def test_layers():
  assert order.layers(HOUSE) == [['floor'], ['walls'], ['paint', 'roof']]
  assert order.layers({'a': [], 'b': []}) == [['a', 'b']]
  assert order.layers({}) == []


def test_layers_of_long_needs():
  needs = {'d': ['a', 'c'], 'c': ['b'], 'b': [], 'a': []}
  assert order.layers(needs) == [['a', 'b'], ['c'], ['d']]
  assert order.layers({'z': ['y'], 'y': ['x']}) == [['x'], ['y'], ['z']]


def test_finish():
  times = order.finish(HOUSE, {'floor': 5, 'walls': 10, 'roof': 4})
  assert times == {'floor': 5, 'walls': 15, 'paint': 16, 'roof': 19}
  assert order.finish({'a': []}, {}) == {'a': 1}


def test_finish_waits_for_the_slowest():
  needs = {'c': ['a', 'b'], 'a': [], 'b': []}
  assert order.finish(needs, {'a': 7, 'b': 2}) == {'a': 7, 'b': 2, 'c': 8}
  assert order.finish(needs, {'a': 1, 'b': 3})['c'] == 4
