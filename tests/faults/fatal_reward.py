"""A reward that brings disaster over its own process: commands stay real.

FATAL=9@4 sends SIGKILL at its fourth call, FATAL=disk@4 lets no file grow any
further than evidence needs. The first call is the check before the run, each
further one a rollout round.
"""

import itertools
import os
import resource
from typing import Any

import numpy as np

from tests import tiny

# Bytes. A file of evidence has 34 kB. If the policy has hidden_size=128, each
# process of a pair writes a file of 420 kB in every save.
_ROOM = 60_000
_calls = itertools.count(1)


def parts(e: Any) -> dict[str, np.ndarray]:
  """`tiny.parts`, or the end."""
  what, _, call = os.environ.get('FATAL', '').partition('@')
  if str(next(_calls)) == call:
    if what == 'disk':
      resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM, _ROOM))
    else:
      os.kill(os.getpid(), int(what))
  return tiny.parts(e)
