"""Shapes of grids."""


def make(height, width, value=0):
  """Return a grid that holds one value everywhere."""
  return [[value] * width for _ in range(height)]


def transpose(grid):
  """Return a grid whose rows are the columns."""
  return [list(column) for column in zip(*grid)]


def turn(grid, times=1):
  """Return a grid turned to the right by quarters."""
  for _ in range(times % 4):
    grid = transpose(grid[::-1])
  return grid


def cut(grid, top, left, height, width):
  """Return a part of a grid; what lies outside is left out."""
  return [row[left : left + width] for row in grid[top : top + height]]


def frame(grid, value=0):
  """Return a grid with a frame of one value around it."""
  width = len(grid[0]) + 2
  inner = [[value, *row, value] for row in grid]
  return [[value] * width, *inner, [value] * width]


def spiral(grid):
  """Return the values from the outside in, clockwise from the top left."""
  found = []
  while grid:
    found += grid[0]
    grid = turn(grid[1:], 3)
  return found
