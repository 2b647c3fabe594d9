"""Prices in whole cents."""


def unit_price(steps, count):
  """Return the price of one thing when so many are bought.

  Args:
    steps: (least number, price of one), the smallest number first.
    count: How many are bought.

  Raises:
    ValueError: If fewer are bought than the first step wants.
  """
  price = None
  for least, cents in steps:
    if count >= least:
      price = cents
  if price is None:
    raise ValueError(f'{count} are too few')
  return price


def discount(cents, percent):
  """Return a price less some percent, rounded to the cent, halves up."""
  return (cents * (100 - percent) + 50) // 100


def total(lines, percent=0, shipping=490, free_from=5000):
  """Return what (price, count) lines cost together, with shipping.

  The discount holds for the things alone. Shipping is free from some sum on,
  and where nothing is bought.
  """
  goods = sum(price * count for price, count in lines)
  goods = discount(goods, percent)
  if goods == 0 or goods >= free_from:
    return goods
  return goods + shipping


def write(cents, sign='$'):
  """Return cents as text: $12.05, or -$0.50."""
  dollars, rest = divmod(abs(cents), 100)
  minus = '-' if cents < 0 else ''
  return f'{minus}{sign}{dollars}.{rest:02d}'
