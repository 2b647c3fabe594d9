"""searched_first: 1 where an agent looked at files before its first edit.

Nothing without an edit, so that looking alone pays nothing (EvoTrainer v4,
arXiv:2606.03108: search before edit).
"""

import numpy as np


def parts(e):
  return {'searched_first': e.searched_before_edit.astype(np.float32)}
