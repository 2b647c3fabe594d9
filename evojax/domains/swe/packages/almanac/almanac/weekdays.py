"""Day numbers and weekdays; Monday is 0."""

from almanac import months

NAMES = ('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')


def number(date):
  """Return the days from the start of the year 1 to a date, which counts."""
  year, month, day = date
  past = year - 1
  leaps = past // 4 - past // 100 + past // 400
  return past * 365 + leaps + months.day_of_year(year, month, day)


def weekday(date):
  """Return 0 for a Monday, 6 for a Sunday."""
  return (number(date) - 1) % 7


def days_between(first, second):
  """Return the days from the first date to the second."""
  return number(second) - number(first)


def next_weekday(date, name):
  """Return how many days it is until the next such weekday, 1 to 7."""
  wait = (NAMES.index(name) - weekday(date)) % 7
  if wait == 0:
    wait = 7
  return wait


def is_weekend(date):
  """Tell if a date is a Saturday or a Sunday."""
  return weekday(date) >= 5
