from bunches import runs
import pytest


def test_compress():
  assert runs.compress([1, 2, 3, 7]) == [(1, 3), (7, 7)]
  assert runs.compress([9, 8, 4, 8]) == [(4, 4), (8, 9)]
  assert runs.compress([]) == []


def test_expand():
  assert runs.expand([(1, 3), (7, 7)]) == [1, 2, 3, 7]
  assert runs.expand([(5, 6), (2, 5)]) == [2, 3, 4, 5, 6]


def test_write():
  assert runs.write([1, 2, 3, 7]) == '1-3,7'
  assert runs.write([5, 6], sign='..') == '5..6'
  assert runs.write([]) == ''


def test_read():
  assert runs.read('1-3,7') == [1, 2, 3, 7]
  assert runs.read('5..6,4', sign='..') == [4, 5, 6]
  assert runs.read('') == []


def test_read_single_numbers():
  assert runs.read('8') == [8]
  assert runs.read('3-3') == [3]


def test_backwards():
  with pytest.raises(ValueError):
    runs.read('4-2')
  with pytest.raises(ValueError):
    runs.read('1,9-8')
