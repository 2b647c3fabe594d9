"""How much is solved of the problems of each level."""

import numpy as np

LAYER = 'score'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """outcome_level_<n>: share solved of what is of that level."""
  return {
      f'outcome_level_{level}': float(
          e.outcome[e.valid & (e.difficulty == level)].mean()
      )
      for level in np.unique(e.difficulty[e.valid])
  }
