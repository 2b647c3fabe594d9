"""Quantities are pairs of a number and the name of a unit."""

from measures import table


def parse(text):
  """Return the (number, unit) of a text such as '3 km' or '-1.5h'.

  Raises:
    ValueError: If there is no number, or no unit behind it.
  """
  text = text.strip()
  end = 0
  while end < len(text) and text[end] in '+-.0123456789':
    end += 1
  unit = text[end:].strip()
  if end == 0 or not unit:
    raise ValueError(f'{text!r} is not a number and a unit')
  table.find(unit)
  return float(text[:end]), unit.lower()


def ratio(source, target):
  """Return how many of the target unit one of the source unit is.

  Raises:
    ValueError: If the units do not measure the same thing.
  """
  if not table.same_kind(source, target):
    raise ValueError(f'{source} is not measured in {target}')
  return table.find(source)[1] / table.find(target)[1]


def convert(quantity, target):
  """Return the quantity in another unit."""
  number, unit = quantity
  return number * ratio(unit, target), target


def total(quantities, target):
  """Return the sum of quantities in one unit."""
  amount = 0.0
  for quantity in quantities:
    amount += convert(quantity, target)[0]
  return amount, target


def larger(first, second):
  """Return the larger of two quantities; the first if they are equal."""
  if convert(second, first[1])[0] > first[0]:
    return second
  return first
