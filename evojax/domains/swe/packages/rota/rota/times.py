"""Times of the day as minutes since midnight."""

DAY = 24 * 60


def read(text):
  """Return the minutes of a time such as 9:30.

  Raises:
    ValueError: If there is no such time.
  """
  hours, _, minutes = text.partition(':')
  hours, minutes = int(hours), int(minutes or 0)
  if not 0 <= hours < 24 or not 0 <= minutes < 60:
    raise ValueError(f'{text} is no time')
  return hours * 60 + minutes


def write(minutes):
  """Return minutes as a time; after midnight it begins anew."""
  hours, rest = divmod(minutes % DAY, 60)
  return f'{hours:02d}:{rest:02d}'


def until(start, end):
  """Return the minutes from one time to another, over midnight if need be."""
  return (end - start) % DAY


def round_up(minutes, step=15):
  """Return the next time on the grid of some minutes."""
  return -(-minutes // step) * step


def repeats(start, every, end):
  """Return all times from the start on, the end not included."""
  times = []
  while start < end:
    times.append(start)
    start += every
  return times
