"""Compilation in tests: each program is compiled once for all processes.

Compiled programs are kept in a directory for later tests. They are not
optimised, since for most of them this would take longer than running them.
"""

from collections.abc import Iterator
import contextlib
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
# For a process with another path to the directory: by default, jax does not
# reuse programs that were compiled under a different path.
_UNDER_ANY_PATH = {'JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES': 'none'}


@contextlib.contextmanager
def optimised() -> Iterator[None]:
  """Compile with optimisation, for tests that compute longer than that.

  Later tests of the process compile their programs again: other processes, with
  which they may be compared, do not have the optimised ones.
  """
  # Imported late: jax reads the variables above when it is imported.
  import jax

  name = 'jax_disable_most_optimizations'
  before = jax.config.read(name)
  jax.config.update(name, False)
  try:
    yield
  finally:
    jax.config.update(name, before)
    jax.clear_caches()


def as_home(home: str) -> dict[str, str]:
  """Return the variables of a process with an empty home except for CACHE.

  Args:
    home: An empty directory.
  """
  users = pathlib.Path(home, '.cache/evojax/xla')  # --compilation_cache
  users.parent.mkdir(parents=True)
  os.makedirs(CACHE, exist_ok=True)
  users.symlink_to(CACHE)
  return OPTIMISED | _UNDER_ANY_PATH | {'HOME': home}
