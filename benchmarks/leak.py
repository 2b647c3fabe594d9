"""Tests whether GRPO learns to copy the fix from the history, and what remains.

    python -m benchmarks.leak [--config=configs/swe.py] [--seeds=3]
        [--first_seed=0] [--updates=60] [--after=40] [--out=runs/leak]

For each seed there are three runs of the seed recipe, without evolution:

leaky     the commit that fixes the bug is on another branch of the history
after     the policy of `leaky` continues with a scrubbed history
scrubbed  the history is scrubbed from the start

For every ten updates, over all seeds, it prints the share of episodes that
solve their problem, that read the history, and that do both. If the leak is
learned, the three shares jump at the same time in `leaky`, and `after` begins
far below the end of `leaky`. Then it prints the sealed scores of the policies,
each under the conditions of its own run.

The command works as a queue: finished runs in --out are not repeated.
"""

import collections
from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from absl import app
from absl import flags
import numpy as np

from benchmarks import runs
from evojax.evidence import store

_CONFIG = flags.DEFINE_string(
    'config', 'configs/swe.py', 'A config with the variant leaky.'
)
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_UPDATES = flags.DEFINE_integer('updates', 60, 'Per run of leaky and scrubbed.')
_AFTER = flags.DEFINE_integer('after', 40, 'Updates of after.')
_OUT = flags.DEFINE_string('out', 'runs/leak', 'Workdirs of the runs.')
_EVERY = 10  # Updates per row.


def curve(workdirs: Sequence[pathlib.Path]) -> np.ndarray:
  """Return shares per ten updates, over all seeds.

  Returns:
    float64 [rows, 3]: solved, read the history, both.
  """
  updates = []
  for step in store.list_steps(workdirs[0], 'train'):
    read = [
        np.stack(
            store.read_numbers(w, 'train', step, 'outcome', 'read_history')
        )
        for w in workdirs
    ]
    solved, history = np.concatenate(read, axis=1).astype(bool)
    updates.append([solved.mean(), history.mean(), (solved & history).mean()])
  rows = range(0, len(updates), _EVERY)
  return np.array([np.mean(updates[i : i + _EVERY], axis=0) for i in rows])


def _print(
    name: str,
    workdirs: Sequence[pathlib.Path],
    sealed: Sequence[Mapping[str, Any]],
) -> None:
  print(f'\n{name}\nupdates  solved  read history  both')
  for i, (solved, history, both) in enumerate(curve(workdirs)):
    updates = f'{i * _EVERY + 1}-{(i + 1) * _EVERY}'
    print(f'{updates:>7} {solved:7.1%} {history:13.1%} {both:5.1%}')
  for when in ('before', 'after'):
    values = ', '.join(f'{100 * s[when]["value"]:.1f}' for s in sealed)
    print(f'sealed score {when}, by seed: {values} %')


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
    _print(name, workdirs[name], sealed[name])


if __name__ == '__main__':
  app.run(main)
