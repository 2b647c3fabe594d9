"""Reward parts to start from, in any domain; the overlay holds their weights.

outcome: 1 if solved, else 0.
format: 1 if there is an answer in the required format, else 0.
overlong: 0 up to L_max - L_cache tokens, then linearly down to -1 at L_max;
  soft overlong punishment, DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 13)
  with L_cache = L_max / 4.
length: share of max_tokens used, 0..1; a negative weight pays for brevity.
"""

import numpy as np

OVERLONG_CACHE = 0.25  # L_cache as a share of max_tokens.


def _used(e):
  """Share of the sampling limit, float32 [P, G], 0..1."""
  return e.n_tokens.astype(np.float32) / np.float32(e.max_tokens)


def _overlong(e):
  """float32 [P, G], -1..0."""
  free = np.float32(1 - OVERLONG_CACHE)
  return np.clip((free - _used(e)) / np.float32(OVERLONG_CACHE), -1, 0)


def parts(e):
  """Part -> float32 [P, G], each before its weight.

  Args:
    e: Reads outcome, format_ok (bool [P, G]), n_tokens (int32 [P, G], tokens)
      and max_tokens (L_max, the sampling limit in tokens).
  """
  return {
      'outcome': e.outcome.astype(np.float32),
      'format': e.format_ok.astype(np.float32),
      'overlong': _overlong(e),
      'length': _used(e),
  }
