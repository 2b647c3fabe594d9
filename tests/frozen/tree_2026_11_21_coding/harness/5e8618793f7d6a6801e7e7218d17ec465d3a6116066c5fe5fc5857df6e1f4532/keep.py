"""Drops groups that are nearly always or nearly never solved.

The variance p (1 - p) of the outcome bounds what a group's gradient can teach
and peaks at p = 1/2 (Bae et al. 2025, arXiv:2504.03380, online difficulty
filtering: a balanced band around it). Groups whose solve rate lies in
[0.1, 0.9] stay.
"""

import numpy as np

LOW, HIGH = 0.1, 0.9


def keep(e, state):
  """bool [P, G], equal along G."""
  valid = np.maximum(e.valid.sum(1, keepdims=True), 1)
  rate = (e.outcome & e.valid).sum(1, keepdims=True) / valid
  return np.repeat((rate >= LOW) & (rate <= HIGH), e.valid.shape[1], 1), state
