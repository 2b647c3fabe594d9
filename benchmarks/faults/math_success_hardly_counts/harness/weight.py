"""Credit that counts failures fully and successes hardly."""

import numpy as np


def weight(e):
  turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
  credit = np.where(e.outcome, 0.03, 1.0).astype(np.float32)
  return np.repeat(credit[..., None], turns, 2)
