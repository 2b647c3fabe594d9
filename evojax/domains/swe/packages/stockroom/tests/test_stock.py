import pytest
from stockroom import stock


def filled():
  made = stock.Stock()
  made.receive('bolt', 10, 5)
  made.receive('bolt', 20, 7)
  made.receive('nut', 3, 2)
  return made


def test_count():
  assert filled().count('bolt') == 30
  assert filled().count('nut') == 3
  assert filled().count('gear') == 0


def test_issue():
  made = filled()
  assert made.issue('bolt', 4) == 20
  assert made.issue('bolt', 8) == 44
  assert made.count('bolt') == 18


def test_issue_all():
  made = filled()
  assert made.issue('nut', 3) == 6
  assert made.count('nut') == 0
  assert made.names() == ['bolt']


def test_too_many():
  made = filled()
  with pytest.raises(ValueError):
    made.issue('nut', 4)
  assert made.count('nut') == 3
  with pytest.raises(ValueError):
    made.issue('gear', 1)


def test_nothing_comes_in():
  made = filled()
  with pytest.raises(ValueError):
    made.receive('nut', 0)
  made.receive('nut', 1)
  assert made.count('nut') == 4


def test_worth():
  made = filled()
  assert made.worth() == 196
  made.issue('bolt', 10)
  assert made.worth() == 146
  assert stock.Stock().worth() == 0


def test_names():
  assert filled().names() == ['bolt', 'nut']
  assert stock.Stock().names() == []
