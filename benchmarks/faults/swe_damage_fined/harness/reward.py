"""Fines edits after which the problem is not solved."""

import numpy as np


def _damage(e):
  """-1 where files were edited in vain, float32 [P, G]."""
  return -((e.files_edited > 0) & ~e.outcome).astype(np.float32)


def parts(e):
  return {'outcome': e.outcome.astype(np.float32), 'damage': _damage(e)}
