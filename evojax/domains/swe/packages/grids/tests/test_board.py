from grids import board
import pytest


def test_ways():
  assert board.ways(3, 3) == 6
  assert board.ways(2, 5) == 5
  assert board.ways(1, 1) == 1
  assert board.ways(4, 3) == 10


def test_cheapest():
  assert board.cheapest([[1, 3, 1], [1, 5, 1], [4, 2, 1]]) == 7
  assert board.cheapest([[1, 2], [9, 1]]) == 4
  assert board.cheapest([[1, 9], [2, 1]]) == 4


def test_cheapest_of_one_line():
  assert board.cheapest([[1, 2, 3]]) == 6
  assert board.cheapest([[4], [5]]) == 9


def test_winner():
  assert board.winner(['xxx', 'oo.', '...']) == 'x'
  assert board.winner(['xo.', 'xo.', '.ox']) == 'o'
  assert board.winner(['xo.', 'ox.', '..x']) == 'x'
  assert board.winner(['..o', 'xo.', 'o.x']) == 'o'


def test_no_winner():
  assert board.winner(['...', 'xx.', 'o.o']) is None
  assert board.winner(['xo', 'ox'], empty='x') == 'o'


def test_square():
  assert board.square(7, 0) == 'a1'
  assert board.square(0, 7) == 'h8'
  with pytest.raises(ValueError):
    board.square(8, 0)
  with pytest.raises(ValueError):
    board.square(0, -1)


def test_attacks():
  assert board.attacks((0, 0), (0, 5)) is True
  assert board.attacks((2, 1), (5, 4)) is True
  assert board.attacks((2, 1), (4, 2)) is False
  assert board.attacks((3, 3), (3, 3)) is False
