"""Months and years."""

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
  """Tell if a year has a 29th of February."""
  if year % 100 == 0:
    return year % 400 == 0
  return year % 4 == 0


def days_in_month(year, month):
  """Return the days of a month, 1 to 12.

  Raises:
    ValueError: If there is no such month.
  """
  if month < 1 or month > 12:
    raise ValueError(f'no month {month}')
  if month == 2 and is_leap(year):
    return 29
  return LENGTHS[month - 1]


def day_of_year(year, month, day):
  """Return the number of a day in its year; the first is 1."""
  count = day
  for earlier in range(1, month):
    count += days_in_month(year, earlier)
  return count


def add_months(date, count):
  """Return the date some months later; a day too late becomes the last."""
  year, month, day = date
  index = year * 12 + month - 1 + count
  year, month = index // 12, index % 12 + 1
  return year, month, min(day, days_in_month(year, month))
