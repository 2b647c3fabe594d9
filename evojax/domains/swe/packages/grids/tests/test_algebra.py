from grids import algebra
import pytest

A = [[1, 2], [3, 4]]
B = [[0, 1], [5, 2]]


def test_add():
  assert algebra.add(A, B) == [[1, 3], [8, 6]]
  assert algebra.add(A, B, factor=-1) == [[1, 1], [-2, 2]]


def test_add_refuses_other_shapes():
  with pytest.raises(ValueError):
    algebra.add(A, [[1, 2]])
  with pytest.raises(ValueError):
    algebra.add(A, [[1], [2]])


def test_product():
  assert algebra.product(A, B) == [[10, 5], [20, 11]]
  assert algebra.product([[1, 2, 3]], [[1], [2], [3]]) == [[14]]
  with pytest.raises(ValueError):
    algebra.product(A, [[1, 2]])


def test_identity():
  assert algebra.identity(2) == [[1, 0], [0, 1]]
  assert algebra.product(A, algebra.identity(2)) == [[1, 2], [3, 4]]


def test_power():
  assert algebra.power([[1, 1], [1, 0]], 10) == [[89, 55], [55, 34]]
  assert algebra.power(A, 0) == [[1, 0], [0, 1]]
  assert algebra.power(A, 1) == [[1, 2], [3, 4]]


def test_minor():
  grid = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
  assert algebra.minor(grid, 0, 1) == [[4, 6], [7, 9]]
  assert algebra.minor(grid, 2, 2) == [[1, 2], [4, 5]]


def test_determinant():
  assert algebra.determinant(A) == -2
  assert algebra.determinant([[2, 0, 1], [1, 3, 2], [1, 1, 4]]) == 18
  assert algebra.determinant([[7]]) == 7


def test_trace():
  assert algebra.trace(A) == 5
  assert algebra.trace([[1, 2, 3], [4, 5, 6]]) == 6
