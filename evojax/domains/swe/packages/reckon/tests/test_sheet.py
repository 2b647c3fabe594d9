import pytest
from reckon import sheet


def filled(**cells):
  made = sheet.Sheet()
  for name, formula in cells.items():
    made.put(name, formula)
  return made


def test_get():
  made = filled(a='2', b='a * 3', c='a + b')
  assert made.get('a') == 2.0
  assert made.get('b') == 6.0
  assert made.get('c') == 8.0


def test_empty_cells():
  made = filled(a='b + 1')
  assert made.get('a') == 1.0
  assert made.get('z') == 0.0


def test_clearing():
  made = filled(a='5', b='a + 1')
  made.put('a', '  ')
  assert made.cells == {'b': 'a + 1'}
  assert made.get('b') == 1.0


def test_circles():
  with pytest.raises(ValueError):
    filled(a='b', b='a').get('a')
  with pytest.raises(ValueError):
    filled(a='a + 1').get('a')


def test_cells_that_are_used_twice():
  made = filled(a='3', b='a', c='a', d='b * c')
  assert made.get('d') == 9.0
  assert made.users('a') == ['b', 'c']


def test_users():
  made = filled(a='1', b='a', c='a + ab', d='2')
  assert made.users('a') == ['b', 'c']
  assert made.users('d') == []
