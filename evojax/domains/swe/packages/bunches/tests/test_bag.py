from bunches import bag


def test_add():
  made = bag.Bag('aab')
  assert made.add('a') == 3
  assert made.add('b', 4) == 5
  assert made.add('c', times=2) == 2


def test_take():
  made = bag.Bag('aaab')
  assert made.take('a') == 1
  assert made.take('a', 5) == 2
  assert made.take('a') == 0
  assert made.counts == {'b': 1}


def test_what_is_gone_is_not_counted():
  made = bag.Bag('xy')
  assert made.take('x') == 1
  assert made.counts == {'y': 1}
  assert made.take('z', 3) == 0


def test_size():
  assert bag.Bag('mississippi').size() == 11
  assert bag.Bag().size() == 0


def test_common():
  made = bag.Bag('mississippi')
  assert made.common(2) == [('i', 4), ('s', 4)]
  assert made.common() == [('i', 4), ('s', 4), ('p', 2)]
  assert made.common(9) == [('i', 4), ('s', 4), ('p', 2), ('m', 1)]


def test_within():
  assert bag.Bag('ab').within(bag.Bag('abc')) is True
  assert bag.Bag('aab').within(bag.Bag('ab')) is False
  assert bag.Bag('ab').within(bag.Bag('ab')) is True
  assert bag.Bag('d').within(bag.Bag('abc')) is False
