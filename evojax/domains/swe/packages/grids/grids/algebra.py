"""Sums, products and determinants."""

from grids import shape


def add(one, other, factor=1):
  """Return the sum of two grids, the second times a factor."""
  if len(one) != len(other) or len(one[0]) != len(other[0]):
    raise ValueError('the grids differ in shape')
  return [
      [a + factor * b for a, b in zip(left, right)]
      for left, right in zip(one, other)
  ]


def product(one, other):
  """Return the matrix product.

  Raises:
    ValueError: If the rows of the first do not fit the columns of the second.
  """
  if len(one[0]) != len(other):
    raise ValueError(f'{len(one[0])} columns and {len(other)} rows')
  columns = shape.transpose(other)
  return [
      [sum(a * b for a, b in zip(row, column)) for column in columns]
      for row in one
  ]


def identity(size):
  """Return the grid with ones from the top left to the bottom right."""
  return [[int(i == j) for j in range(size)] for i in range(size)]


def power(grid, exponent):
  """Return a grid multiplied with itself some times."""
  result = identity(len(grid))
  while exponent > 0:
    if exponent % 2 == 1:
      result = product(result, grid)
    grid = product(grid, grid)
    exponent //= 2
  return result


def minor(grid, row, column):
  """Return a grid without one row and one column."""
  return [
      line[:column] + line[column + 1 :]
      for number, line in enumerate(grid)
      if number != row
  ]


def determinant(grid):
  """Return the determinant of a square grid."""
  if len(grid) == 1:
    return grid[0][0]
  total = 0
  for column, value in enumerate(grid[0]):
    sign = -1 if column % 2 else 1
    total += sign * value * determinant(minor(grid, 0, column))
  return total


def trace(grid):
  """Return the sum from the top left to the bottom right."""
  return sum(grid[i][i] for i in range(min(len(grid), len(grid[0]))))
