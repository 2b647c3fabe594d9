"""Digits that check the others."""


def luhn(digits):
  """Tell if the last digit fits the others, as on bank cards."""
  total = 0
  for place, digit in enumerate(reversed(digits)):
    value = int(digit)
    if place % 2 == 1:
      value *= 2
      if value > 9:
        value -= 9
    total += value
  return total % 10 == 0


def luhn_digit(digits):
  """Return the digit that makes a number fit."""
  for digit in '0123456789':
    if luhn(digits + digit):
      return digit
  raise AssertionError('one of ten fits')


def isbn(code):
  """Tell if a book number of ten signs is right; signs between do not count."""
  signs = [sign for sign in code.upper() if sign.isalnum()]
  if len(signs) != 10:
    return False
  total = 0
  for place, sign in enumerate(signs):
    value = 10 if sign == 'X' and place == 9 else int(sign)
    total += (10 - place) * value
  return total % 11 == 0


def parity(bits, even=True):
  """Return bits with one more, so that the ones are even or odd."""
  odd = bits.count('1') % 2 == 1
  return bits + ('1' if odd == even else '0')


def checksum(text, size=256):
  """Return a number that changes when letters change or swap places."""
  first, second = 1, 0
  for letter in text:
    first = (first + ord(letter)) % size
    second = (second + first) % size
  return second * size + first
