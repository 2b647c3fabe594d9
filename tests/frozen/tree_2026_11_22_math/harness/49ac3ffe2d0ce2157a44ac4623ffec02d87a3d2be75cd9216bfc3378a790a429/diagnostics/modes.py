"""Modes of solving problems: the share and the outcome of each.

A gain can be a shift towards a mode that was there, or a mode that got better;
the shares and the outcome within each tell the two apart.
"""

LAYER = 'behaviour'
UNIT = 'fraction'
WARN = {}
CRITICAL = {}


def measure(e):
  """share_<mode> and, where a mode occurs, outcome_<mode>."""
  found = {}
  if not e.valid.any():
    return found
  for name, code in sorted(e.codes['mode'].items()):
    there = e.valid & (e.mode == code)
    found[f'share_{name}'] = float(there.sum() / e.valid.sum())
    if there.any():
      found[f'outcome_{name}'] = float(e.outcome[there].mean())
  return found
