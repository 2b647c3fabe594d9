"""overlong_episode: 0 up to three quarters of the limit, down to -1 at it.

Soft overlong punishment (DAPO: Yu et al. 2025, arXiv:2503.14476, eq. 13) of an
episode: the replies of tools count, as they do for the limit. The part
`overlong` of seed harnesses counts sampled tokens only, of which an agent's
episode has few when the limit cuts it.
"""

import numpy as np


def _overlong_episode(e):
  """float32 [P, G], -1..0."""
  replies = np.maximum(e.observation_tokens, 0).sum(-1)  # Padding is -1.
  used = (e.n_tokens + replies).astype(np.float32) / np.float32(e.max_tokens)
  return np.clip((0.75 - used) / 0.25, -1, 0).astype(np.float32)


def parts(e):
  return {'overlong_episode': _overlong_episode(e)}
