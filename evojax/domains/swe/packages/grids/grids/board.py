"""Ways across a board, from the top left to the bottom right."""


def ways(height, width):
  """Return how many ways lead down and right through a board."""
  row = [1] * width
  for _ in range(height - 1):
    for column in range(1, width):
      row[column] += row[column - 1]
  return row[-1]


def cheapest(grid):
  """Return the smallest sum on a way down and right, both ends included."""
  best = []
  for r, line in enumerate(grid):
    row = []
    for c, cost in enumerate(line):
      before = []
      if r > 0:
        before.append(best[c])
      if c > 0:
        before.append(row[c - 1])
      row.append(cost + min(before, default=0))
    best = row
  return best[-1]


def winner(grid, empty='.'):
  """Return who holds a whole row, column or diagonal of a square; or None."""
  size = len(grid)
  lines = [list(row) for row in grid]
  lines += [[row[c] for row in grid] for c in range(size)]
  lines.append([grid[i][i] for i in range(size)])
  lines.append([grid[i][size - 1 - i] for i in range(size)])
  for line in lines:
    if line[0] != empty and line.count(line[0]) == size:
      return line[0]
  return None


def square(row, column):
  """Return the name of a square of a chess board: (7, 0) is a1."""
  if not (0 <= row < 8 and 0 <= column < 8):
    raise ValueError(f'no square at {row}, {column}')
  return 'abcdefgh'[column] + str(8 - row)


def attacks(one, other):
  """Tell if a queen on one (row, column) attacks the other."""
  down, right = other[0] - one[0], other[1] - one[1]
  if down == 0 and right == 0:
    return False
  return down == 0 or right == 0 or abs(down) == abs(right)
