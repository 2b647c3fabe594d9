import pytest
from stockroom import prices

STEPS = [(1, 100), (10, 90), (50, 75)]


def test_unit_price():
  assert prices.unit_price(STEPS, 1) == 100
  assert prices.unit_price(STEPS, 10) == 90
  assert prices.unit_price(STEPS, 49) == 90
  assert prices.unit_price(STEPS, 500) == 75


def test_too_few():
  with pytest.raises(ValueError):
    prices.unit_price(STEPS, 0)
  with pytest.raises(ValueError):
    prices.unit_price([], 3)


def test_discount():
  assert prices.discount(1000, 15) == 850
  assert prices.discount(99, 50) == 50
  assert prices.discount(500, 0) == 500


def test_total():
  assert prices.total([(250, 4), (100, 2)]) == 1690
  assert prices.total([(5000, 1)]) == 5000
  assert prices.total([]) == 0


def test_total_with_discount():
  assert prices.total([(1000, 5)], percent=10) == 4990
  assert prices.total([(1000, 6)], percent=10) == 5400
  assert prices.total([(1000, 1)], shipping=100) == 1100


def test_total_with_another_limit():
  assert prices.total([(1000, 2)], free_from=2000) == 2000
  assert prices.total([(1000, 2)], free_from=2001) == 2490


def test_write():
  assert prices.write(1205) == '$12.05'
  assert prices.write(-50) == '-$0.50'
  assert prices.write(0, sign='EUR ') == 'EUR 0.00'
