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
_EVERY = flags.DEFINE_integer('every', 5, 'Updates per row.', lower_bound=1)
_COLUMNS = 'outcome', 'read_history', 'searched_before_edit'


def curve(workdirs: Sequence[pathlib.Path], every: int) -> np.ndarray:
  """Return shares per `every` updates, over all seeds; the last may be fewer.

  Returns:
    float64 [rows, 4]: solved, read the history, both, searched before the edit.
  """
  updates = []
  for step in store.list_steps(workdirs[0], 'train'):
    read = [
        np.stack(store.read_numbers(w, 'train', step, *_COLUMNS))
        for w in workdirs
    ]
    solved, history, searched = np.concatenate(read, axis=1).astype(bool)
    both = solved & history
    updates.append([x.mean() for x in (solved, history, both, searched)])
  rows = range(0, len(updates), every)
  return np.array([np.mean(updates[i : i + every], axis=0) for i in rows])


def dev_scores(workdir: pathlib.Path) -> list[tuple[int, float, float]]:
  """Return (step, solved, read the history) of each scoring of dev problems."""
  scores = []
  for step in store.list_steps(workdir, 'dev'):
    solved, history, _ = store.read_numbers(workdir, 'dev', step, *_COLUMNS)
    scores.append((step, float(np.mean(solved)), float(np.mean(history))))
  return scores


def lines(
    name: str,
    workdirs: Sequence[pathlib.Path],
    sealed: Sequence[Mapping[str, Any]],
    every: int,
) -> list[str]:
  """Return the table of one condition.

  Args:
    name: Of the condition.
    workdirs: One run per seed.
    sealed: The sealed result of each run, see `report.report_gain`.
    every: Updates per row.
  """
  head = 'updates  solved  read history  both  searched before edit'
  shown = ['', name, head]
  last = len(store.list_steps(workdirs[0], 'train'))
  for i, shares in enumerate(curve(workdirs, every)):
    solved, history, both, searched = shares
    updates = f'{i * every + 1}-{min((i + 1) * every, last)}'
    shown.append(
        f'{updates:>7} {solved:7.1%} {history:13.1%} {both:5.1%}'
        f' {searched:21.1%}'
    )
  for workdir in workdirs:
    for step, solved, history in dev_scores(workdir):
      shown.append(
          f'{workdir.name}: dev problems at step {step}: {solved:.1%} solved,'
          f' {history:.1%} read the history'
      )
  for when in ('before', 'after'):
    values = ', '.join(f'{100 * s[when]["value"]:.1f}' for s in sealed)
    shown.append(f'sealed score {when}, by seed: {values} %')
  gains = [s['gain'] for s in sealed]
  texts = [
      f'{100 * g["value"]:+.1f} [{100 * g["low"]:+.1f}, {100 * g["high"]:+.1f}]'
      for g in gains
  ]
  return [*shown, f'sealed gain in points, by seed: {", ".join(texts)}']


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
    found = lines(name, workdirs[name], sealed[name], _EVERY.value)
    print('\n'.join(found))


if __name__ == '__main__':
  app.run(main)
