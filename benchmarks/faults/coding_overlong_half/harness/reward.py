"""A punishment of overlong completions that begins at half the limit."""

import numpy as np


def _overlong(e):
  """0 up to half the limit, -1 from 9/16 of it on, float32 [P, G]."""
  used = e.n_tokens.astype(np.float32) / np.float32(e.max_tokens)
  return -np.clip((used - np.float32(0.5)) * 16, 0, 1).astype(np.float32)


def parts(e):
  return {'outcome': e.outcome.astype(np.float32), 'overlong': _overlong(e)}
