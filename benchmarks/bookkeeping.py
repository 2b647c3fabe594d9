"""Times the work of a run besides sampling and training, on one CPU core.

    python -m benchmarks.bookkeeping [--reps=9]

It writes the evidence of a step of 400 rollouts, estimates the interval of a
paired gain over 256 problems, and builds the report of a run.
"""

import pathlib
import statistics
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

from evojax.eval import estimates
from evojax.evidence import store
from evojax.report import page
from tests.evidence import store_test
from tests.report import synthetic

# CPU seconds; the budget of a step of 2.5 s allows 15 ms for evidence.
TARGETS = {'evidence': 0.015, 'interval': 0.2, 'report': 3.0}

_REPS = flags.DEFINE_integer('reps', 9, 'Timed calls.', lower_bound=1)


def main(_):
  rng = np.random.default_rng(0)
  rows = store_test.make_rows(25, 16, 120)
  solved = (rng.random((256, 8)) < 0.4).mean(1)
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    workdir = synthetic.write(root / 'run')
    parts = {
        'evidence': lambda: store.write_step(
            root / 'step', 'train', 1, rows, store_test.COLUMNS
        ),
        'interval': lambda: estimates.paired_gain(solved, 1 - solved, rng=rng),
        'report': lambda: page.build(workdir),
    }
    slow = False
    for name, call in parts.items():
      seconds = []
      for _ in range(_REPS.value + 1):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
      median = statistics.median(seconds[1:])  # The first call warms up.
      slow |= median > TARGETS[name]
      print(
          f'{name}: {1e3 * median:.1f} ms (median of {_REPS.value}); at most'
          f' {1e3 * TARGETS[name]:.0f}'
      )
  return int(slow)


if __name__ == '__main__':
  app.run(main)
