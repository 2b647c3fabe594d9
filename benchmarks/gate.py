"""Times the gate on candidates, and the cost of the box per training step.

    python -m benchmarks.gate [--candidates=50]

A candidate is a shipped function with a changed text, so that nothing is cached
for it: all layers run, in two processes, on synthetic and on recorded evidence.
"""

import statistics
import time

from absl import app
from absl import flags
import numpy as np

from configs import math as math_config
from evojax import domains
from evojax.episodes import synthetic
from evojax.evidence import schema
from evojax.evidence import views
from evojax.harness import gate
from evojax.harness import library
from evojax.harness import run
from evojax.harness import spec

TARGET_SECONDS = 0.06
PROMPTS, GROUP = 24, 16

_CANDIDATES = flags.DEFINE_integer(
    'candidates', 50, 'Number of candidates.', lower_bound=1
)


def _recorded(base: views.View) -> views.View:
  """Return evidence of one step: synthetic completions, sampled repeatedly."""
  rng = np.random.default_rng(0)
  drawn = rng.integers(0, base.valid.size, PROMPTS * GROUP)
  rows = {
      name: np.asarray(getattr(base, name)).reshape(
          base.valid.size, *getattr(base, name).shape[2:]
      )[drawn]
      for name in base.columns
  }
  rows['group'] = np.repeat(np.arange(PROMPTS), GROUP)
  rows['sample'] = np.tile(np.arange(GROUP), PROMPTS)
  columns = schema.declare(
      domains.make('math').columns,
      tuple(math_config.get_config().reward.weights),
  )
  return views.View(
      rows,
      columns,
      prompts=PROMPTS,
      group_size=GROUP,
      max_tokens=base.max_tokens,
      reader='diagnostic',
  )


def _candidates(harness: spec.Harness) -> list[tuple[str, str]]:
  """Return (path, source) of all functions shipped with the package."""
  found = list(harness.files.items())
  for name in library.names():
    kind = name.partition('/')[0]
    path = name if kind in ('backtests', 'diagnostics') else f'{kind}.py'
    found.append((path, library.source(name)))
  return found


def _median_ms(call, times: int = 20) -> float:
  seconds = []
  for _ in range(times):
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
  return 1e3 * statistics.median(seconds)


def main(_):
  config = math_config.get_config()
  domain = domains.make('math', **config.domain.kwargs.to_dict())
  base = synthetic.Evidence(domain).evidence(config)
  recorded = _recorded(base)
  seed = spec.read(f'{domains.load("math").__path__[0]}/seed_harness')
  pool = _candidates(seed)
  shapes = [(config.grpo.prompts, config.grpo.group_size)]
  seconds, refused = [], 0
  for i in range(_CANDIDATES.value + 1):
    path, source = pool[i % len(pool)]
    start = time.perf_counter()
    refused += bool(
        gate.reasons(
            path,
            f'{source}# Candidate {i}.\n',
            base,
            recorded,
            columns=base.columns,
            shapes=shapes,
            steps=config.steps,
        )
    )
    seconds.append(time.perf_counter() - start)
  seconds = seconds[1:]  # The first call starts the boxes.
  median = statistics.median(seconds)
  print(
      f'{len(seconds)} candidates, {refused} refused: median'
      f' {1e3 * median:.1f} ms, 90 %'
      f' {1e3 * sorted(seconds)[len(seconds) * 9 // 10]:.1f} ms (target'
      f' {1e3 * TARGET_SECONDS:g} ms)'
  )
  harness = seed.with_file(
      'keep.py', library.source('keep/ema_outcome_spread.py')
  ).with_file('weight.py', library.source('weight/hard_groups.py'))
  functions = run.Functions(harness)
  state = functions.init()
  for name, call in (
      ('reward', lambda: functions.parts(recorded)),
      ('keep', lambda: functions.keep(recorded, state)),
      ('weight', lambda: functions.weight(recorded)),
      ('all diagnostics', lambda: functions.measure_all(recorded)),
  ):
    print(f'{name} of {PROMPTS} x {GROUP}: {_median_ms(call):.1f} ms')
  if median > TARGET_SECONDS:
    raise SystemExit('the gate is slower than its target')


if __name__ == '__main__':
  app.run(main)
