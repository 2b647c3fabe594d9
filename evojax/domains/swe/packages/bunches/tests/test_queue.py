from bunches import queue
import pytest


def made(ranks):
  new = queue.Queue()
  for rank in ranks:
    new.put(f'item {rank}', rank)
  return new


def test_order():
  assert queue.drain(made([3, 1, 2])) == ['item 1', 'item 2', 'item 3']
  assert queue.drain(made([5, 4, 3, 2, 1]), 2) == ['item 1', 'item 2']


def test_many():
  ranks = [7, 3, 9, 1, 8, 2, 6, 4, 5, 0]
  taken = queue.drain(made(ranks))
  assert taken[:3] == ['item 0', 'item 1', 'item 2']
  assert taken[-3:] == ['item 7', 'item 8', 'item 9']
  assert len(taken) == 10


def test_equal_ranks_keep_their_order():
  new = queue.Queue()
  for name in 'abcde':
    new.put(name, 1)
  new.put('first')
  assert queue.drain(new) == ['first', 'a', 'b', 'c', 'd', 'e']
  assert len(new) == 0


def test_put_and_get_in_turns():
  new = made([4, 2])
  assert new.get() == 'item 2'
  new.put('item 3', 3)
  new.put('item 1', 1)
  assert queue.drain(new) == ['item 1', 'item 3', 'item 4']


def test_drain_up_to_a_limit():
  new = made([2, 1, 3])
  assert queue.drain(new, 0) == []
  assert queue.drain(new, 1) == ['item 1']
  assert len(new) == 2


def test_empty():
  with pytest.raises(IndexError):
    queue.Queue().get()
  assert queue.drain(queue.Queue()) == []
