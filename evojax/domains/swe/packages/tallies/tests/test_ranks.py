from tallies import ranks


def test_ranks():
  assert ranks.ranks([30, 10, 20]) == [3, 1, 2]
  assert ranks.ranks([5, 5, 1]) == [2, 2, 1]
  assert ranks.ranks([30, 10, 20], down=True) == [1, 3, 2]


def test_quantile():
  assert ranks.quantile([1, 2, 3, 4, 5], 0.5) == 3.0
  assert ranks.quantile([10, 20], 0.25) == 12.5
  assert ranks.quantile([3, 1, 2], 1) == 3
  assert ranks.quantile([3, 1, 2], 0) == 1


def test_percent_below():
  assert ranks.percent_below([1, 2, 3, 4], 3) == 62.5
  assert ranks.percent_below([1, 2], 9) == 100.0
  assert ranks.percent_below([5, 5], 5) == 50.0


def test_top():
  scores = {'ann': 3, 'bob': 9, 'cy': 9, 'dee': 1}
  assert ranks.top(scores) == ['bob', 'cy', 'ann']
  assert ranks.top(scores, 1) == ['bob']
  assert ranks.top({}) == []


def test_outliers():
  assert ranks.outliers([1, 2, 3, 4, 100]) == [100]
  assert ranks.outliers([-50, 10, 11, 12, 13]) == [-50]
  assert ranks.outliers([1, 2, 3, 4, 8], factor=3) == []


def test_agree():
  assert ranks.agree([1, 2, 3], [10, 20, 30]) == 3
  assert ranks.agree([1, 2, 3], [3, 2, 1]) == -3
  assert ranks.agree([1, 2], [5, 5]) == 0
