"""Rooms and who has booked them; bookings may follow each other."""


def clashes(one, other):
  """Tell if two (start, end) bookings share a minute."""
  return one[0] < other[1] and other[0] < one[1]


class Room:
  """Bookings of one room, in order."""

  def __init__(self, seats=10):
    """Make a room that nobody has booked."""
    self.seats = seats
    self.bookings = []

  def book(self, start, end):
    """Book the room if it is free; tell if that worked.

    Raises:
      ValueError: If the booking ends before it starts.
    """
    if end <= start:
      raise ValueError(f'{start} to {end} is no time')
    if any(clashes((start, end), other) for other in self.bookings):
      return False
    self.bookings.append((start, end))
    self.bookings.sort()
    return True

  def cancel(self, minute):
    """Remove the booking that holds a minute; return it, or None."""
    for booking in self.bookings:
      if booking[0] <= minute < booking[1]:
        self.bookings.remove(booking)
        return booking
    return None

  def free_from(self, minute, length):
    """Return the earliest start of a free time of some length."""
    start = minute
    for first, last in self.bookings:
      if first - start >= length:
        break
      start = max(start, last)
    return start


def choose(rooms, people, start, end):
  """Return the name of the smallest free room with enough seats, or None."""
  found = []
  for name, room in rooms.items():
    free = not any(clashes((start, end), other) for other in room.bookings)
    if room.seats >= people and free:
      found.append((room.seats, name))
  return min(found)[1] if found else None


def needed(bookings):
  """Return how many rooms all bookings take together."""
  events = []
  for start, end in bookings:
    events += [(start, 1), (end, -1)]
  most = now = 0
  for _, change in sorted(events):
    now += change
    most = max(most, now)
  return most
