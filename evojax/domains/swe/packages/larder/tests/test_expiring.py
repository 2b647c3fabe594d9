from larder import expiring


def filled():
  made = expiring.Expiring(10)
  made.put('a', 1, now=100)
  made.put('b', 2, now=105, seconds=3)
  return made


def test_get():
  assert filled().get('a', 100) == 1
  assert filled().get('a', 109) == 1
  assert filled().get('b', 107) == 2


def test_expired():
  assert filled().get('a', 110) is None
  assert filled().get('b', 108, 'gone') == 'gone'
  assert filled().get('c', 100, 0) == 0


def test_own_time():
  made = filled()
  made.put('c', 3, 100, seconds=0)
  assert made.get('c', 100) is None
  assert made.left('a', 100) == 10


def test_left():
  assert filled().left('a', 104) == 6
  assert filled().left('b', 200) == 0
  assert filled().left('c', 100) == 0


def test_touch():
  made = filled()
  assert made.touch('a', 109) is True
  assert made.left('a', 109) == 10
  assert made.touch('b', 108) is False


def test_sweep():
  made = filled()
  assert made.sweep(108) == 1
  assert made.sweep(108) == 0
  assert made.sweep(110) == 1


def test_standard_time():
  made = expiring.Expiring()
  made.put('x', 1, 0)
  assert made.get('x', 59) == 1
  assert made.get('x', 60) is None
