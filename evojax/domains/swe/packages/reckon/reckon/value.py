"""Values of formulas."""

from reckon import tree as trees


def value(tree, known=None):
  """Return the value of a tree.

  Args:
    tree: See `tree.parse`.
    known: Name -> number.

  Raises:
    KeyError: If a name is not known.
    ZeroDivisionError: If something is divided by nothing.
  """
  if isinstance(tree, float):
    return tree
  if isinstance(tree, str):
    return (known or {})[tree]
  sign, left, right = tree
  one, other = value(left, known), value(right, known)
  if sign == '+':
    return one + other
  if sign == '-':
    return one - other
  if sign == '*':
    return one * other
  if sign == '/':
    return one / other
  return one**other


def reckon(text, known=None, digits=6):
  """Return the rounded value of a formula."""
  return round(value(trees.parse(text), known), digits)


def table(text, name, first, last):
  """Return (number, value) pairs of a formula of one name."""
  return [
      (number, reckon(text, {name: float(number)}))
      for number in range(first, last + 1)
  ]
