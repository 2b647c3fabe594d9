from grids import shape

GRID = [[1, 2, 3], [4, 5, 6]]


def test_make():
  assert shape.make(2, 3) == [[0, 0, 0], [0, 0, 0]]
  assert shape.make(1, 2, 'x') == [['x', 'x']]


def test_rows_are_not_shared():
  made = shape.make(2, 2)
  made[0][0] = 9
  assert made == [[9, 0], [0, 0]]


def test_transpose():
  assert shape.transpose(GRID) == [[1, 4], [2, 5], [3, 6]]
  assert shape.transpose([[7]]) == [[7]]


def test_turn():
  assert shape.turn(GRID) == [[4, 1], [5, 2], [6, 3]]
  assert shape.turn(GRID, 2) == [[6, 5, 4], [3, 2, 1]]
  assert shape.turn(GRID, 5) == [[4, 1], [5, 2], [6, 3]]


def test_cut():
  assert shape.cut(GRID, 0, 1, 2, 2) == [[2, 3], [5, 6]]
  assert shape.cut(GRID, 1, 0, 1, 1) == [[4]]
  assert shape.cut(GRID, 1, 2, 5, 5) == [[6]]


def test_frame():
  assert shape.frame([[1]]) == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
  assert shape.frame([[1, 2]], 9)[1] == [9, 1, 2, 9]


def test_spiral():
  assert shape.spiral(GRID) == [1, 2, 3, 6, 5, 4]
  assert shape.spiral([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == [
      1,
      2,
      3,
      6,
      9,
      8,
      7,
      4,
      5,
  ]
  assert shape.spiral([]) == []
