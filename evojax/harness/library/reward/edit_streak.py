"""edit_streak: minus the share of calls that are edits right after an edit.

A known trap: it stops blind editing, and editing with it (EvoTrainer v5 and v6,
arXiv:2606.03108: -5.5 and -3.3 points).
"""

import numpy as np


def _edit_streak(e):
  """float32 [P, G], -1..0."""
  edit = e.actions == e.codes['actions']['edit']
  again = (edit[..., 1:] & edit[..., :-1]).sum(-1)
  return -(again / np.maximum(e.n_turns, 1)).astype(np.float32)


def parts(e):
  return {'edit_streak': _edit_streak(e)}
