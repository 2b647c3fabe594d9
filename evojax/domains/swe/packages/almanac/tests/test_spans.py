from almanac import spans


def test_length():
  assert spans.length((3, 7)) == 5
  assert spans.length((4, 4)) == 1


def test_overlap():
  assert spans.overlap((1, 10), (5, 20)) == 6
  assert spans.overlap((1, 4), (4, 6)) == 1
  assert spans.overlap((1, 3), (5, 9)) == 0


def test_merge():
  assert spans.merge([(5, 8), (1, 3)]) == [(1, 3), (5, 8)]
  assert spans.merge([(1, 9), (2, 4)]) == [(1, 9)]
  assert spans.merge([]) == []


def test_merge_spans_that_touch():
  assert spans.merge([(1, 3), (4, 6)]) == [(1, 6)]
  assert spans.merge([(4, 6), (1, 2)]) == [(1, 2), (4, 6)]


def test_gaps():
  assert spans.gaps([(3, 4)], (1, 6)) == [(1, 2), (5, 6)]
  assert spans.gaps([(1, 6)], (1, 6)) == []
  assert spans.gaps([], (2, 2)) == [(2, 2)]


def test_gaps_at_the_ends():
  assert spans.gaps([(0, 3), (6, 9)], (2, 7)) == [(4, 5)]
  assert spans.gaps([(2, 5)], (1, 5)) == [(1, 1)]
