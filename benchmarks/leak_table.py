"""The table of benchmarks.leak, from the evidence of its runs."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

import numpy as np

from evojax.evidence import store

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
    name: Name of the condition.
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
