from bunches import ring
import pytest


def filled(size, count):
  made = ring.Ring(size)
  for number in range(count):
    made.push(number)
  return made


def test_items():
  assert filled(3, 0).items() == []
  assert filled(3, 2).items() == [0, 1]
  assert filled(3, 3).items() == [0, 1, 2]


def test_the_oldest_are_forgotten():
  assert filled(3, 5).items() == [2, 3, 4]
  assert filled(4, 9).items() == [5, 6, 7, 8]
  assert filled(1, 6).items() == [5]


def test_push_returns_what_is_forgotten():
  made = filled(2, 2)
  assert made.push('a') == 0
  assert made.push('b') == 1
  assert filled(2, 1).push('c') is None


def test_last():
  made = filled(3, 7)
  assert made.last() == 6
  assert made.last(1) == 5
  assert made.last(back=2) == 4


def test_last_of_too_few():
  with pytest.raises(IndexError):
    filled(3, 7).last(3)
  with pytest.raises(IndexError):
    filled(3, 0).last()


def test_no_room():
  with pytest.raises(ValueError):
    ring.Ring(0)
  assert ring.Ring(1).items() == []
