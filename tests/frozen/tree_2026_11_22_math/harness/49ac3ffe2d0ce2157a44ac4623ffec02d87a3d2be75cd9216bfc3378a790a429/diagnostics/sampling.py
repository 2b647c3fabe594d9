"""Certainty of the sampled tokens, and agreement of sampler and trainer.

mean_logprob near 0: every token is certain and no two completions of a group
differ (exploration collapse). It is that of completions which solve nothing:
whoever is certain of what is right has learned it. logprob_gap: sampler and
trainer disagree, the first sign of wrong weights or a wrong template.
"""

import numpy as np

LAYER = 'behaviour'
UNIT = 'nats/token'
WARN = {'mean_logprob': ('>', -0.1)}  # arXiv:2606.03108.
CRITICAL = {'mean_logprob': ('>', -0.05)}


def measure(e):
  """mean_logprob, and logprob_gap where rows have entered an update."""
  found = {}
  unsolved = e.valid & ~e.outcome
  if unsolved.any():
    found['mean_logprob'] = float(e.mean_logprob[unsolved].mean())
  gap = e.sampler_trainer_logprob_gap
  updated = e.valid & np.isfinite(gap)
  if updated.any():
    found['logprob_gap'] = float(gap[updated].mean())
  return found
