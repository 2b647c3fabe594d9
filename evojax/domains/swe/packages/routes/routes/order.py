"""Orders in which everything comes after what it needs."""


def order(needs):
  """Return all names so that each comes after what it needs.

  Of those that could come next, the first by name does.

  Args:
    needs: Name -> names that it needs.

  Raises:
    ValueError: If some need each other.
  """
  left = {name: set(found) for name, found in needs.items()}
  for found in needs.values():
    for name in found:
      left.setdefault(name, set())
  done = []
  while left:
    ready = sorted(name for name, found in left.items() if not found)
    if not ready:
      raise ValueError(f'these need each other: {sorted(left)}')
    name = ready[0]
    del left[name]
    done.append(name)
    for found in left.values():
      found.discard(name)
  return done


def layers(needs):
  """Return lists of names that can be done at the same time."""
  depth = {}
  for name in order(needs):
    depth[name] = 1 + max((depth[n] for n in needs.get(name, ())), default=0)
  count = max(depth.values(), default=0)
  return [
      sorted(name for name in depth if depth[name] == layer)
      for layer in range(1, count + 1)
  ]


def finish(needs, seconds):
  """Return when each is done, if each begins as soon as it can."""
  done = {}
  for name in order(needs):
    begin = max((done[n] for n in needs.get(name, ())), default=0)
    done[name] = begin + seconds.get(name, 1)
  return done
