"""Compares evolution with plain training of the seed for equal tokens.

    python -m benchmarks.equal_tokens [--config=configs/math.py]
        [--seeds=10] [--first_seed=0] [--out=runs/equal_tokens]

For each random seed, the config evolves. Then its variant `seed`, the same
harness without evolution, trains for as many tokens as the first run sampled in
all, and both policies are scored on the same sealed problems. At the end the
tables of `evojax.report.seeds` are printed, with the difference and its t
interval, and the regret against the seed's trainings.

The command works as a queue: finished runs in --out are not repeated, so the
same command continues, and may be given more seeds.
"""

import pathlib
import subprocess
import sys

from absl import app
from absl import flags

from benchmarks import runs
from evojax.ledger import history
from evojax.ledger import records

_CONFIG = flags.DEFINE_string('config', 'configs/math.py', 'Evolving config.')
_SEEDS = flags.DEFINE_integer('seeds', 10, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_OUT = flags.DEFINE_string('out', 'runs/equal_tokens', 'Workdirs of the runs.')


def steps_for(run: history.History, total: int) -> int:
  """Return the number of updates of one arm that sample about `total` tokens.

  An update is taken to sample as much as the average update of the arms that
  became the policy.

  Args:
    run: A run that evolved.
    total: Tokens.
  """
  sampled = {arm.folder: arm for race in run.races for arm in race.arms}
  policy = [
      sampled[s.folder] for v in run.all(records.Promote) for s in v.sources
  ]
  updates = run.base.updates + sum(arm.updates for arm in policy)
  tokens = run.base.sampled_tokens + sum(a.sampled_tokens for a in policy)
  return round(total * updates / tokens)


def main(_):
  out = pathlib.Path(_OUT.value)
  config, _, _ = _CONFIG.value.partition(':')
  seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
  evolved = []
  for seed in seeds:
    numbered = f'--config.seed={seed}'
    workdir, control = out / f'evolved-{seed}', out / f'seed-{seed}'
    evolved.append(str(workdir))
    summary = runs.finish(_CONFIG.value, workdir, numbered)
    if not isinstance(summary['sealed'].get('seed'), str):
      continue  # It has been compared.
    total = summary['compute']['evolved']['total']
    steps = steps_for(history.read(workdir), total)
    runs.finish(f'{config}:seed', control, numbered, f'--config.steps={steps}')
    runs.start(_CONFIG.value, workdir, numbered, f'--compare={control}')
  if len(evolved) > 1:
    references = ','.join(str(out / f'seed-{seed}') for seed in seeds)
    command = [sys.executable, '-m', 'evojax.report.seeds', *evolved]
    subprocess.run([*command, f'--references={references}'], check=True)


if __name__ == '__main__':
  app.run(main)
