from tallies import groups

ROWS = [
    {'team': 'red', 'score': 4},
    {'team': 'blue', 'score': 1},
    {'team': 'red', 'score': 8},
    {'team': 'blue', 'score': None},
]


def test_group():
  assert groups.group(ROWS, 'team', 'score') == {
      'red': [4, 8],
      'blue': [1, None],
  }
  assert groups.group([], 'team', 'score') == {}


def test_summary():
  assert groups.summary(ROWS, 'team', 'score') == {
      'red': (2, 6.0),
      'blue': (1, 1.0),
  }
  assert groups.summary(ROWS[3:], 'team', 'score') == {'blue': (0, None)}


def test_histogram():
  assert groups.histogram([1, 5, 12, 19], 10) == {0: 2, 10: 2}
  assert groups.histogram([3, 8], 5, start=3) == {3: 1, 8: 1}
  assert groups.histogram([-1], 10) == {-10: 1}


def test_shares():
  assert groups.shares({'a': 1, 'b': 2}) == {'a': 33.3, 'b': 66.7}
  assert groups.shares({'a': 1, 'b': 2}, digits=0) == {'a': 33.0, 'b': 67.0}
  assert groups.shares({'a': 0}) == {'a': 0.0}


def test_bars():
  assert groups.bars({'x': 4, 'y': 2}, width=4) == ['x ####', 'y ##']
  assert groups.bars({'x': 5}) == ['x ##########']
  assert groups.bars({'x': 0}) == ['x']


def test_chunks():
  assert groups.chunks([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
  assert groups.chunks('abcdef', 3) == ['abc', 'def']
  assert groups.chunks([], 4) == []
