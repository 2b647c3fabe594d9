"""Completions that cannot score whatever they know: cut, or not readable."""

LAYER = 'behaviour'
UNIT = 'fraction'
# arXiv:2606.03108: a format gate or a length budget that does not fit.
WARN = {'truncated': ('>', 0.15), 'format_failures': ('>', 0.30)}
CRITICAL = {}


def measure(e):
  """truncated: cut at the limit; format_failures: no answer as asked for."""
  if not e.valid.any():
    return {}
  return {
      'truncated': float(e.truncated[e.valid].mean()),
      'format_failures': float(1 - e.format_ok[e.valid].mean()),
  }
