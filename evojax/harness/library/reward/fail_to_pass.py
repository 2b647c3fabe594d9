"""fail_to_pass: share of the failing tests that pass now, if none broke.

Groups that solve nothing still tell half a repair from none; what breaks a test
that passed earns nothing (partial rewards of SWE-RL recipes; EvoTrainer v3,
arXiv:2606.03108).
"""

import numpy as np


def parts(e):
  whole = e.p2p_passed >= 1
  return {'fail_to_pass': np.where(whole, e.f2p_passed, 0).astype(np.float32)}
