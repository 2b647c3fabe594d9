"""A sheet of cells: each is a formula that may name other cells."""

from reckon import tokens
from reckon import value


class Sheet:
  """Cells by name."""

  def __init__(self):
    """Make an empty sheet."""
    self.cells = {}

  def put(self, name, formula):
    """Write a formula into a cell; an empty one clears it."""
    if formula.strip():
      self.cells[name] = formula
    else:
      self.cells.pop(name, None)

  def get(self, name, above=()):
    """Return the value of a cell; an empty one is 0.

    Raises:
      ValueError: If cells need each other.
    """
    if name in above:
      raise ValueError(f'{name} needs itself')
    formula = self.cells.get(name)
    if formula is None:
      return 0.0
    known = {}
    for other in tokens.names(formula):
      known[other] = self.get(other, (*above, name))
    return value.reckon(formula, known)

  def users(self, name):
    """Return the cells whose formulas name a cell."""
    return sorted(
        other
        for other, formula in self.cells.items()
        if name in tokens.names(formula)
    )
