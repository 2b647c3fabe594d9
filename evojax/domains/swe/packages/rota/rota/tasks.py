"""Shares tasks among people."""


def share(tasks, people):
  """Give each task, the longest first, to who has the least to do.

  Args:
    tasks: Name -> minutes.
    people: Names; of those with equally little the first gets a task.

  Returns:
    Name of a person -> names of tasks.
  """
  load = dict.fromkeys(people, 0)
  plan = {person: [] for person in people}
  for task in sorted(tasks, key=lambda name: (-tasks[name], name)):
    person = min(people, key=lambda name: load[name])
    load[person] += tasks[task]
    plan[person].append(task)
  return plan


def longest(plan, tasks):
  """Return the most minutes that anybody has."""
  return max(sum(tasks[t] for t in found) for found in plan.values())


def pick(offers):
  """Return as many (start, end, name) offers as fit one after the other.

  The one that ends first comes first.
  """
  chosen = []
  free = 0
  for start, end, name in sorted(offers, key=lambda o: (o[1], o[0])):
    if start >= free:
      chosen.append(name)
      free = end
  return chosen


def late(tasks, start=0):
  """Return the tasks that end after their time, in the order of that time.

  Args:
    tasks: Name -> (minutes, minute at which it is to be done).
    start: When the first one begins.
  """
  found = []
  now = start
  for name in sorted(tasks, key=lambda n: (tasks[n][1], n)):
    minutes, end = tasks[name]
    now += minutes
    if now > end:
      found.append(name)
  return found
