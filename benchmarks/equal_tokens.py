"""Compares evolution with plain training for equal tokens.

    python -m benchmarks.equal_tokens [--config=configs/math.py]
        [--controls=seed,reference] [--seeds=10] [--first_seed=0]
        [--out=runs/equal_tokens]

For each random seed, the config evolves. Then its variants `seed`, the same
harness without evolution, and `reference`, the best recipe that is known, train
for as many tokens as the first run sampled in all, and all policies are scored
on the same sealed problems. At the end the tables of `evojax.report.seeds` are
printed, with the differences and their t intervals, and the regret against each
control.

The command works as a queue: finished runs in --out are not repeated, so the
same command continues, and may be given more seeds or controls.
"""

import pathlib
import subprocess
import sys

from absl import app
from absl import flags

from benchmarks import runs
from evojax.evidence import store
from evojax.ledger import history
from evojax.ledger import records

_CONFIG = flags.DEFINE_string('config', 'configs/math.py', 'Evolving config.')
_CONTROLS = flags.DEFINE_list(
    'controls', ['seed', 'reference'], 'Variants that are trained to compare.'
)
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


def train(
    config: str, workdir: pathlib.Path, total: int, guess: int, *given: str
) -> None:
  """Train a variant for about `total` tokens; the same call continues it.

  A variant may sample more tokens an update than the run that evolved, for
  instance because it refills the places of dropped groups. So a quarter of the
  expected updates is trained first, and its tokens say how many are needed.

  Args:
    config: File and variant.
    workdir: Directory of the training.
    total: Tokens.
    guess: Number of updates that would sample as many tokens if each sampled as
      many as those of the run that evolved.
    *given: Further flags.
  """
  first = max(guess // 4, 1)
  if len(store.list_steps(workdir, 'train')) < first:
    steps = f'--config.steps={first}'
    runs.start(config, workdir, *given, steps, '--config.eval.sealed=False')
  sampled = sum(
      store.read_numbers(workdir, 'train', step, 'n_tokens')[0].sum()
      for step in store.list_steps(workdir, 'train')[:first]
  )
  steps = max(round(total * first / sampled), first)
  runs.start(config, workdir, *given, f'--config.steps={steps}')


def main(_):
  out = pathlib.Path(_OUT.value)
  config, _, _ = _CONFIG.value.partition(':')
  seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
  for seed in seeds:
    numbered = f'--config.seed={seed}'
    evolved = out / f'evolved-{seed}'
    summary = runs.finish(_CONFIG.value, evolved, numbered)
    # The score of a control that has been compared is no text.
    due = [
        name
        for name in _CONTROLS.value
        if isinstance(summary['sealed'].get(name), str)
    ]
    total = summary['compute']['evolved']['total']
    for name in due:
      guess = steps_for(history.read(evolved), total)
      train(f'{config}:{name}', out / f'{name}-{seed}', total, guess, numbered)
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
