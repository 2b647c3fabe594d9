"""Numbers in words and in Roman figures."""

ONES = (
    'zero one two three four five six seven eight nine ten eleven twelve'
    ' thirteen fourteen fifteen sixteen seventeen eighteen nineteen'
).split()
TENS = 'twenty thirty forty fifty sixty seventy eighty ninety'.split()
ROMAN = (
    (1000, 'M'),
    (900, 'CM'),
    (500, 'D'),
    (400, 'CD'),
    (100, 'C'),
    (90, 'XC'),
    (50, 'L'),
    (40, 'XL'),
    (10, 'X'),
    (9, 'IX'),
    (5, 'V'),
    (4, 'IV'),
    (1, 'I'),
)


def words(number):
  """Return a number from 0 to 9999 in words.

  Raises:
    ValueError: If it is another one.
  """
  if number < 0 or number > 9999:
    raise ValueError(f'{number} is out of range')
  if number < 20:
    return ONES[number]
  if number < 100:
    tens, rest = divmod(number, 10)
    text = TENS[tens - 2]
    return f'{text}-{ONES[rest]}' if rest else text
  size, name = (1000, 'thousand') if number >= 1000 else (100, 'hundred')
  many, rest = divmod(number, size)
  text = f'{words(many)} {name}'
  if rest:
    text += ' and ' if rest < 100 else ' '
    text += words(rest)
  return text


def ordinal(number):
  """Return 1st, 2nd, 3rd, 4th and so on."""
  if number % 100 in (11, 12, 13):
    return f'{number}th'
  ending = {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')
  return f'{number}{ending}'


def roman(number):
  """Return a number in Roman figures."""
  text = ''
  for value, figure in ROMAN:
    while number >= value:
      text += figure
      number -= value
  return text


def from_roman(text):
  """Return the number of Roman figures."""
  values = dict((figure, value) for value, figure in ROMAN)
  total = 0
  for place, figure in enumerate(text):
    value = values[figure]
    if place + 1 < len(text) and values[text[place + 1]] > value:
      total -= value
    else:
      total += value
  return total
