from phrases import names


def test_title():
  assert names.title('the lord of the rings') == 'The Lord of the Rings'
  assert names.title('WAR AND PEACE') == 'War and Peace'
  assert names.title('to be or not') == 'To Be or Not'


def test_slug():
  assert names.slug('Hello, World!') == 'hello-world'
  assert names.slug('  a -- b  ', sign='_') == 'a_b'
  assert names.slug('...') == ''


def test_initials():
  assert names.initials('grace hopper') == 'GH'
  assert names.initials('Jean-Luc van der Berg') == 'JLV'
  assert names.initials('Ada Byron King', limit=1) == 'A'


def test_listing():
  assert names.listing(['a', 'b', 'c']) == 'a, b and c'
  assert names.listing(['a', 'b'], last='or') == 'a or b'
  assert names.listing(['a']) == 'a'
  assert names.listing([]) == ''


def test_plural():
  assert names.plural(1, 'cat') == '1 cat'
  assert names.plural(0, 'cat') == '0 cats'
  assert names.plural(3, 'box', 'boxes') == '3 boxes'
