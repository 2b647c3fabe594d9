"""rare_success: solved, times the share of its group that did not solve it.

A lone success in a group pays most; solving what everyone solves pays nothing
(unlikeliness and inverse-success rewards: He et al. 2025, arXiv:2506.02355,
against the sharpening of what is likely anyway).
"""

import numpy as np


def _rare_success(e):
  """float32 [P, G], 0..1."""
  solved = e.outcome & e.valid
  valid = np.maximum(e.valid.sum(1, keepdims=True), 1)
  missed = 1 - solved.sum(1, keepdims=True) / valid
  return (solved * missed).astype(np.float32)


def parts(e):
  return {'rare_success': _rare_success(e)}
