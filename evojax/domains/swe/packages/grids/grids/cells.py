"""Cells and their neighbours."""

AROUND = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


def neighbours(grid, row, column):
  """Return how many of the eight cells around one are not empty."""
  count = 0
  for down, right in AROUND:
    r, c = row + down, column + right
    if 0 <= r < len(grid) and 0 <= c < len(grid[0]) and grid[r][c]:
      count += 1
  return count


def step(grid):
  """Return the next state of the game of life."""
  after = []
  for r, row in enumerate(grid):
    line = []
    for c, alive in enumerate(row):
      count = neighbours(grid, r, c)
      line.append(int(count == 3 or (alive and count == 2)))
    after.append(line)
  return after


def fill(grid, row, column, value):
  """Return a grid where all equal cells that hang together have a value."""
  grid = [list(line) for line in grid]
  old = grid[row][column]
  waiting = [(row, column)] if old != value else []
  while waiting:
    r, c = waiting.pop()
    inside = 0 <= r < len(grid) and 0 <= c < len(grid[0])
    if inside and grid[r][c] == old:
      grid[r][c] = value
      waiting += [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
  return grid


def islands(grid):
  """Return how many groups of cells that are not empty there are."""
  count = 0
  grid = [[int(bool(value)) for value in line] for line in grid]
  for r in range(len(grid)):
    for c in range(len(grid[0])):
      if grid[r][c]:
        count += 1
        grid = fill(grid, r, c, 0)
  return count
