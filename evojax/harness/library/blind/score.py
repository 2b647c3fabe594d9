"""Share of the completions that are solved."""

LAYER = 'score'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """outcome: the share of completions that is solved."""
  if not e.valid.any():
    return {}
  return {'outcome': float(e.outcome[e.valid].mean())}
