import pytest
from reckon import tokens


def test_split():
  assert tokens.split('2*x') == [('number', 2.0), ('sign', '*'), ('name', 'x')]
  assert tokens.split(' 3.5 ') == [('number', 3.5)]
  assert tokens.split('') == []


def test_long_names_and_numbers():
  assert tokens.split('ab_1') == [('name', 'ab_1')]
  assert tokens.split('12x3') == [('number', 12.0), ('name', 'x3')]
  assert tokens.split('.5') == [('number', 0.5)]


def test_unknown_signs():
  with pytest.raises(ValueError):
    tokens.split('2 & 3')
  with pytest.raises(ValueError):
    tokens.split('$')


def test_names():
  assert tokens.names('b + a * b - 2') == ['a', 'b']
  assert tokens.names('1 + 1') == []
