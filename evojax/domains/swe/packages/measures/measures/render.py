"""Quantities as people write them."""

from measures import quantity
from measures import table


def tidy(number, digits=2):
  """Return a number as text, without zeros that say nothing."""
  text = f'{number:.{digits}f}'
  if '.' in text:
    text = text.rstrip('0').rstrip('.')
  return text


def best(pair):
  """Return the quantity in the largest unit of which there is at least one."""
  number, unit = pair
  kind = table.find(unit)[0]
  choice = pair
  for name in table.units_of(kind):
    changed = quantity.convert((number, unit), name)
    if abs(changed[0]) >= 1:
      choice = changed
  return choice


def write(pair, digits=2):
  """Return a quantity as text, in the unit that suits it best."""
  number, unit = best(pair)
  return f'{tidy(number, digits)} {unit}'


def clock(seconds):
  """Return seconds as hours, minutes and seconds: 3:05:09."""
  minutes, rest = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours > 0:
    return f'{hours}:{minutes:02d}:{rest:02d}'
  return f'{minutes}:{rest:02d}'
