from grids import cells

BLINKER = [[0, 1, 0], [0, 1, 0], [0, 1, 0]]


def test_neighbours():
  assert cells.neighbours(BLINKER, 1, 1) == 2
  assert cells.neighbours(BLINKER, 1, 0) == 3
  assert cells.neighbours(BLINKER, 0, 1) == 1


def test_neighbours_at_the_corners():
  full = [[1, 1], [1, 1]]
  assert cells.neighbours(full, 0, 0) == 3
  assert cells.neighbours(full, 1, 1) == 3
  assert cells.neighbours([[1]], 0, 0) == 0


def test_step():
  assert cells.step(BLINKER) == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
  assert cells.step([[1, 1], [1, 1]]) == [[1, 1], [1, 1]]
  assert cells.step([[1, 1], [0, 0]]) == [[0, 0], [0, 0]]


def test_fill():
  grid = [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
  assert cells.fill(grid, 0, 0, 7) == [[7, 7, 0], [0, 7, 0], [1, 0, 1]]
  assert cells.fill(grid, 2, 2, 5)[2] == [1, 0, 5]
  assert grid == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_fill_with_the_same():
  assert cells.fill([[1, 1]], 0, 0, 1) == [[1, 1]]
  assert cells.fill([[2]], 0, 0, 3) == [[3]]


def test_islands():
  assert cells.islands([[1, 0, 1], [1, 0, 0], [0, 0, 1]]) == 3
  assert cells.islands([[0, 0], [0, 0]]) == 0
  assert cells.islands([[5, 3], [2, 4]]) == 1
