"""Completions that cannot score whatever they know: cut, or not readable."""

LAYER = 'behaviour'
UNIT = 'fraction'
# arXiv:2606.03108: a format gate or a length budget that does not fit.
WARN = {'truncated': ('>', 0.15), 'format_failures': ('>', 0.30)}
CRITICAL = {}


def measure(e):
  """truncated: cut at the limit; format_failures: unsolved, without an answer.

  A grader may also accept answers that are not in the format.
  """
  if not e.valid.any():
    return {}
  return {
      'truncated': float(e.truncated[e.valid].mean()),
      'format_failures': float((~e.format_ok & ~e.outcome)[e.valid].mean()),
  }
