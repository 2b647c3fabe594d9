from measures import quantity
import pytest


def test_parse():
  assert quantity.parse('3 km') == (3.0, 'km')
  assert quantity.parse('-1.5h') == (-1.5, 'h')
  assert quantity.parse('  20   KG ') == (20.0, 'kg')


def test_parse_refuses():
  with pytest.raises(ValueError):
    quantity.parse('km')
  with pytest.raises(ValueError):
    quantity.parse('12')
  with pytest.raises(KeyError):
    quantity.parse('4 leagues')


def test_ratio():
  assert quantity.ratio('km', 'm') == 1000.0
  assert quantity.ratio('min', 'h') == 60 / 3600
  with pytest.raises(ValueError):
    quantity.ratio('kg', 'm')


def test_convert():
  assert quantity.convert((3.0, 'km'), 'm') == (3000.0, 'm')
  assert quantity.convert((90.0, 'min'), 'h') == (1.5, 'h')
  assert quantity.convert((2.0, 'd'), 'h') == (48.0, 'h')


def test_total():
  assert quantity.total([(1.0, 'km'), (250.0, 'm')], 'm') == (1250.0, 'm')
  assert quantity.total([], 'g') == (0.0, 'g')
  assert quantity.total([(2.0, 'h')] * 3, 'min') == (360.0, 'min')


def test_larger():
  assert quantity.larger((2.0, 'km'), (1999.0, 'm')) == (2.0, 'km')
  assert quantity.larger((2.0, 'km'), (2001.0, 'm')) == (2001.0, 'm')


def test_larger_of_equals():
  assert quantity.larger((2.0, 'km'), (2000.0, 'm')) == (2.0, 'km')
  assert quantity.larger((60.0, 's'), (1.0, 'min')) == (60.0, 's')
