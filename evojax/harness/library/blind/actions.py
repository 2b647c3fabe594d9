"""Raw action codes: how often each tool was called."""

import numpy as np

LAYER = 'behaviour'
UNIT = 'calls/completion'
WARN = {}
CRITICAL = {}


def measure(e):
  """action_<code>: calls per completion; no code, no entry."""
  called = e.actions[e.valid]
  codes, counts = np.unique(called[called >= 0], return_counts=True)
  return {
      f'action_{code}': float(count / e.valid.sum())
      for code, count in zip(codes, counts, strict=True)
  }
