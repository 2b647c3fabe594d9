"""Tests whether GRPO learns to copy the fix from the history, and what remains.

    python -m benchmarks.leak [--config=configs/swe.py] [--seeds=3]
        [--first_seed=0] [--updates=60] [--after=40] [--every=5]
        [--out=runs/leak]

For each seed there are three runs of the seed recipe, without evolution:

leaky     the commit that fixes the bug is on another branch of the history
after     the policy of `leaky` continues with a scrubbed history
scrubbed  the history is scrubbed from the start

For every --every updates, over all seeds, it prints the share of episodes that
solve their problem, that read the history, that do both, and that search before
the edit. If the leak is learned, the first three shares jump at the same time
in `leaky`, and `after` begins far below the end of `leaky`. Then it prints the
dev scores, under the history of the run, and the sealed scores: a run's own
judge (`audit`) scrubs the history of sealed problems, also those of `leaky`.

The command works as a queue: finished runs in --out are not repeated.
"""

import collections
import pathlib

from absl import app
from absl import flags

from benchmarks import leak_table
from benchmarks import runs

_CONFIG = flags.DEFINE_string(
    'config', 'configs/swe.py', 'A config with the variant leaky.'
)
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_UPDATES = flags.DEFINE_integer('updates', 60, 'Per run of leaky and scrubbed.')
_AFTER = flags.DEFINE_integer('after', 40, 'Updates of after.')
_OUT = flags.DEFINE_string('out', 'runs/leak', 'Workdirs of the runs.')
_EVERY = flags.DEFINE_integer('every', 5, 'Updates per row.', lower_bound=1)


def main(_):
  out = pathlib.Path(_OUT.value)
  leaky, scrubbed = f'{_CONFIG.value}:leaky', f'{_CONFIG.value}:seed'
  workdirs, sealed = collections.defaultdict(list), collections.defaultdict(
      list
  )
  for seed in range(_FIRST.value, _FIRST.value + _SEEDS.value):
    learned = f'--config.model.path={out / f"leaky-{seed}" / "policy"}'
    for name, config, updates, *flags_ in (
        ('leaky', leaky, _UPDATES.value),
        ('after', scrubbed, _AFTER.value, learned),
        ('scrubbed', scrubbed, _UPDATES.value),
    ):
      workdir = out / f'{name}-{seed}'
      flags_ += ['--config.evolve.rounds=0', f'--config.steps={updates}']
      summary = runs.finish(config, workdir, f'--config.seed={seed}', *flags_)
      workdirs[name].append(workdir)
      sealed[name].append(summary['gain']['sealed'])
  for name in workdirs:
    found = leak_table.lines(name, workdirs[name], sealed[name], _EVERY.value)
    print('\n'.join(found))


if __name__ == '__main__':
  app.run(main)
