from phrases import numbers
import pytest


def test_small_numbers():
  assert numbers.words(0) == 'zero'
  assert numbers.words(19) == 'nineteen'
  assert numbers.words(20) == 'twenty'
  assert numbers.words(99) == 'ninety-nine'


def test_large_numbers():
  assert numbers.words(100) == 'one hundred'
  assert numbers.words(342) == 'three hundred and forty-two'
  assert numbers.words(1000) == 'one thousand'
  assert numbers.words(2515) == 'two thousand five hundred and fifteen'


def test_out_of_range():
  with pytest.raises(ValueError):
    numbers.words(-1)
  with pytest.raises(ValueError):
    numbers.words(10000)
  assert numbers.words(9000) == 'nine thousand'


def test_ordinal():
  assert numbers.ordinal(1) == '1st'
  assert numbers.ordinal(22) == '22nd'
  assert numbers.ordinal(103) == '103rd'


def test_ordinals_between_ten_and_twenty():
  assert numbers.ordinal(11) == '11th'
  assert numbers.ordinal(112) == '112th'
  assert numbers.ordinal(10) == '10th'


def test_roman():
  assert numbers.roman(4) == 'IV'
  assert numbers.roman(1994) == 'MCMXCIV'
  assert numbers.roman(3888) == 'MMMDCCCLXXXVIII'


def test_from_roman():
  assert numbers.from_roman('IV') == 4
  assert numbers.from_roman('MCMXCIV') == 1994
  assert numbers.from_roman('') == 0
