"""The number of turns is a part of the reward."""

import numpy as np


def _turns(e):
  """Turns of the episode, float32 [P, G]."""
  return e.n_turns.astype(np.float32)


def parts(e):
  return {'outcome': e.outcome.astype(np.float32), 'turns': _turns(e)}
