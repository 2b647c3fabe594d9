"""Is evolving worth its tokens? The evolved policy against the seed trained on.

    python -m benchmarks.equal_tokens [--config=configs/math.py]
        [--seeds=10] [--first_seed=0] [--out=runs/equal_tokens]

For every seed the config evolves. Then its `seed` variant, the same harness
without evolution, trains for as many tokens as that run sampled in all, and
both policies are scored on the same sealed problems. At the end the table of
`evojax.report.seeds` is printed, with the difference and its t interval.

A queue: what is finished in --out is not run again, so the same command
continues, with more seeds if one wants them.
"""

import pathlib
import subprocess
import sys

from absl import app
from absl import flags

from benchmarks import runs
from evojax.ledger import history
from evojax.ledger import records

_CONFIG = flags.DEFINE_string('config', 'configs/math.py', 'It evolves.')
_SEEDS = flags.DEFINE_integer('seeds', 10, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_OUT = flags.DEFINE_string('out', 'runs/equal_tokens', 'Holds the workdirs.')


def steps_for(run: history.History, total: int) -> int:
  """Return the updates of one arm that sample about so many tokens.

  An update samples as much as the arms that became the policy did on average.

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
      continue  # It was compared.
    total = summary['compute']['evolved']['total']
    steps = steps_for(history.read(workdir), total)
    runs.finish(f'{config}:seed', control, numbered, f'--config.steps={steps}')
    runs.start(_CONFIG.value, workdir, numbered, f'--compare={control}')
  if len(evolved) > 1:
    subprocess.run(
        [sys.executable, '-m', 'evojax.report.seeds', *evolved], check=True
    )


if __name__ == '__main__':
  app.run(main)
