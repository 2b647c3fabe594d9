"""Compares evolution with plain training for equal tokens.

    python -m benchmarks.equal_tokens [--config=configs/math.py]
        [--controls=seed,reference] [--seeds=10] [--first_seed=0]
        [--out=runs/equal_tokens]

For each random seed, the config evolves. Then its variants `seed`, the same
harness without evolution, and `reference`, the best recipe that is known, train
for as many tokens as the evolving run sampled in all, and all policies are
scored on the same sealed problems. At the end the tables of
`evojax.report.seeds` are printed, with the differences and their t intervals,
and the regret against each control.

The command works as a queue: finished runs in --out are not repeated, so the
same command continues, and may be given more seeds or controls.
"""

import pathlib
import subprocess
import sys

from absl import app
from absl import flags

from benchmarks import controls
from benchmarks import runs
from evojax.ledger import history

_CONFIG = flags.DEFINE_string('config', 'configs/math.py', 'Evolving config.')
_CONTROLS = flags.DEFINE_list(
    'controls', ['seed', 'reference'], 'Variants that are trained to compare.'
)
_SEEDS = flags.DEFINE_integer('seeds', 10, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_OUT = flags.DEFINE_string('out', 'runs/equal_tokens', 'Workdirs of the runs.')


def main(_):
  out = pathlib.Path(_OUT.value)
  config, _, _ = _CONFIG.value.partition(':')
  seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
  for seed in seeds:
    numbered = f'--config.seed={seed}'
    evolved = out / f'evolved-{seed}'
    summary = runs.finish(_CONFIG.value, evolved, numbered)
    # A control that is still to be compared has a text instead of a score.
    due = [
        name
        for name in _CONTROLS.value
        if isinstance(summary['sealed'].get(name), str)
    ]
    total = summary['compute']['evolved']['total']
    for name in due:
      guess = controls.steps_for(history.read(evolved), total)
      control = out / f'{name}-{seed}'
      controls.train(f'{config}:{name}', control, total, guess, numbered)
    if due:
      trained = ','.join(str(out / f'{name}-{seed}') for name in due)
      runs.start(_CONFIG.value, evolved, numbered, f'--compare={trained}')
  if len(seeds) < 2:
    return
  command = [sys.executable, '-m', 'evojax.report.seeds']
  command += [str(out / f'evolved-{seed}') for seed in seeds]
  for name in _CONTROLS.value:
    print(f'regret against the variant {name}:', flush=True)
    others = ','.join(str(out / f'{name}-{seed}') for seed in seeds)
    subprocess.run([*command, f'--references={others}'], check=True)


if __name__ == '__main__':
  app.run(main)
