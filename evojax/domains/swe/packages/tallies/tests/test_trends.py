from tallies import trends


def test_moving():
  assert trends.moving([1, 2, 3, 6]) == [2.0, 11 / 3]
  assert trends.moving([4, 6, 8], width=2) == [5.0, 7.0]
  assert trends.moving([1, 2]) == []


def test_changes():
  assert trends.changes([1, 4, 9]) == [3, 5]
  assert trends.changes([1, 4, 9, 16], gap=2) == [8, 12]
  assert trends.changes([7]) == []


def test_running():
  assert trends.running([1, 2, 3]) == [1, 3, 6]
  assert trends.running([]) == []


def test_smooth():
  assert trends.smooth([4, 8, 0]) == [4.0, 6.0, 3.0]
  assert trends.smooth([0, 8], share=0.25) == [0.0, 2.0]


def test_slope():
  assert trends.slope([1, 3, 5]) == 2.0
  assert trends.slope([4, 4, 4]) == 0.0
  assert trends.slope([3]) == 0.0
  assert trends.slope([0, 0, 6]) == 3.0


def test_longest_rise():
  assert trends.longest_rise([1, 2, 3, 1, 2]) == 2
  assert trends.longest_rise([3, 3, 3]) == 0
  assert trends.longest_rise([5, 1, 2, 4, 8]) == 3


def test_peaks():
  assert trends.peaks([1, 3, 2, 5, 4]) == [1, 3]
  assert trends.peaks([1, 2, 3]) == []
  assert trends.peaks([1, 2, 2, 1]) == []
