"""partial: the evaluator's partial credit, 0..1; the outcome where none is.

A share of passed tests instead of all or nothing gives groups that never solve
a task something to learn from; it can also pay for stopping half-way, so it
demands a trial (EvoTrainer v3, arXiv:2606.03108).
"""

import numpy as np


def parts(e):
  return {'partial': e.partial.astype(np.float32)}
