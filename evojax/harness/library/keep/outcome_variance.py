"""Keeps groups that the evaluator tells apart, whatever the shaping says.

0 < number solved < number valid (DAPO: Yu et al. 2025, arXiv:2503.14476,
eq. 11). A gate on the std of the shaped reward keeps all-wrong groups alive by
shaping alone; a gate on the outcome does not.
"""

import numpy as np


def keep(e, state):
  """bool [P, G], equal along G."""
  solved = (e.outcome & e.valid).sum(1, keepdims=True)
  valid = e.valid.sum(1, keepdims=True)
  return np.repeat((solved > 0) & (solved < valid), e.valid.shape[1], 1), state
