"""Certainty of the policy about its samples: minus an entropy estimate."""

LAYER = 'behaviour'
UNIT = 'nats/token'
WARN = {}
CRITICAL = {}


def measure(e):
  """mean_logprob: the mean."""
  if not e.valid.any():
    return {}
  return {'mean_logprob': float(e.mean_logprob[e.valid].mean())}
