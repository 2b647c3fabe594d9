"""Runs that evolved under several seeds, summarised in one table.

    python -m evojax.report.seeds WORKDIR WORKDIR ...
        [--references=DIR,DIR] [--scores=0.5,0.7]

The tables show sealed scores, tokens by use with the bounds of their shares,
and the cost of each score. References are finished runs of the best recipe that
is known, such as the variant `reference`; the regret against them is printed.
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
from evojax.eval import seeds as seeds_lib
from evojax.evidence import store
from evojax.ledger import budget
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import milestones
from evojax.ledger import records
from evojax.report import costs
from evojax.report import sealed
from evojax.runtime import numerals
from evojax.runtime import run_files
from evojax.stats import intervals


def _over(
    values: Sequence[np.ndarray], within: tuple[float, float] = estimates.GAINS
) -> dict[str, Any]:
  """Estimate the mean over problems and, with several runs, over seeds."""
  if len(values) < 2:  # One run has no spread over seeds.
    found = estimates.over_problems(values[0], within=within)
    return dataclasses.asdict(found)
  return dataclasses.asdict(
      estimates.over_seeds(np.stack(values), same_problems=False)
  )


def summarise(
    workdirs: Sequence[str | os.PathLike[str]],
    references: Sequence[str | os.PathLike[str]] = (),
    scores: Sequence[float | str] = milestones.SCORES,
) -> dict[str, Any]:
  """Summarise sealed scores, costs and predictions over runs.

  Args:
    workdirs: S >= 2 finished runs, one per seed, each with sealed problems of
      its own.
    references: Workdirs that the regret is computed against.
    scores: Fractions in rising order whose costs are looked up.

  Returns:
    JSON values. runs: one entry per workdir (run, version, solved, trials,
    kept, device_seconds), where solved is the sealed score of the evolved
    policy. policies: name -> seeds (number of runs that have it), score, gain
    (over the base policy; null for itself), evolved_over (gain of the evolved
    policy over this one, on the same problems; null for itself), and mean
    tokens, [training, total], null without training. absent: controls that no
    run was compared with. signs: of hypotheses and of backtests, see
    `calibration.Signs`. costs: see `costs.summarise`.

  Raises:
    ValueError: If there are fewer than 2 runs or copies of one, one has not
      ended, a score is not a fraction, or a reference cannot be compared.
  """
  wanted = _fractions(scores)
  seeds_lib.check_distinct(workdirs, lambda w: {history.read(w).rows[-1].hash})
  runs = [history.read(workdir) for workdir in workdirs]
  solved: dict[str, list[np.ndarray]] = {}
  over: dict[str, list[np.ndarray]] = {}
  gains: dict[str, list[np.ndarray]] = {}
  controls: dict[str, None] = {}
  tokens: dict[str, list[tuple[int, int]]] = {}
  for workdir, run in zip(workdirs, runs, strict=True):
    final = run.find(records.Final)
    if final is None:
      raise ValueError(f'{workdir} has no sealed scores yet: let it end first')
    controls |= dict.fromkeys(final.scores)
    path = pathlib.Path(workdir, run_files.SEALED_EVIDENCE)
    found = {
        name: store.problem_scores(path / name, 'sealed')
        for name, score in final.scores.items()
        if score
    }
    for name, values in found.items():
      solved.setdefault(name, []).append(values)
      over.setdefault(name, []).append(found['evolved'] - values)
      gains.setdefault(name, []).append(values - found['base'])
      if spent := final.compute.get(name):
        tokens.setdefault(name, []).append((spent.training, spent.total))
  trials = [trial for run in runs for trial in run.trials]
  return {
      'runs': [
          {
              'run': pathlib.Path(workdir).name,
              'version': run.head,
              'solved': run.find(records.Final).scores['evolved'].value,
              'trials': len(run.trials),
              'kept': len(run.kept),
              'device_seconds': budget.spent(run.rows),
          }
          for workdir, run in zip(workdirs, runs, strict=True)
      ],
      'policies': {
          name: {
              'seeds': len(values),
              'score': _over(values, estimates.SHARES),
              'gain': None if name == 'base' else _over(gains[name]),
              'evolved_over': None if name == 'evolved' else _over(over[name]),
              'tokens': (
                  np.mean(tokens[name], axis=0).tolist()
                  if name in tokens
                  else None
              ),
          }
          for name, values in solved.items()
      },
      'absent': [name for name in controls if name not in solved],
      'signs': {
          name: dataclasses.asdict(calibration.signs(trials, predict))
          for name, predict in (
              ('hypotheses', lambda trial: trial.expected),
              ('backtests', lambda trial: trial.backtested),
          )
      },
      'costs': costs.summarise(workdirs, runs, references, wanted),
  }


def _fractions(scores: Sequence[float | str]) -> list[float]:
  """Return scores as numbers in rising order.

  Raises:
    ValueError: If one is not a fraction.
  """
  try:
    found = sorted(map(float, scores))
  except ValueError as error:
    raise ValueError(f'--scores: {error}; give fractions: 0.5,0.7') from None
  if wrong := [score for score in found if not 0 < score <= 1]:
    raise ValueError(
        f'--scores={wrong[0]:g} is not a fraction above 0; for 70 % give 0.7'
    )
  return found


def _points(estimate: Mapping[str, Any] | None) -> str:
  return numerals.points(estimate['value']) if estimate else ''


def _interval(estimate: Mapping[str, Any] | None) -> str:
  return numerals.interval(estimate, '+.1f') if estimate else ''


def print_summary(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print what `summarise` returned."""
  runs, policies = summary['runs'], summary['policies'].values()
  report_lib.print_table(
      console,
      ('run', *(run['run'] for run in runs)),
      ('head', *(run['version'] for run in runs)),
      ('sealed', *(numerals.share(run['solved']) for run in runs)),
      ('trials', *(run['trials'] for run in runs)),
      ('kept', *(run['kept'] for run in runs)),
      ('device-s', *(f'{run["device_seconds"]:.0f}' for run in runs)),
  )
  kept = sum(run['kept'] > 0 for run in runs)
  console.print(
      f'\nsealed problems: means over seeds with {100 * intervals.LEVEL:.0f} %'
      f' intervals (Student t). {kept} of {len(runs)} runs kept a change; where'
      ' none was kept, "evolved" is the seed harness.'
  )
  called = sealed.names(kept > 0)
  names = [called.get(name, name) for name in summary['policies']]
  estimate = lambda field: [policy[field] for policy in policies]
  report_lib.print_table(
      console,
      ('policy', *names),
      ('seeds', *estimate('seeds')),
      ('solved', *(numerals.share(s['value']) for s in estimate('score'))),
      ('interval', *map(numerals.interval, estimate('score'))),
      ('gain', *map(_points, estimate('gain'))),
      ('interval', *map(_interval, estimate('gain'))),
  )
  tokens = lambda of: (
      f'{p["tokens"][of]:,.0f}' if p['tokens'] else '' for p in policies
  )
  report_lib.print_table(
      console,
      ('policy', *names),
      ('evolved minus it', *map(_points, estimate('evolved_over'))),
      ('interval', *map(_interval, estimate('evolved_over'))),
      ('tokens trained', *tokens(0)),
      ('in all', *tokens(1)),
  )
  costs.print_summary(summary['costs'], console)
  if summary['absent']:
    absent = ', '.join(summary['absent'])
    console.print(
        f'no run was compared with the controls {absent}: --compare=DIR brings'
        ' a finished run in'
    )
  for name, signs in summary['signs'].items():
    console.print(
        f'{name}: the sign of {signs["right"]} of {signs["decided"]} effects'
        ' whose interval excludes 0 was predicted; always naming the commoner'
        f' sign is right {signs["base"]} times'
    )


if __name__ == '__main__':
  sys.exit(seeds_lib.main(sys.modules[__name__], sys.argv[1:]))
