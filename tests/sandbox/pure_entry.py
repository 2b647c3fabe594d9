"""An entry for pure functions as plain as can be: f(float64[8]) -> float64[8].

Sources that stand behind a line of dashes run in the same process, as they
would if a process were not one call's alone.
"""

import numpy as np

MAX_BYTES = 1 << 16


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
  call('import numpy as np\ndef f(x): return np.sort(x) - x.mean()', bytes(64))
