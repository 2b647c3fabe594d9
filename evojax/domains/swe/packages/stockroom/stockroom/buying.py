"""When to buy more, and how much."""

import math


def reorder_point(daily, days, safety=0):
  """Return the stock at which to buy: what is used until it arrives."""
  return math.ceil(daily * days) + safety


def quantity(count, target, pack=1):
  """Return how many to buy to reach a target, in whole packs."""
  if count >= target:
    return 0
  return math.ceil((target - count) / pack) * pack


def plan(stock, rules):
  """Return what to buy, by name.

  Args:
    stock: A `Stock`.
    rules: Name -> (reorder point, target, pack).
  """
  wanted = {}
  for name, (point, target, pack) in sorted(rules.items()):
    count = stock.count(name)
    if count <= point:
      wanted[name] = quantity(count, target, pack)
  return {name: number for name, number in wanted.items() if number}


def days_left(count, used):
  """Return how many whole days a stock lasts, by what recent days used.

  Returns:
    None where nothing is used.
  """
  if not used or sum(used) == 0:
    return None
  return int(count * len(used) / sum(used))
