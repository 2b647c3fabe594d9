"""One recipe under several seeds: a table of finished runs.

Run as `python -m evojax.eval.seeds WORKDIR WORKDIR ...`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import inspect
import itertools
import json
import os
import pathlib
import sys
from typing import Any

import numpy as np
from rich import console as console_lib

from evojax.eval import estimates
from evojax.eval import report as report_lib
from evojax.eval import sealed
from evojax.evidence import store
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import run_files
from evojax.stats import intervals


def main(module: Any, arguments: Sequence[str]) -> int:
  """Print the summary of the workdirs on a command line; return an exit code.

  Args:
    module: This module, or another with `summarise`, whose keyword arguments
      are options with a list of values, and `print_summary`.
    arguments: Command-line arguments without the name of the program.
  """
  if {'-h', '--help'} & set(arguments):
    output.say(module.__doc__.rstrip())
    return 0
  given = [each for each in arguments if each.startswith('--')]
  workdirs = [each for each in arguments if each not in given]
  known = list(inspect.signature(module.summarise).parameters)[1:]
  try:
    options = {}
    for option in given:
      name, _, values = option.removeprefix('--').partition('=')
      if name not in known or not values:
        choices = [f'--{name}=A,B' for name in known]
        raise ValueError(
            f'{option} is no option' + ('; choose from ' if choices else '')
            + ', '.join(choices)
        )
      options[name] = values.split(',')
    summary = module.summarise(workdirs, **options)
  except (OSError, ValueError) as error:
    output.say(f'error: {error}', error=True)
    if len(workdirs) < 2:
      name = module.__spec__.name
      output.say(f'usage: python -m {name} WORKDIR WORKDIR ...', error=True)
    return 2
  module.print_summary(summary, console_lib.Console(highlight=False))
  return 0


def check_distinct(
    workdirs: Sequence[str | os.PathLike[str]],
    identity: Callable[[str | os.PathLike[str]], set[str]],
) -> None:
  """Check that there are several runs, all of them different.

  Args:
    workdirs: Workdirs of the runs.
    identity: Returns strings; copies of a run have one in common.

  Raises:
    ValueError: If there are fewer than 2 runs, copies, or runs of one seed.
  """
  if len(workdirs) < 2:
    raise ValueError(f'{len(workdirs)} workdirs; a spread over seeds needs 2')
  known = [(w, identity(w) | _configs(w)) for w in workdirs]
  for (one, own), (other, its) in itertools.combinations(known, 2):
    if own & its:
      raise ValueError(
          f'{one} and {other} are copies of one run, or runs with the same'
          ' config and seed: they say nothing about the spread between seeds.'
          ' Name runs whose config.seed differs'
      )


def _configs(workdir: str | os.PathLike[str]) -> set[str]:
  """Return the config of a run as text, if there is one."""
  path = pathlib.Path(workdir, run_files.CONFIG)
  return {path.read_text()} if path.exists() else set()


def _read(
    workdir: str | os.PathLike[str],
) -> tuple[dict[str, Any], list[str], np.ndarray]:
  """Return the sealed result, the problem id of each row, and scores [2, P]."""
  result = sealed.read(workdir)
  if result is None:
    raise ValueError(
        f'{workdir} has no {sealed.path_of(workdir).name}: its run did not end,'
        ' or had --config.eval.sealed=False'
    )
  steps = [result[side]['step'] for side in ('before', 'after')]
  sides = [store.problem_scores(workdir, sealed.SPLIT, step) for step in steps]
  # With equal lists of problems, columns of two runs are comparable.
  ids = store.read(workdir, sealed.SPLIT, steps[:1], ['problem_id'])
  return result, ids['problem_id'].tolist(), np.stack(sides)


def summarise(workdirs: Sequence[str | os.PathLike[str]]) -> dict[str, Any]:
  """Return the sealed scores over training seeds.

  Args:
    workdirs: S >= 2 finished runs of one recipe, one per seed, with equal
      numbers of sealed problems and samples.

  Returns:
    JSON values: problems, samples, same_problems; runs, one entry per workdir;
    before, after and gain over all seeds (`estimates.over_seeds`).

  Raises:
    ValueError: If there are fewer than 2 runs or copies of one, one has no
      sealed result, or their sizes differ.
  """
  check_distinct(workdirs, lambda w: {json.dumps(_read(w)[0])})
  results, ids, scores = zip(*map(_read, workdirs), strict=True)
  sizes = {(result['problems'], result['samples']) for result in results}
  if len(sizes) > 1:
    raise ValueError(
        'runs with different numbers of sealed problems and samples cannot be'
        f' in one table: {sorted(sizes)}'
    )
  ((problems, samples),) = sizes
  stacked = np.stack(scores)  # [S, 2, P]
  same_problems = all(other == ids[0] for other in ids)

  def over(values):
    estimate = estimates.over_seeds(values, same_problems=same_problems)
    return dataclasses.asdict(estimate)

  return {
      'problems': problems,
      'samples': samples,
      'same_problems': same_problems,
      'runs': [
          {
              'run': pathlib.Path(workdir).name,
              'step': result['after']['step'],
              'before': result['before']['value'],
              'after': result['after']['value'],
              'gain': result['gain'],
          }
          for workdir, result in zip(workdirs, results, strict=True)
      ],
      'before': over(stacked[:, 0]),
      'after': over(stacked[:, 1]),
      'gain': over(stacked[:, 1] - stacked[:, 0]),
  }


def print_summary(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print what `summarise` returned."""
  which = 'the same' if summary['same_problems'] else 'other'
  console.print(
      f'sealed: {summary["problems"]:,} problems x {summary["samples"]}'
      f' samples, {which} problems for every seed;'
      f' {100 * intervals.LEVEL:.0f} % intervals'
  )
  runs = summary['runs']
  gains = [run['gain'] for run in runs]
  report_lib.print_table(
      console,
      ('run', *(run['run'] for run in runs)),
      ('step', *(run['step'] for run in runs)),
      ('base', *(numerals.share(run['before']) for run in runs)),
      ('trained', *(numerals.share(run['after']) for run in runs)),
      ('gain', *(numerals.points(gain['value']) for gain in gains)),
      ('interval', *(numerals.interval(g, '+.1f') for g in gains)),
  )
  for name, key in (('base', 'before'), ('trained', 'after')):
    side = summary[key]
    console.print(
        f'{name} {numerals.share(side["value"])}'
        f' {numerals.interval(side)}'
    )
  gain = summary['gain']
  console.print(
      f'gain {numerals.points(gain["value"])} points'
      f' {numerals.interval(gain, "+.1f")}, over seeds and problems'
  )


if __name__ == '__main__':
  sys.exit(main(sys.modules[__name__], sys.argv[1:]))
