from signets import letters


def test_shift():
  assert letters.shift('abc', 3) == 'def'
  assert letters.shift('Xyz!', 4) == 'Bcd!'
  assert letters.shift('def', -3) == 'abc'


def test_shift_all_the_way():
  assert letters.shift('hello', 26) == 'hello'
  assert letters.shift('A-Z', 1) == 'B-A'


def test_mirror():
  assert letters.mirror('abc xyz') == 'zyx cba'
  assert letters.mirror('Wizard') == 'draziw'
  assert letters.mirror('m1') == 'n1'


def test_by_key():
  assert letters.by_key('attack at dawn', 'lemon') == 'lxfopv ef rnhr'
  assert (
      letters.by_key('lxfopv ef rnhr', 'lemon', back=True) == 'attack at dawn'
  )
  assert letters.by_key('aaaa', 'abc') == 'abca'


def test_counts():
  assert letters.counts('Hello World') == 'lod'
  assert letters.counts('banana', limit=1) == 'a'
  assert letters.counts('12') == ''


def test_guess():
  assert letters.guess('phhw ph khuh') == 23
  assert letters.guess('zzz', common='a') == 1
  assert letters.guess('eel') == 0
