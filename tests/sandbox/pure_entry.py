"""A minimal entry for pure functions: f(float64[8]) -> float64[8].

Sources after a line of dashes run in the same process, as they would if a
process served more than one call.
"""

# An attacker's tools are loaded already, since importing needs files.
import codecs  # noqa: F401
import ctypes  # noqa: F401
import fileinput  # noqa: F401
import glob  # noqa: F401
import importlib.machinery  # noqa: F401
import linecache  # noqa: F401
import pathlib  # noqa: F401
import pickle  # noqa: F401
import random  # noqa: F401
import resource  # noqa: F401
import runpy  # noqa: F401
import socket  # noqa: F401
import subprocess  # noqa: F401
import tempfile  # noqa: F401
import tokenize  # noqa: F401

import numpy as np


def call(source, data):
  array = np.frombuffer(data, np.float64)
  for part in source.split('\n-----\n'):
    namespace = {'__name__': 'harness'}
    exec(compile(part, 'f.py', 'exec'), namespace)
    answer = namespace['f'](array)
  if isinstance(answer, bytes):  # As if it had found the descriptor.
    return answer
  return np.asarray(answer, np.float64).tobytes()


def warm():
  np.random.get_state()  # Otherwise it is imported at its first use.
  call('import numpy as np\ndef f(x): return np.sort(x) - x.mean()', bytes(64))
