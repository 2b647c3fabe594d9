"""Working days."""

from almanac import weekdays


def working_days(first, last, holidays=()):
  """Return the working days from a Monday's number on; both ends count.

  Args:
    first: Number of a day, see `weekdays.number`.
    last: Number of a day.
    holidays: Numbers of days on which nobody works.
  """
  count = 0
  for day in range(first, last + 1):
    if (day - 1) % 7 < 5 and day not in holidays:
      count += 1
  return count


def due(date, days, holidays=()):
  """Return the day number on which a task of some working days is done.

  The first working day is the day after the date.
  """
  day = weekdays.number(date)
  left = days
  while left > 0:
    day += 1
    left -= working_days(day, day, holidays)
  return day


def share(date, other, holidays=()):
  """Return which part of the days between two dates is worked, in percent."""
  first, last = weekdays.number(date), weekdays.number(other)
  days = last - first + 1
  if days <= 0:
    return 0
  return round(100 * working_days(first, last, holidays) / days)
