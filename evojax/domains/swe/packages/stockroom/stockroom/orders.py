"""Orders: {name: count} that a stock fills as far as it can."""


def shortage(stock, order):
  """Return what is missing for an order, by name."""
  missing = {}
  for name, count in order.items():
    lacking = count - stock.count(name)
    if lacking > 0:
      missing[name] = lacking
  return missing


def can_fill(stock, order):
  """Tell if there is enough of everything."""
  return not shortage(stock, order)


def fill(stock, order, partly=False):
  """Take an order's things out of the stock; return what was taken.

  Args:
    stock: A `Stock`.
    order: Name -> count.
    partly: Whether an order may be filled in part; else all or nothing.
  """
  if not partly and not can_fill(stock, order):
    return {}
  taken = {}
  for name, count in order.items():
    given = min(count, stock.count(name))
    if given:
      stock.issue(name, given)
      taken[name] = given
  return taken


def merge(orders):
  """Return one order of many."""
  merged = {}
  for order in orders:
    for name, count in order.items():
      merged[name] = merged.get(name, 0) + count
  return merged
