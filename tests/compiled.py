"""How tests compile: a program once for all of their processes.

Programs are kept in a directory, also for the next tests. Optimising most of
them would take longer than running them.
"""

import os
import pathlib

CACHE = os.path.expanduser('~/.cache/evojax/tests')
_SHARED = {
    'JAX_COMPILATION_CACHE_DIR': CACHE,
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}
# Variables of a process; tests/conftest.py sets those of the tests.
QUICKLY = _SHARED | {'JAX_DISABLE_MOST_OPTIMIZATIONS': 'True'}
OPTIMISED = _SHARED | {'JAX_DISABLE_MOST_OPTIMIZATIONS': 'False'}
# For a process that finds the directory under another path: unless told so, jax
# takes programs in a directory of another path for other programs.
_UNDER_ANY_PATH = {'JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES': 'none'}


def as_home(home: str) -> dict[str, str]:
  """Return the variables of a process with an empty home, but for CACHE.

  Args:
    home: An empty directory.
  """
  users = pathlib.Path(home, '.cache/evojax/xla')  # --compilation_cache
  users.parent.mkdir(parents=True)
  os.makedirs(CACHE, exist_ok=True)
  users.symlink_to(CACHE)
  return OPTIMISED | _UNDER_ANY_PATH | {'HOME': home}
