from stockroom import buying
from stockroom import stock


def filled():
  made = stock.Stock()
  made.receive('cup', 6)
  made.receive('jar', 2)
  return made


def test_reorder_point():
  assert buying.reorder_point(2.5, 3) == 8
  assert buying.reorder_point(2.5, 3, safety=4) == 12
  assert buying.reorder_point(0, 9) == 0


def test_quantity():
  assert buying.quantity(4, 10) == 6
  assert buying.quantity(4, 10, pack=4) == 8
  assert buying.quantity(2, 10, 4) == 8


def test_quantity_of_enough():
  assert buying.quantity(10, 10) == 0
  assert buying.quantity(12, 10, pack=5) == 0


def test_plan():
  rules = {'cup': (6, 20, 5), 'jar': (1, 10, 1), 'lid': (3, 12, 12)}
  assert buying.plan(filled(), rules) == {'cup': 15, 'lid': 12}
  assert buying.plan(filled(), {'jar': (2, 3, 1)}) == {'jar': 1}


def test_plan_without_need():
  assert buying.plan(filled(), {'cup': (9, 5, 1)}) == {}
  assert buying.plan(filled(), {}) == {}


def test_days_left():
  assert buying.days_left(10, [2, 3, 1]) == 5
  assert buying.days_left(7, [4]) == 1
  assert buying.days_left(5, []) is None
  assert buying.days_left(5, [0, 0]) is None
