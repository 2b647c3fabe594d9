import pytest
from signets import bases


def test_write():
  assert bases.write(10) == '1010'
  assert bases.write(255, base=16) == 'ff'
  assert bases.write(-6, 3) == '-20'


def test_width():
  assert bases.write(5, width=8) == '00000101'
  assert bases.write(0) == '0'
  assert bases.write(100, 10, 2) == '100'


def test_no_base():
  with pytest.raises(ValueError):
    bases.write(5, 1)
  with pytest.raises(ValueError):
    bases.write(5, 37)
  assert bases.write(35, 36) == 'z'


def test_read():
  assert bases.read('1010') == 10
  assert bases.read('FF', base=16) == 255
  assert bases.read('') == 0


def test_read_refuses():
  with pytest.raises(ValueError):
    bases.read('12')
  with pytest.raises(ValueError):
    bases.read('8', 8)
  assert bases.read('7', 8) == 7


def test_ones():
  assert bases.ones(255) == 8
  assert bases.ones(0b1011) == 3
  assert bases.ones(0) == 0


def test_bits():
  assert bases.bits(10) == [1, 3]
  assert bases.bits(1) == [0]
  assert bases.bits(0) == []


def test_gray():
  assert [bases.gray(n) for n in range(5)] == [0, 1, 3, 2, 6]
  assert bases.gray(15) == 8


def test_differ():
  assert bases.differ(7, 4) == 2
  assert bases.differ(9, 9) == 0
