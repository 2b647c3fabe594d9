import pytest
from rota import rooms


def booked(*bookings):
  made = rooms.Room()
  for start, end in bookings:
    made.book(start, end)
  return made


def test_clashes():
  assert rooms.clashes((0, 10), (5, 15)) is True
  assert rooms.clashes((0, 10), (10, 15)) is False
  assert rooms.clashes((10, 15), (0, 10)) is False
  assert rooms.clashes((0, 30), (10, 20)) is True


def test_book():
  made = booked((60, 90))
  assert made.book(30, 60) is True
  assert made.book(80, 100) is False
  assert made.bookings == [(30, 60), (60, 90)]


def test_no_time():
  with pytest.raises(ValueError):
    booked((60, 60))
  with pytest.raises(ValueError):
    booked((60, 50))


def test_cancel():
  made = booked((0, 30), (30, 60))
  assert made.cancel(30) == (30, 60)
  assert made.cancel(30) is None
  assert made.cancel(0) == (0, 30)


def test_free_from():
  made = booked((60, 90), (100, 200))
  assert made.free_from(0, 60) == 0
  assert made.free_from(30, 60) == 200
  assert made.free_from(70, 10) == 90


def test_choose():
  all_rooms = {
      'hall': rooms.Room(50),
      'den': rooms.Room(4),
      'nook': rooms.Room(4),
  }
  assert rooms.choose(all_rooms, 4, 0, 60) == 'den'
  all_rooms['den'].book(30, 90)
  assert rooms.choose(all_rooms, 4, 0, 60) == 'nook'
  assert rooms.choose(all_rooms, 5, 0, 60) == 'hall'


def test_choose_none():
  assert rooms.choose({'den': rooms.Room(4)}, 5, 0, 60) is None
  assert rooms.choose({'room': rooms.Room()}, 10, 0, 60) == 'room'
  assert rooms.choose({'room': rooms.Room()}, 11, 0, 60) is None


def test_needed():
  assert rooms.needed([(0, 30), (10, 40), (20, 50)]) == 3
  assert rooms.needed([(0, 30), (30, 60)]) == 1
  assert rooms.needed([]) == 0
