import pytest
from rota import times


def test_read():
  assert times.read('9:30') == 570
  assert times.read('23:59') == 1439
  assert times.read('7') == 420


def test_no_time():
  with pytest.raises(ValueError):
    times.read('24:00')
  with pytest.raises(ValueError):
    times.read('9:60')
  assert times.read('0:00') == 0


def test_write():
  assert times.write(570) == '09:30'
  assert times.write(1440) == '00:00'
  assert times.write(1505) == '01:05'


def test_until():
  assert times.until(600, 660) == 60
  assert times.until(1380, 60) == 120
  assert times.until(60, 60) == 0


def test_round_up():
  assert times.round_up(601) == 615
  assert times.round_up(600) == 600
  assert times.round_up(601, step=60) == 660


def test_repeats():
  assert times.repeats(0, 20, 60) == [0, 20, 40]
  assert times.repeats(0, 25, 60) == [0, 25, 50]
  assert times.repeats(60, 5, 60) == []
