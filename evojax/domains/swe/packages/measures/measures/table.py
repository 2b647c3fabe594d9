"""Units, their kinds, and what one of each is worth in the kind's base."""

# Name -> (kind, worth in the base of its kind).
UNITS = {
    'mm': ('length', 0.001),
    'cm': ('length', 0.01),
    'm': ('length', 1.0),
    'km': ('length', 1000.0),
    'g': ('mass', 1.0),
    'kg': ('mass', 1000.0),
    't': ('mass', 1000000.0),
    's': ('time', 1.0),
    'min': ('time', 60.0),
    'h': ('time', 3600.0),
    'd': ('time', 86400.0),
}


def find(name):
  """Return (kind, worth) of a unit; capitals do not matter.

  Raises:
    KeyError: If there is no such unit.
  """
  key = name.strip().lower()
  if key not in UNITS:
    raise KeyError(f'no unit {name!r}')
  return UNITS[key]


def same_kind(first, second):
  """Tell if two units measure the same thing."""
  return find(first)[0] == find(second)[0]


def units_of(kind):
  """Return the units of a kind, the smallest first."""
  found = [name for name, (other, _) in UNITS.items() if other == kind]
  return sorted(found, key=lambda name: UNITS[name][1])
