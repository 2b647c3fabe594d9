from stockroom import orders
from stockroom import stock


def filled():
  made = stock.Stock()
  made.receive('cup', 6)
  made.receive('jar', 2)
  return made


def test_shortage():
  assert orders.shortage(filled(), {'cup': 8, 'jar': 2}) == {'cup': 2}
  assert orders.shortage(filled(), {'cup': 6}) == {}
  assert orders.shortage(filled(), {'lid': 1}) == {'lid': 1}


def test_can_fill():
  assert orders.can_fill(filled(), {'cup': 6, 'jar': 1}) is True
  assert orders.can_fill(filled(), {'cup': 1, 'jar': 3}) is False


def test_fill():
  made = filled()
  assert orders.fill(made, {'cup': 4}) == {'cup': 4}
  assert made.count('cup') == 2
  assert orders.fill(made, {'jar': 2}) == {'jar': 2}


def test_all_or_nothing():
  made = filled()
  assert orders.fill(made, {'cup': 4, 'jar': 3}) == {}
  assert made.count('cup') == 6


def test_fill_partly():
  made = filled()
  assert orders.fill(made, {'cup': 9, 'lid': 1}, partly=True) == {'cup': 6}
  assert made.count('cup') == 0
  assert orders.fill(made, {'jar': 1}, partly=True) == {'jar': 1}


def test_merge():
  merged = orders.merge([{'cup': 1}, {'cup': 2, 'jar': 5}, {}])
  assert merged == {'cup': 3, 'jar': 5}
  assert orders.merge([]) == {}
