import pytest
from reckon import value


def test_reckon():
  assert value.reckon('1 + 2 * 3') == 7.0
  assert value.reckon('10 - 4 - 3') == 3.0
  assert value.reckon('2 ^ 3 ^ 2') == 512.0
  assert value.reckon('-3 + 5') == 2.0


def test_division():
  assert value.reckon('1 / 3') == 0.333333
  assert value.reckon('1 / 3', digits=2) == 0.33
  with pytest.raises(ZeroDivisionError):
    value.reckon('1 / (2 - 2)')


def test_names():
  assert value.reckon('x * x - y', {'x': 5.0, 'y': 1.0}) == 24.0
  with pytest.raises(KeyError):
    value.reckon('x + 1')
  with pytest.raises(KeyError):
    value.reckon('x + z', {'x': 1.0})


def test_table():
  assert value.table('n * n', 'n', 1, 3) == [(1, 1.0), (2, 4.0), (3, 9.0)]
  assert value.table('n', 'n', 4, 4) == [(4, 4.0)]
  assert value.table('n', 'n', 2, 1) == []
