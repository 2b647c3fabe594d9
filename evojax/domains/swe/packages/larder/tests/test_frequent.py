from larder import frequent


def filled(size, keys):
  made = frequent.Frequent(size)
  for key in keys:
    made.put(key, key.upper())
  return made


def test_get():
  made = filled(3, 'ab')
  assert made.get('a') == 'A'
  assert made.get('x') is None
  assert made.get('x', 5) == 5


def test_the_least_used_is_dropped():
  made = filled(2, 'ab')
  made.get('a')
  assert made.put('c', 'C') == 'b'
  assert made.get('a') == 'A'


def test_of_equals_the_oldest_is_dropped():
  made = filled(3, 'abc')
  assert made.put('d', 'D') == 'a'
  assert made.weakest() == 'b'


def test_put_again():
  made = filled(2, 'ab')
  assert made.put('a', 'new') is None
  assert made.uses('a') == 2
  assert made.weakest() == 'b'


def test_uses():
  made = filled(2, 'ab')
  made.get('b')
  made.get('b')
  assert made.uses('b') == 3
  assert made.uses('a') == 1
  assert made.uses('z') == 0


def test_age():
  made = filled(2, 'ab')
  for _ in range(6):
    made.get('b')
  made.age()
  assert made.uses('b') == 3
  assert made.uses('a') == 1


def test_empty():
  assert frequent.Frequent(2).weakest() is None
  assert frequent.Frequent(2).put('a', 1) is None
