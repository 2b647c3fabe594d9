"""The gain of training, as JSON values and as printed tables."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np
from rich import console as console_lib
from rich import markup
from rich import table as table_lib

from evojax.eval import estimates
from evojax.eval import evaluate
from evojax.eval import modes as modes_lib
from evojax.runtime import numerals
from evojax.stats import intervals

_LEAST_NAME = 8  # Characters of a first column, at least.


def _side(result: evaluate.EvalResult) -> dict[str, Any]:
  return {
      'step': result.step,
      'policy_version': result.policy_version,
      **dataclasses.asdict(result.avg_at_k),
      # Text keys, so that the report equals itself after JSON.
      'pass_at_k': {str(k): value for k, value in result.pass_at_k.items()},
      'n_tokens': result.n_tokens,
      'truncated': result.truncated,
      'seconds': result.seconds,
  }


def report_gain(
    before: evaluate.EvalResult, after: evaluate.EvalResult
) -> dict[str, Any]:
  """Return the gain of one policy over another on the same problems.

  Args:
    before: Result of the base policy.
    after: Result of the trained policy, evaluated with equal arguments.

  Returns:
    JSON values: split, seed, problems, samples; before and after (value,
    standard_error, low, high of Avg@k, pass_at_k, ...); gain (value,
    standard_error, low, high), paired by problem; families; and modes,
    mode_shift, within_mode and oracle, which are None unless the domain
    classifies completions. Shares, accuracies and gains are fractions of 1.

  Raises:
    ValueError: If the problems differ.
  """
  if before.problem_ids != after.problem_ids:
    raise ValueError(
        'a gain is paired by problem, but the two evaluations have different'
        f' problems: split={before.split!r} seed={before.seed}'
        f' problems={len(before.problem_ids)} and split={after.split!r}'
        f' seed={after.seed} problems={len(after.problem_ids)}. Evaluate both'
        ' with the same arguments'
    )
  gain = estimates.paired_gain(before.problem_scores, after.problem_scores)
  oracle = None
  if before.modes is not None:
    oracle = modes_lib.oracle(*_measured(before), before.mode_codes)
  return {
      'split': before.split,
      'seed': before.seed,
      'problems': len(before.problem_ids),
      'samples': before.outcomes.shape[1],
      'before': _side(before),
      'after': _side(after),
      'gain': dataclasses.asdict(gain),
      'oracle': oracle and dataclasses.asdict(oracle),
      'families': [
          _family(before, after, name) for name in sorted(set(before.families))
      ],
      **_decomposed(before, after, slice(None)),
  }


def _decomposed(
    before: evaluate.EvalResult, after: evaluate.EvalResult, rows: Any
) -> dict[str, Any]:
  """Return the sources of a gain on some problems; None without modes."""
  if before.modes is None:
    return dict.fromkeys(('mode_shift', 'within_mode', 'modes'))
  sides = *_measured(before, rows), *_measured(after, rows)
  split = modes_lib.decompose(*sides, before.mode_codes)
  return {
      'mode_shift': split.shift,
      'within_mode': split.within,
      'modes': [dataclasses.asdict(mode) for mode in split.modes],
  }


def _measured(
    result: evaluate.EvalResult, rows: Any = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
  """Return modes and outcomes [1, n] of some problems' graded completions."""
  there = result.graded[rows]
  return result.modes[rows][there][None], result.outcomes[rows][there][None]


def _family(
    before: evaluate.EvalResult, after: evaluate.EvalResult, family: str
) -> dict[str, Any]:
  """Return the scores and the gain on the problems of a family."""
  rows = np.array(before.families) == family
  old, new = (
      float(result.problem_scores[rows].mean()) for result in (before, after)
  )
  entry = {
      'family': family,
      'problems': int(rows.sum()),
      'before': old,
      'after': new,
      'gain': new - old,
      **_decomposed(before, after, rows),
  }
  del entry['modes']  # A family has too few completions of each mode.
  return entry


def _change(before: float | None, after: float | None) -> str:
  """Return '41.3 % → 78.0 %' for 0.413 and 0.78."""
  return f'{numerals.share(before)} → {numerals.share(after)}'


def heading(split: str, problems: int, samples: int, seed: int) -> str:
  """Return the line that describes the numbers below it."""
  return (
      f'{split}: {problems:,} problems x {samples} samples, seed {seed};'
      f' {100 * intervals.LEVEL:.0f} % intervals'
  )


def print_table(console: console_lib.Console, *columns: Sequence[Any]) -> None:
  """Print a table, its first column on the left and numbers on the right.

  Args:
    console: Where to print.
    *columns: The heading and the cells of each column; short ones are padded.
  """
  table = table_lib.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
  (first, *_), *others = columns
  # Wide numbers would leave no room for the names.
  longest = max((len(str(cell)) for cell in columns[0][1:]), default=0)
  least = min(longest, _LEAST_NAME)
  table.add_column(first, overflow='fold', min_width=least)
  for heading, *_ in others:
    table.add_column(heading, justify='right', no_wrap=True)
  # Names of families and modes come from a domain and may look like markup.
  cells = (column[1:] for column in columns)
  for row in itertools.zip_longest(*cells, fillvalue=''):
    table.add_row(*(markup.escape(str(cell)) for cell in row))
  console.print(table)


def print_scores(
    result: evaluate.EvalResult, console: console_lib.Console
) -> None:
  """Print the scores of one policy."""
  count, samples = result.outcomes.shape
  console.print(heading(result.split, count, samples, result.seed))
  passes = [(k, value) for k, value in result.pass_at_k.items() if k > 1]
  print_table(
      console,
      (f'Avg@{samples}', numerals.share(result.avg_at_k.value)),
      ('interval', numerals.interval(dataclasses.asdict(result.avg_at_k))),
      *((f'pass@{k}', numerals.share(value)) for k, value in passes),
      ('tokens', f'{result.n_tokens:.1f}'),
      ('truncated', numerals.share(result.truncated)),
  )
  if result.modes is not None:
    codes = result.mode_codes.items()
    chosen = {n: (result.modes == code) & result.graded for n, code in codes}
    chosen = {name: there for name, there in chosen.items() if there.any()}
    graded = result.graded.sum()
    print_table(
        console,
        ('mode', *chosen),
        ('share', *(numerals.share(c.sum() / graded) for c in chosen.values())),
        (
            'solved',
            *(
                numerals.share(result.outcomes[c].mean())
                for c in chosen.values()
            ),
        ),
    )
  names = np.array(result.families)
  scores = {n: result.problem_scores[names == n] for n in np.unique(names)}
  print_table(
      console,
      ('family', *scores),
      ('problems', *(f'{len(s):,}' for s in scores.values())),
      ('solved', *(numerals.share(s.mean()) for s in scores.values())),
  )


def print_gain(report: Mapping[str, Any], console: console_lib.Console) -> None:
  """Print what `report_gain` returned.

  Args:
    report: Result of `report_gain`, or the same read from JSON.
    console: Where to print.
  """
  k, gain, families = (report[n] for n in ('samples', 'gain', 'families'))
  console.print(heading(report['split'], report['problems'], k, report['seed']))
  sides = report['before'], report['after']
  print_table(
      console,
      ('policy', 'base', 'trained', 'gain'),
      ('step', *(side['step'] for side in sides)),
      (
          f'Avg@{k}',
          *(numerals.share(side['value']) for side in sides),
          numerals.points(gain['value']),
      ),
      (
          'interval',
          *map(numerals.interval, sides),
          numerals.interval(gain, '+.1f'),
      ),
      (
          f'pass@{k}',
          *(numerals.share(side['pass_at_k'][str(k)]) for side in sides),
      ),
      ('tokens', *(f'{side["n_tokens"]:.1f}' for side in sides)),
      ('truncated', *(numerals.share(side['truncated']) for side in sides)),
  )
  if report['modes'] is not None:
    _print_modes(report, console)
  print_table(
      console,
      ('family', *(f['family'] for f in families)),
      ('problems', *(f'{f["problems"]:,}' for f in families)),
      ('solved', *(_change(f['before'], f['after']) for f in families)),
      ('gain', *(numerals.points(f['gain']) for f in families)),
      ('shift', *(numerals.points(f['mode_shift']) for f in families)),
      ('within', *(numerals.points(f['within_mode']) for f in families)),
  )


def _print_modes(
    report: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print decomposition, oracle and one row per mode."""
  console.print(
      f'gain = mode shift {numerals.points(report["mode_shift"])}'
      f' + within a mode {numerals.points(report["within_mode"])} points'
  )
  oracle, modes = report['oracle'], report['modes']
  console.print(
      f'oracle: the best mode of the base policy is {oracle["mode"]}, solved in'
      f' {numerals.share(oracle["accuracy"])} of {oracle["rollouts"]:,}'
      ' completions'
      if oracle
      else 'oracle: no mode of the base policy has at least'
      f' {modes_lib.MIN_ROLLOUTS} completions',
      markup=False,
  )
  both = lambda mode, what: _change(
      mode[f'{what}_before'], mode[f'{what}_after']
  )
  print_table(
      console,
      ('mode', *(mode['name'] for mode in modes)),
      ('share', *(both(mode, 'share') for mode in modes)),
      ('solved', *(both(mode, 'accuracy') for mode in modes)),
      ('shift', *(numerals.points(mode['shift']) for mode in modes)),
      ('within', *(numerals.points(mode['within']) for mode in modes)),
  )
