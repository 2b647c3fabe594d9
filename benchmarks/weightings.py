"""Times 1,000 reward weightings of 2,048 rollouts, with advantages.

    python -m benchmarks.weightings [--reps=20]

A proposer computes this before it pays for a trial: which of a thousand
weightings of the recorded parts give groups a signal again, and which do so
only by shaping.
"""

import statistics
import time

from absl import app
from absl import flags
import numpy as np

from evojax.evolve import weightings

TARGET_SECONDS = 0.1
WEIGHTINGS, PARTS, PROMPTS, GROUP = 1_000, 4, 128, 16

_REPS = flags.DEFINE_integer('reps', 20, 'Timed calls.', lower_bound=1)


def main(_):
  rng = np.random.default_rng(0)
  shape = (PROMPTS, GROUP)
  outcomes = rng.random(shape) < rng.random((PROMPTS, 1))
  parts = rng.random((PARTS, *shape), np.float32)
  parts[0] = outcomes
  weights = rng.normal(size=(WEIGHTINGS, PARTS)).astype(np.float32)
  valid = rng.random(shape) < 0.95
  slow = False
  for advantage in ('group_norm', 'group_mean', 'leave_one_out'):
    seconds = []
    for _ in range(_REPS.value + 1):
      start = time.perf_counter()
      weightings.apply(parts, weights, outcomes, valid, advantage=advantage)
      seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])  # The first call warms up.
    slow |= median > TARGET_SECONDS
    print(
        f'{advantage}: {1e3 * median:.1f} ms (median of {_REPS.value}) for'
        f' {WEIGHTINGS} weightings of {PROMPTS} x {GROUP} rollouts; at most'
        f' {1e3 * TARGET_SECONDS:.0f}'
    )
  return int(slow)


if __name__ == '__main__':
  app.run(main)
