"""A reward that sends its own process a signal, for commands that are real.

FATAL=9@4 sends SIGKILL at its fourth call. The first call is the check before
the run, each further one a rollout round.
"""

import itertools
import os
from typing import Any

import numpy as np

from tests import tiny

_calls = itertools.count(1)


def parts(e: Any) -> dict[str, np.ndarray]:
  """`tiny.parts`, or the end."""
  number, _, call = os.environ.get('FATAL', '').partition('@')
  if str(next(_calls)) == call:
    os.kill(os.getpid(), int(number))
  return tiny.parts(e)
