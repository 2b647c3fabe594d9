from phrases import alike


def test_distance():
  assert alike.distance('kitten', 'sitting') == 3
  assert alike.distance('', 'abc') == 3
  assert alike.distance('same', 'same') == 0


def test_distance_of_letters_left_out():
  assert alike.distance('house', 'hose') == 1
  assert alike.distance('abcd', 'bcda') == 2


def test_closest():
  known = ['apple', 'apply', 'maple']
  assert alike.closest('appel', known) == 'apple'
  assert alike.closest('aple', known, limit=1) == 'apple'
  assert alike.closest('orange', known) is None


def test_common_start():
  assert alike.common_start(['interval', 'internet', 'into']) == 'int'
  assert alike.common_start(['a', 'b']) == ''
  assert alike.common_start(['only']) == 'only'


def test_pairs():
  assert alike.pairs('banana') == ['an', 'an', 'ba', 'na', 'na']
  assert alike.pairs('a') == []


def test_score():
  assert alike.score('night', 'nacht') == 25
  assert alike.score('banana', 'banana') == 100
  assert alike.score('a', 'b') == 0
  assert alike.score('', '') == 100
