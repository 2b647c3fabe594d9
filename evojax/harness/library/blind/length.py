"""Length of completions."""

LAYER = 'behaviour'
UNIT = 'tokens'
WARN = {}
CRITICAL = {}


def measure(e):
  """n_tokens: the mean."""
  return (
      {'n_tokens': float(e.n_tokens[e.valid].mean())} if e.valid.any() else {}
  )
