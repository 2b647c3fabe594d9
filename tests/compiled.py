"""How tests compile: a program once for all of their processes.

Programs are kept in a directory, also for the next tests. Optimising most of
them would take longer than running them.
"""

import os

CACHE = os.path.expanduser('~/.cache/evojax/tests')
_SHARED = {
    'JAX_COMPILATION_CACHE_DIR': CACHE,
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}
# Variables of a process; tests/conftest.py sets those of the tests.
QUICKLY = _SHARED | {'JAX_DISABLE_MOST_OPTIMIZATIONS': 'True'}
OPTIMISED = _SHARED | {'JAX_DISABLE_MOST_OPTIMIZATIONS': 'False'}
