"""Runs that evolved under several seeds, summarised in one table.

Run as `python -m evojax.report.seeds WORKDIR WORKDIR ...`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
import sys
from typing import Any

import numpy as np
from rich import console as console_lib

from evojax.eval import estimates
from evojax.eval import report as report_lib
from evojax.evidence import store
from evojax.ledger import budget
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records


def _over(values: Sequence[np.ndarray]) -> dict[str, Any]:
  """Estimate the mean over problems and, where there are several, seeds."""
  if len(values) < 2:  # One run has no spread over seeds.
    return dataclasses.asdict(estimates.over_problems(values[0]))
  return dataclasses.asdict(
      estimates.over_seeds(np.stack(values), same_problems=False)
  )


def summarise(workdirs: Sequence[str | os.PathLike[str]]) -> dict[str, Any]:
  """Summarise sealed scores, costs and predictions over runs.

  Args:
    workdirs: S >= 2 finished runs, one per seed, each with sealed problems of
      its own.

  Returns:
    JSON values. runs: one entry per workdir (run, version, trials, kept,
    device_seconds). policies: name -> seeds (runs that have it), score,
    evolved_over (of the policy trained from base over this one, on the same
    problems; null for itself), and mean tokens, [training, total], null where
    nothing was trained. signs: of hypotheses and of backtests, see
    `calibration.Signs`.

  Raises:
    ValueError: If there are fewer than 2 runs, or one has not ended.
  """
  if len(workdirs) < 2:
    raise ValueError(f'{len(workdirs)} workdirs; a spread over seeds needs 2')
  runs = [history.read(workdir) for workdir in workdirs]
  scores: dict[str, list[np.ndarray]] = {}
  over: dict[str, list[np.ndarray]] = {}
  tokens: dict[str, list[tuple[int, int]]] = {}
  for workdir, run in zip(workdirs, runs, strict=True):
    final = run.find(records.Final)
    if final is None:
      raise ValueError(f'{workdir} has no sealed scores yet: let it end first')
    path = pathlib.Path(workdir, 'sealed')
    found = {
        name: store.problem_scores(path / name, 'sealed')
        for name, score in final.scores.items()
        if score
    }
    for name, values in found.items():
      scores.setdefault(name, []).append(values)
      over.setdefault(name, []).append(found['evolved'] - values)
      if spent := final.compute.get(name):
        tokens.setdefault(name, []).append((spent.training, spent.total))
  trials = [trial for run in runs for trial in run.trials]
  return {
      'runs': [
          {
              'run': pathlib.Path(workdir).name,
              'version': run.head,
              'trials': len(run.trials),
              'kept': len(run.kept),
              'device_seconds': budget.spent(run.rows),
          }
          for workdir, run in zip(workdirs, runs, strict=True)
      ],
      'policies': {
          name: {
              'seeds': len(values),
              'score': _over(values),
              'evolved_over': None if name == 'evolved' else _over(over[name]),
              'tokens': (
                  np.mean(tokens[name], axis=0).tolist()
                  if name in tokens
                  else None
              ),
          }
          for name, values in scores.items()
      },
      'signs': {
          name: dataclasses.asdict(calibration.signs(trials, predict))
          for name, predict in (
              ('hypotheses', lambda trial: trial.expected),
              ('backtests', lambda trial: trial.backtested),
          )
      },
  }


def print_summary(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print what `summarise` returned."""
  runs, policies = summary['runs'], summary['policies'].values()
  report_lib.print_table(
      console,
      ('run', *(run['run'] for run in runs)),
      ('head', *(run['version'] for run in runs)),
      ('trials', *(run['trials'] for run in runs)),
      ('kept', *(run['kept'] for run in runs)),
      ('device-s', *(f'{run["device_seconds"]:.0f}' for run in runs)),
  )
  scores = [policy['score'] for policy in policies]
  over = [policy['evolved_over'] for policy in policies]
  points = (report_lib.points(o['value']) if o else '' for o in over)
  gains = (report_lib.interval(o, signed=True) if o else '' for o in over)
  tokens = lambda of: (
      f'{p["tokens"][of]:,.0f}' if p['tokens'] else '' for p in policies
  )
  report_lib.print_table(
      console,
      ('policy', *summary['policies']),
      ('seeds', *(policy['seeds'] for policy in policies)),
      ('sealed', *(report_lib.percent(score['value']) for score in scores)),
      ('interval', *map(report_lib.interval, scores)),
      ('evolved over it', *points),
      ('interval', *gains),
      ('tokens trained', *tokens(0)),
      ('tokens in all', *tokens(1)),
  )
  for name, signs in summary['signs'].items():
    console.print(
        f'{name}: the sign of {signs["right"]} of {signs["decided"]} effects'
        ' whose interval excludes 0 was predicted; always naming the commoner'
        f' sign is right {signs["base"]} times'
    )


if __name__ == '__main__':
  print_summary(
      summarise(sys.argv[1:]), console_lib.Console(highlight=False, width=120)
  )
