"""Temperatures: scales that do not share their zero."""

ABSOLUTE_ZERO = -273.15


def to_celsius(number, scale):
  """Return degrees Celsius.

  Args:
    number: Degrees of the scale.
    scale: 'C', 'F' or 'K'.

  Raises:
    ValueError: If there is no such scale, or nothing is that cold.
  """
  if scale == 'C':
    celsius = number
  elif scale == 'F':
    celsius = (number - 32) * 5 / 9
  elif scale == 'K':
    celsius = number + ABSOLUTE_ZERO
  else:
    raise ValueError(f'no scale {scale!r}')
  if celsius < ABSOLUTE_ZERO:
    raise ValueError(f'{number} {scale} is below absolute zero')
  return celsius


def from_celsius(celsius, scale):
  """Return degrees of a scale."""
  if scale == 'F':
    return celsius * 9 / 5 + 32
  if scale == 'K':
    return celsius - ABSOLUTE_ZERO
  return celsius


def between(number, source, target, digits=2):
  """Return degrees of one scale in another, rounded."""
  return round(from_celsius(to_celsius(number, source), target), digits)
