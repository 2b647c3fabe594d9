"""tested_edit: 1 where an agent ran tests after its last edit.

Nothing without an edit: tests alone, again and again, are an Echo Trap
(EvoTrainer v4, arXiv:2606.03108: edit then test).
"""

import numpy as np


def parts(e):
  edited = e.first_edit_turn >= 0
  return {'tested_edit': (edited & e.tested_after_edit).astype(np.float32)}
