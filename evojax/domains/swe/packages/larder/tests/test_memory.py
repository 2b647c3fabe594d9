from larder import memory


def test_results():
  square = memory.Memory(lambda x: x * x)
  assert [square(n) for n in (2, 3, 2)] == [4, 9, 4]
  assert square.hits == 1
  assert square.misses == 2


def test_none_is_a_result():
  nothing = memory.Memory(lambda x: None)
  nothing(1)
  assert nothing(1) is None
  assert nothing.hits == 1
  assert nothing.misses == 1


def test_rate():
  found = memory.Memory(str)
  assert found.rate() == 0
  for key in 'aabab':
    found(key)
  assert found.rate() == 60


def test_several_arguments():
  power = memory.Memory(pow)
  assert power(2, 3) == 8
  assert power(3, 2) == 9
  assert power.misses == 2


def test_replay():
  assert memory.replay('abcabc', 3) == (3, 3)
  assert memory.replay('abcabc', 2) == (0, 6)
  assert memory.replay('', 1) == (0, 0)


def test_best_size():
  assert memory.best_size('abcabc', 5) == 3
  assert memory.best_size('abab', 5, wanted=60) is None
  assert memory.best_size('aaaa', 5, wanted=75) == 1
