import pytest
from rota import turns


def taken(people, count, away=()):
  made = turns.Turns(people)
  for _ in range(count):
    made.next(away)
  return made


def test_next():
  made = turns.Turns('abc')
  assert [made.next() for _ in range(4)] == ['a', 'b', 'c', 'a']
  assert made.done == {'a': 2, 'b': 1, 'c': 1}


def test_away():
  made = turns.Turns('abc')
  assert made.next(away='a') == 'b'
  assert made.next(away='c') == 'a'
  assert made.done == {'a': 1, 'b': 1, 'c': 0}


def test_all_are_away():
  with pytest.raises(LookupError):
    turns.Turns('ab').next(away='ab')
  assert turns.Turns('ab').next(away='x') == 'a'


def test_join():
  made = taken('ab', 4)
  made.join('c')
  assert made.done == {'a': 2, 'b': 2, 'c': 2}
  assert made.people == ['a', 'b', 'c']


def test_behind():
  assert taken('abc', 4).behind() == ['b', 'c']
  assert taken('abc', 2, away='a').behind() == ['a']


def test_fair():
  assert taken('abc', 4).fair() is True
  assert taken('ab', 4, away='b').fair() is False
  assert taken('ab', 4, away='b').fair(slack=4) is True


def test_swap():
  assert turns.swap(['a', 'b', 'a', 'c'], 'a', 'c') == ['c', 'b', 'c', 'a']
  assert turns.swap([], 'a', 'b') == []
