from larder import recent
import pytest


def filled(size, keys):
  made = recent.Recent(size)
  for key in keys:
    made.put(key, key.upper())
  return made


def test_get():
  made = filled(3, 'abc')
  assert made.get('a') == 'A'
  assert made.get('z') is None
  assert made.get('z', 'none') == 'none'


def test_the_oldest_is_dropped():
  made = filled(2, 'ab')
  assert made.put('c', 'C') == 'a'
  assert made.keys() == ['c', 'b']
  assert made.put('d', 'D') == 'b'


def test_use_keeps():
  made = filled(2, 'ab')
  made.get('a')
  assert made.put('c', 'C') == 'b'
  assert made.keys() == ['c', 'a']


def test_peek_does_not_keep():
  made = filled(2, 'ab')
  assert made.peek('a') == 'A'
  assert made.put('c', 'C') == 'a'
  assert made.peek('a', 0) == 0


def test_put_again():
  made = filled(2, 'ab')
  assert made.put('a', 'new') is None
  assert made.keys() == ['a', 'b']
  assert made.peek('a') == 'new'


def test_no_room():
  with pytest.raises(ValueError):
    recent.Recent(0)
  assert filled(1, 'ab').keys() == ['b']


def test_resize():
  made = filled(4, 'abcd')
  assert made.resize(2) == ['a', 'b']
  assert made.keys() == ['d', 'c']
  assert made.resize(5) == []
