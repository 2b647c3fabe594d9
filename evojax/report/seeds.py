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
  headings = ('run', 'head', 'trials', 'kept', 'device-s')
  rows = [
      (*run, f'{seconds:.0f}')
      for *run, seconds in map(dict.values, summary['runs'])
  ]
  report_lib.print_table(console, headings, rows)
  headings = ('policy', 'seeds', 'sealed', 'interval', 'evolved over it')
  headings = (*headings, 'interval', 'tokens trained', 'tokens in all')
  rows = []
  for name, row in summary['policies'].items():
    score, over = row['score'], row['evolved_over']
    rows.append(
        (
            name,
            row['seeds'],
            report_lib.percent(score['value']),
            report_lib.interval(score),
            report_lib.points(over['value']) if over else '',
            report_lib.interval(over, signed=True) if over else '',
            *(f'{count:,.0f}' for count in row['tokens'] or ()),
        )
    )
  report_lib.print_table(console, headings, rows)
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
