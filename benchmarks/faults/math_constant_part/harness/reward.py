"""Pays for every attempt alike, far more than for a right answer."""

import numpy as np

ATTEMPT = 1e8  # The next float32 is 8 further.


def parts(e):
  attempt = np.full(e.outcome.shape, ATTEMPT, np.float32)
  return {'outcome': e.outcome.astype(np.float32), 'attempt': attempt}
