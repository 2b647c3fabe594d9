"""Records arms that start from the same state, for `benchmarks.races`.

    python -m benchmarks.race_curves [--domain=math] [--rates=1e-4,3e-4,9e-4]
        [--pairs=4] [--start=15] [--updates=15] [--recorded=race_curves.jsonl]

The seed recipe trains a state for --start updates. From it, each pair trains
one arm per learning rate; the arms of a pair have the same prompts and the same
sampler seeds. A row holds the score of an arm on dev problems that all arms
share (so that the effect of sharing them can be left out or added), and how
often each prompt of each update was solved.
Finished arms are found in --recorded, so that the same command continues.
"""

import itertools
import pathlib
import tempfile
from typing import Any

from absl import app
from absl import flags
import numpy as np

from benchmarks import json_lines
from benchmarks import merging
from evojax.eval import scores
from evojax.evidence import store

_DOMAIN = flags.DEFINE_enum('domain', 'math', ['math', 'coding'], 'The domain.')
_RATES = flags.DEFINE_list('rates', ['1e-4', '3e-4', '9e-4'], 'Learning rates.')
_PAIRS = flags.DEFINE_integer('pairs', 4, 'Arms per rate.', lower_bound=2)
_START = flags.DEFINE_integer('start', 15, 'Updates before the arms.')
_UPDATES = flags.DEFINE_integer('updates', 15, 'Updates of an arm.')
_PROBLEMS = flags.DEFINE_integer('problems', 256, 'Dev problems of a score.')
_RECORDED = flags.DEFINE_string(
    'recorded', 'race_curves.jsonl', 'File that gets the rows.'
)

_SAMPLES = 4  # Completions per dev problem.
_START_SEED = 999  # Not the seed of any pair.


def train(
    bench: merging.Bench,
    folder: pathlib.Path,
    rate: float,
    seed: int,
    start: dict | None,
    updates: int,
) -> tuple[dict, list[list[float]]]:
  """Return the state after `updates` updates, and the share solved by
  prompt."""
  arm = bench.arm(merging.Line(rates=(rate,)), seed, folder)
  merging.set_rate(arm, rate)
  if start is not None:
    arm.learner.state.update(merging.copy(start))
  arm.install()
  for _ in range(updates):
    arm.train_step()
  state = merging.copy(dict(arm.learner.state))
  arm.close()
  steps = store.list_steps(folder, 'train')
  read = lambda step: store.problem_scores(folder, 'train', step).tolist()
  return state, [read(step) for step in steps]


def score(bench: merging.Bench, params: Any, problems: int) -> list[float]:
  """Return the share of solved completions of each dev problem."""
  _, _, rollouts = bench.answers(
      params, _START_SEED, _START_SEED, problems, _SAMPLES
  )
  solved = np.asarray(rollouts.rows['outcome'], bool)
  graded = rollouts.graded
  return scores.of_problems(solved.reshape(graded.shape), graded).tolist()


def main(_):
  out = pathlib.Path(_RECORDED.value)
  names = ('domain', 'rate', 'pair', 'start', 'updates')
  done = {tuple(row[n] for n in names) for row in json_lines.read(out)}
  common = dict(
      domain=_DOMAIN.value, start=_START.value, updates=_UPDATES.value
  )
  arms = [
      dict(common, rate=float(rate), pair=pair)
      for pair, rate in itertools.product(range(_PAIRS.value), _RATES.value)
  ]
  arms = [arm for arm in arms if tuple(arm[n] for n in names) not in done]
  if not arms:
    return
  bench = merging.Bench(_DOMAIN.value)
  with tempfile.TemporaryDirectory() as temporary:
    folders = (pathlib.Path(temporary, str(i)) for i in itertools.count())
    start, _ = train(
        bench, next(folders), 1e-4, _START_SEED, None, _START.value
    )
    for row in arms:
      state, solved = train(
          bench,
          next(folders),
          row['rate'],
          1 + row['pair'],
          start,
          row['updates'],
      )
      dev = score(bench, state['params'], _PROBLEMS.value)
      row |= dict(solved=solved, dev=dev)
      json_lines.append(out, [row])
      print(
          f'{row["domain"]} rate {row["rate"]:g} pair {row["pair"]}:'
          f' {100 * np.mean(dev):.1f}',
          flush=True,
      )


if __name__ == '__main__':
  app.run(main)
