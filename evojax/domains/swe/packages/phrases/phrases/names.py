"""Names and titles."""

SMALL = ('a', 'an', 'and', 'in', 'of', 'or', 'the', 'to')


def title(text):
  """Return a title with capitals, but for small words that do not begin it."""
  words = text.lower().split()
  found = []
  for place, word in enumerate(words):
    if place > 0 and word in SMALL:
      found.append(word)
    else:
      found.append(word.capitalize())
  return ' '.join(found)


def slug(text, sign='-'):
  """Return a text as part of an address: letters and digits, and one sign."""
  found = ''
  for letter in text.lower():
    if letter.isalnum():
      found += letter
    elif found and not found.endswith(sign):
      found += sign
  return found.strip(sign)


def initials(name, limit=3):
  """Return the first letters of a name, at most so many."""
  letters = [part[0].upper() for part in name.replace('-', ' ').split()]
  return ''.join(letters[:limit])


def listing(items, last='and'):
  """Return items as people list them: one, two and three."""
  if not items:
    return ''
  if len(items) == 1:
    return items[0]
  return f'{", ".join(items[:-1])} {last} {items[-1]}'


def plural(count, one, many=None):
  """Return a count with its noun: 1 box, 2 boxes."""
  if count == 1:
    return f'{count} {one}'
  return f'{count} {many or one + "s"}'
