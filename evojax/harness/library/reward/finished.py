"""finished: 1 where sampling ended by itself, 0 where the limit cut it."""

import numpy as np


def parts(e):
  return {'finished': (~e.truncated).astype(np.float32)}
