"""Numbers in other bases, and bits."""

DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz'


def write(number, base=2, width=1):
  """Return a whole number in a base, with zeros up to a width.

  Raises:
    ValueError: If there is no such base.
  """
  if base < 2 or base > 36:
    raise ValueError(f'no base {base}')
  minus, number = number < 0, abs(number)
  text = ''
  while number > 0:
    number, rest = divmod(number, base)
    text = DIGITS[rest] + text
  text = text.rjust(width, '0')
  return '-' + text if minus else text


def read(text, base=2):
  """Return the number of a text.

  Raises:
    ValueError: If a digit does not belong to the base.
  """
  number = 0
  for digit in text.lower():
    value = DIGITS.index(digit)
    if value >= base:
      raise ValueError(f'{digit} is no digit of base {base}')
    number = number * base + value
  return number


def ones(number):
  """Return how many bits of a number are 1."""
  count = 0
  while number:
    count += number & 1
    number >>= 1
  return count


def bits(number):
  """Return the places of the bits that are 1, the lowest first."""
  return [i for i in range(number.bit_length()) if number >> i & 1]


def gray(number):
  """Return the Gray code: neighbours differ in one bit."""
  return number ^ (number >> 1)


def differ(one, other):
  """Return in how many bits two numbers differ."""
  return ones(one ^ other)
