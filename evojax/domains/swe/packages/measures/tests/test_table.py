from measures import table
import pytest


def test_find():
  assert table.find('km') == ('length', 1000.0)
  assert table.find(' KG ') == ('mass', 1000.0)
  assert table.find('Min') == ('time', 60.0)


def test_unknown_unit():
  with pytest.raises(KeyError):
    table.find('parsec')
  with pytest.raises(KeyError):
    table.find('')


def test_same_kind():
  assert table.same_kind('m', 'km') is True
  assert table.same_kind('g', 'h') is False
  assert table.same_kind('D', 's') is True


def test_units_of():
  assert table.units_of('mass') == ['g', 'kg', 't']
  assert table.units_of('length') == ['mm', 'cm', 'm', 'km']
  assert table.units_of('taste') == []
