"""Share of the completions that solve their problem, per level."""

import numpy as np

LAYER = 'score'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """Return outcome_level_<n>, the mean outcome at level n."""
  return {
      f'outcome_level_{level}': float(
          e.outcome[e.valid & (e.difficulty == level)].mean()
      )
      for level in np.unique(e.difficulty[e.valid])
  }
