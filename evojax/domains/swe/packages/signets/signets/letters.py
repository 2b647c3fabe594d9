"""Letters shifted and swapped; all else stays as it is."""

ALPHABET = 'abcdefghijklmnopqrstuvwxyz'


def shift(text, places):
  """Return a text whose letters are shifted through the alphabet."""
  found = ''
  for letter in text:
    if letter.lower() in ALPHABET:
      place = (ALPHABET.index(letter.lower()) + places) % 26
      new = ALPHABET[place]
      found += new.upper() if letter.isupper() else new
    else:
      found += letter
  return found


def mirror(text):
  """Return a text in which a is z, b is y and so on."""
  found = ''
  for letter in text.lower():
    if letter in ALPHABET:
      letter = ALPHABET[25 - ALPHABET.index(letter)]
    found += letter
  return found


def by_key(text, key, back=False):
  """Return a text shifted by the letters of a key, over and over."""
  found = ''
  used = 0
  for letter in text:
    if letter.lower() in ALPHABET:
      places = ALPHABET.index(key[used % len(key)])
      letter = shift(letter, -places if back else places)
      used += 1
    found += letter
  return found


def counts(text, limit=3):
  """Return the most frequent letters, equal ones by the alphabet."""
  text = text.lower()
  used = [letter for letter in ALPHABET if letter in text]
  used.sort(key=lambda letter: (-text.count(letter), letter))
  return ''.join(used[:limit])


def guess(text, common='e'):
  """Return the shift after which the most frequent letter is a common one."""
  most = counts(text, 1)
  return (ALPHABET.index(common) - ALPHABET.index(most)) % 26
