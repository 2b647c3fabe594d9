from phrases import lines


def test_wrap():
  text = 'the cat sat on the mat'
  assert lines.wrap(text, 10) == ['the cat', 'sat on the', 'mat']
  assert lines.wrap(text, 11) == ['the cat sat', 'on the mat']
  assert lines.wrap(text) == ['the cat sat on the', 'mat']


def test_wrap_long_words():
  assert lines.wrap('incomprehensible to me', 5) == [
      'incomprehensible',
      'to me',
  ]
  assert lines.wrap('   ', 5) == []


def test_shorten():
  assert lines.shorten('a long story', 8) == 'a lon...'
  assert lines.shorten('a long story', 12) == 'a long story'
  assert lines.shorten('a long story', 7, mark='!') == 'a long!'


def test_even():
  assert lines.even('a b c', 8) == 'a   b  c'
  assert lines.even('one two', 9) == 'one   two'
  assert lines.even('alone', 9) == 'alone'


def test_columns():
  pairs = [('name', 'Ada'), ('born', '1815'), ('no', '')]
  assert lines.columns(pairs) == ['name  Ada', 'born  1815', 'no']
  assert lines.columns([('x', 'y')], gap=1) == ['x y']
  assert lines.columns([]) == []
