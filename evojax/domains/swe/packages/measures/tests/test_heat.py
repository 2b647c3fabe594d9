from measures import heat
import pytest


def test_to_celsius():
  assert heat.to_celsius(212, 'F') == 100.0
  assert heat.to_celsius(-40, 'F') == -40.0
  assert heat.to_celsius(20, 'C') == 20


def test_absolute_zero():
  assert heat.to_celsius(0, 'K') == -273.15
  with pytest.raises(ValueError):
    heat.to_celsius(-1, 'K')
  with pytest.raises(ValueError):
    heat.to_celsius(-274, 'C')


def test_unknown_scale():
  with pytest.raises(ValueError):
    heat.to_celsius(10, 'X')


def test_from_celsius():
  assert heat.from_celsius(100, 'F') == 212.0
  assert heat.from_celsius(0, 'K') == 273.15
  assert heat.from_celsius(7, 'C') == 7


def test_between():
  assert heat.between(98.6, 'F', 'C') == 37.0
  assert heat.between(300, 'K', 'F') == 80.33
  assert heat.between(300, 'K', 'F', digits=0) == 80.0
