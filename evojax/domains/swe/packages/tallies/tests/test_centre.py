import pytest
from tallies import centre


def test_mean():
  assert centre.mean([1, 2, 6]) == 3.0
  assert centre.mean([1, 5], weights=[3, 1]) == 2.0
  with pytest.raises(ValueError):
    centre.mean([])


def test_median():
  assert centre.median([5, 1, 9]) == 5
  assert centre.median([4, 1, 3, 2]) == 2.5
  assert centre.median([7]) == 7


def test_mode():
  assert centre.mode([3, 1, 3, 2]) == 3
  assert centre.mode([2, 1, 2, 1]) == 1


def test_trimmed():
  assert centre.trimmed([100, 2, 4, -50]) == 3.0
  assert centre.trimmed([1, 2, 3], cut=0) == 2.0
  with pytest.raises(ValueError):
    centre.trimmed([1, 2])


def test_variance():
  assert centre.variance([1, 2, 3]) == 1.0
  assert centre.variance([1, 3], sample=False) == 1.0
  assert centre.variance([4]) == 0.0


def test_spread():
  assert centre.spread([3, -2, 8]) == 10
  assert centre.spread([5]) == 0
