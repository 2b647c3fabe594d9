"""Length of completions."""

LAYER = 'behaviour'
UNIT = 'tokens'
WARN = {}
CRITICAL = {}


def measure(e):
  """n_tokens, and that of what is solved and of what is not."""
  masks = {
      'n_tokens': e.valid,
      'n_tokens_solved': e.valid & e.outcome,
      'n_tokens_unsolved': e.valid & ~e.outcome,
  }
  return {
      name: float(e.n_tokens[mask].mean())
      for name, mask in masks.items()
      if mask.any()
  }
