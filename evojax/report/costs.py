"""Costs of runs that evolved: tokens by use, costs of a score, and regret.

Regret is the difference between the solved shares of a reference and of a run's
policy after equal numbers of sampled tokens, including those of the search.
References are other finished runs, usually of the best known recipe. All scores
on curves are those of training rollouts.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
import statistics
from typing import Any

import numpy as np
from rich import console as console_lib

from evojax import config as config_lib
from evojax.eval import report as report_lib
from evojax.evidence import store
from evojax.ledger import history as history_lib
from evojax.ledger import milestones
from evojax.ledger import records
from evojax.report import curves
from evojax.report import state
from evojax.runtime import numerals
from evojax.runtime import run_files
from evojax.stats import intervals

# Bounds of the shares of a run's tokens.
MOST_SCORES = 0.15  # Scores of dev and of perturbed problems.
LEAST_POLICY = 0.5  # Training of the policy,
LEAST_POLICY_WITH_HORIZON = 0.35  # or this with shadows of kept changes.
# Uses of tokens, and the keys of `history.tokens_by_use` that they sum up.
_USES = {
    'policy': ('policy',),
    'other arms': ('incumbents', 'candidates'),
    'horizon': ('shadows',),
    'replays': ('replays',),
}
# Config fields on which the solved share of rollouts depends, for one policy.
_SAMPLED = (
    *('domain', 'data', 'model'),
    *('rollout.temperature', 'rollout.max_tokens'),
)
# A reference is long enough if it has this share of a run's tokens: its number
# of steps was chosen beforehand, and tokens per step vary.
_ENOUGH = 0.98

Curve = Sequence[milestones.Milestone]


def tokens_of_scores(
    run: history_lib.History, workdir: str | os.PathLike[str]
) -> dict[int, dict[str, int]]:
  """Return the tokens of scores on disk, by round and by 'dev', 'perturbed'."""

  def tokens(folder: pathlib.Path) -> int:
    return sum(
        int(store.read_numbers(folder, 'dev', step, 'n_tokens')[0].sum())
        for step in store.list_steps(folder, 'dev')
    )

  return {
      race.round: {
          kind: sum(
              tokens(pathlib.Path(workdir, f'{arm.dev}{ending}'))
              for arm in race.arms
              if arm.dev
          )
          for kind, ending in (('dev', ''), ('perturbed', '-perturbed'))
      }
      for race in run.races
  }


def uses(
    run: history_lib.History, scored: Mapping[int, Mapping[str, int]]
) -> dict[str, int]:
  """Return all tokens that a finished run sampled, by use.

  Args:
    run: The history of the run, with its sealed scores.
    scored: Tokens of its scores, see `tokens_of_scores`, by which dev and
      perturbed scores are told apart.

  Returns:
    policy (training of the states that became the policy), other arms, horizon
    (shadows of kept changes), replays, dev, and perturbed.
  """
  by_use = run.tokens_by_use
  found = {
      name: sum(by_use[key] for key in keys) for name, keys in _USES.items()
  }
  perturbed = sum(tokens['perturbed'] for tokens in scored.values())
  return found | {
      'dev': by_use['scores'] - perturbed,
      'perturbed': perturbed,
  }


def beyond(tokens: Mapping[str, int]) -> list[str]:
  """Return the uses whose share of a run's tokens is outside its bounds.

  Args:
    tokens: Tokens by use, see `uses`.
  """
  total = sum(tokens.values()) or 1
  least = LEAST_POLICY_WITH_HORIZON if tokens['horizon'] else LEAST_POLICY
  found = ['policy'] if tokens['policy'] < least * total else []
  if tokens['dev'] + tokens['perturbed'] > MOST_SCORES * total:
    found += [name for name in ('dev', 'perturbed') if tokens[name]]
  return found


# ---------------------------------------------------------------------- regret


def of_training(workdir: str | os.PathLike[str], updates: int) -> Curve:
  """Return the curve of a training: the mean outcome of a number of updates.

  Args:
    workdir: The directory of the training.
    updates: Number of updates of each mean. Means do not overlap; if the number
      of steps is not a multiple, only the tokens of the first steps count.
  """
  rows = [r for r in curves.read(workdir) if r.get('sampled_tokens')]
  devices = state.read_json(pathlib.Path(workdir, run_files.MANIFEST), [{}])[-1]
  tokens = np.cumsum([row['sampled_tokens'] for row in rows])
  seconds = np.cumsum([row.get('step_seconds', 0.0) for row in rows])
  return [
      milestones.Milestone(
          score=statistics.fmean(
              row['outcome'] for row in rows[end - updates : end]
          ),
          version=f'step {rows[end - 1]["step"]}',
          tokens=int(tokens[end - 1]),
          device_seconds=float(seconds[end - 1]) * devices.get('devices', 1),
      )
      for end in range(len(rows) % updates + updates, len(rows) + 1, updates)
  ]


def _at(curve: Curve, tokens: np.ndarray) -> np.ndarray:
  """Return a curve's scores at numbers of tokens, linear between its points."""
  known = [point.tokens for point in curve]
  return np.interp(tokens, known, [point.score for point in curve])


def regret(curve: Curve, references: Sequence[Curve]) -> dict[str, Any] | None:
  """Return how much more references solve after equal numbers of tokens.

  Args:
    curve: The curve of a run.
    references: Curves of references.

  Returns:
    end: the difference at the end of the run; mean: the mean difference over
    its tokens, from where all curves have begun; references: the number of
    references that trained for as many tokens, whose mean is compared. None if
    there are none. Differences are fractions, negative if the run is ahead.
  """
  last = curve[-1].tokens
  far = [r for r in references if r and r[-1].tokens >= _ENOUGH * last]
  if not far:
    return None
  first = max(c[0].tokens for c in (curve, *far))
  last = min(c[-1].tokens for c in (curve, *far))
  if first >= last:
    return None
  grid = {p.tokens for c in (curve, *far) for p in c}
  at = np.array(sorted(t for t in grid if first <= t <= last), float)
  # All curves are linear between two points of the grid.
  behind = np.mean([_at(c, at) for c in far], axis=0) - _at(curve, at)
  return {
      'end': float(behind[-1]),
      'mean': float(np.trapezoid(behind, at) / (last - first)),
      'references': len(far),
  }


def _check_sampled(
    workdir: str | os.PathLike[str], other: str | os.PathLike[str]
) -> None:
  """Check that a policy would have the same solved share in both runs."""
  saved = lambda w: state.read_json(pathlib.Path(w, run_files.CONFIG), {})
  own, its = (
      config_lib.flatten(saved(w).get('config', {})) for w in (workdir, other)
  )
  differ = sorted(
      name
      for name in own.keys() | its.keys()
      if name.startswith(_SAMPLED) and own.get(name) != its.get(name)
  )
  if differ:
    raise ValueError(
        f'--references={other}: {differ[0]} is {its.get(differ[0])!r}, and'
        f' {own.get(differ[0])!r} in {workdir}: rollouts of these runs cannot'
        ' be compared. Name a reference that samples alike'
    )


def _updates(run: history_lib.History) -> int:
  """Return the number of updates by which a run's last version is scored."""
  arms = {arm.folder: arm.updates for race in run.races for arm in race.arms}
  made = run.all(records.Promote)
  return sum(arms.get(s.folder, 0) for s in made[-1].sources) if made else 0


def _references(
    workdir: str | os.PathLike[str],
    run: history_lib.History,
    references: Sequence[str | os.PathLike[str]],
) -> dict[str, Curve]:
  """Return the curves of references of a run, by workdir.

  Raises:
    ValueError: If one has too few steps, or its rollouts cannot be compared.
  """
  found = {}
  for other in references:
    _check_sampled(workdir, other)
    if pathlib.Path(other, run_files.LEDGER).exists():
      read = history_lib.read(other)
      curve = _curve(read, tokens_of_scores(read, other))
    else:
      curve = of_training(other, _updates(run) or 1)
    if not curve:
      raise ValueError(
          f'--references={other} has no curve: its steps are fewer than the'
          f' {_updates(run)} updates of a version of {workdir}. Name a longer'
          ' training'
      )
    found[os.path.abspath(other)] = curve
  return found


def _curve(
    run: history_lib.History, scored: Mapping[int, Mapping[str, int]]
) -> Curve:
  """Return the curve of a run that evolved, with the tokens of its scores."""
  return milestones.curve(run, {n: sum(t.values()) for n, t in scored.items()})


# ----------------------------------------------------------------------- table


def _first(curve: Curve, scores: Sequence[float]) -> list[Any]:
  """Return [tokens, device-seconds] of each score, None if not reached."""
  return [
      [point.tokens, point.device_seconds] if point else None
      for point in milestones.first(curve, scores)
  ]


def summarise(
    workdirs: Sequence[str | os.PathLike[str]],
    runs: Sequence[history_lib.History],
    references: Sequence[str | os.PathLike[str]] = (),
    scores: Sequence[float] = milestones.SCORES,
) -> dict[str, Any]:
  """Summarise what finished runs spent, and how far they are behind.

  Args:
    workdirs: Workdirs of S >= 2 runs that evolved and have sealed scores.
    runs: Their histories.
    references: Workdirs of references, trained on the same base policy.
    scores: Fractions in rising order whose costs are looked up.

  Returns:
    JSON values. scores. runs: one entry per workdir: run, tokens, uses (tokens
    by use, see `uses`), beyond (uses whose share is outside its bounds),
    reached (for each score [tokens, device-seconds] of the first version at or
    above it, or null) and regret (see `regret`). references: run and reached.
    over: means over runs with t intervals, each null if not all runs have a
    value: tokens, shares (by use), reached ([tokens, device-seconds] of each
    score) and regret (end, mean).

  Raises:
    ValueError: If a reference has no curve, or its rollouts cannot be compared.
  """
  found, known = [], {}
  for workdir, run in zip(workdirs, runs, strict=True):
    scored = tokens_of_scores(run, workdir)
    curve, tokens = _curve(run, scored), uses(run, scored)
    known = _references(workdir, run, references)
    found.append({
        'run': pathlib.Path(workdir).name,
        'tokens': sum(tokens.values()),
        'uses': tokens,
        'beyond': beyond(tokens),
        'reached': _first(curve, scores),
        'regret': regret(curve, list(known.values())) if curve else None,
    })

  def over(of) -> dict[str, Any] | None:
    values = [of(run) for run in found]
    if None in values:
      return None
    return dataclasses.asdict(intervals.student(values))

  share = lambda use: lambda run: run['uses'][use] / (run['tokens'] or 1)
  at = lambda i, n: lambda run: run['reached'][i] and run['reached'][i][n]
  behind = lambda key: lambda run: run['regret'] and run['regret'][key]
  return {
      'scores': list(scores),
      'runs': found,
      'references': [
          {'run': pathlib.Path(path).name, 'reached': _first(curve, scores)}
          for path, curve in known.items()
      ],
      'over': {
          'tokens': over(lambda run: run['tokens']),
          'shares': {use: over(share(use)) for use in found[0]['uses']},
          'reached': [
              [over(at(i, n)) for n in range(2)] if all(reached) else None
              for i, reached in enumerate(
                  zip(*(run['reached'] for run in found), strict=True)
              )
          ],
          'regret': {key: over(behind(key)) for key in ('end', 'mean')},
      },
  }


def _whole(share: float) -> str:
  """Return '95 %' for 0.95."""
  return f'{100 * share:.3g} %'


def _with_means(cells: Sequence[str], over: Any, form: Any) -> list[str]:
  """Return the cells of all runs, their mean, and half of its interval."""
  if over is None:
    return [*cells, '', '']
  margin = form(over['high'] - over['value']).removeprefix('+')
  return [*cells, form(over['value']), f'± {margin}']


def _print_uses(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print the tokens by use; shares outside their bounds are marked."""
  runs, over = summary['runs'], summary['over']

  def cells(use: str) -> list[str]:
    shares = [
        numerals.share(run['uses'][use] / (run['tokens'] or 1))
        + ('!' if use in run['beyond'] else '')
        for run in runs
    ]
    return _with_means(shares, over['shares'][use], numerals.share)

  tokens = [numerals.tokens(run['tokens']) for run in runs]
  report_lib.print_table(
      console,
      ('tokens by use', *(run['run'] for run in runs), 'mean', ''),
      ('in all', *_with_means(tokens, over['tokens'], numerals.tokens)),
      *((use, *cells(use)) for use in over['shares']),
  )
  within = sum(not run['beyond'] for run in runs)
  console.print(
      f'{within} of {len(runs)} runs keep the bounds (others are marked with'
      f' !): training of the policy at least {_whole(LEAST_POLICY)},'
      f' or {_whole(LEAST_POLICY_WITH_HORIZON)} if shadows of kept changes'
      ' (horizon) were trained; dev and perturbed scores at most'
      f' {_whole(MOST_SCORES)}. ±: half of a {_whole(intervals.LEVEL)} t'
      ' interval over seeds'
  )


def _print_reached(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print the tokens and device-seconds until each score."""
  runs, rows = summary['runs'], [*summary['runs'], *summary['references']]
  for index, (what, form) in enumerate((
      ('tokens until', numerals.tokens),
      ('device time until', numerals.duration),
  )):

    def cells(i: int, index=index, form=form) -> list[str]:
      found = [row['reached'][i] for row in rows]
      values = [run['reached'][i] for run in runs if run['reached'][i]]
      shown = ['never' if f is None else form(f[index]) for f in found]
      over = summary['over']['reached'][i]
      count = f'{len(values)} of {len(runs)}'
      return [*shown, form(over[index]['value']) if over else count]

    report_lib.print_table(
        console,
        (what, *(row['run'] for row in rows), 'mean'),
        *(
            (_whole(score), *cells(i))
            for i, score in enumerate(summary['scores'])
        ),
    )
  console.print(
      'these are costs of the whole run, search included, until the first'
      ' version whose own rollouts solve that much (nothing is interpolated);'
      ' never: not reached. The mean is given only if all runs reach the score'
  )


def _print_regret(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print how far the runs are behind the references."""
  runs = summary['runs']

  def cells(key: str) -> list[str]:
    found = [run['regret'] for run in runs]
    shown = [numerals.points(f[key]) if f else '' for f in found]
    return _with_means(
        shown, summary['over']['regret'][key], numerals.points
    )

  report_lib.print_table(
      console,
      ('regret', *(run['run'] for run in runs), 'mean', ''),
      ('at the end', *cells('end')),
      ('on average', *cells('mean')),
      ('references', *((r['regret'] or {}).get('references', 0) for r in runs)),
  )
  names = ', '.join(row['run'] for row in summary['references'])
  console.print(
      'regret: how many points more the references solve after equally many'
      ' tokens, measured on the rollouts of training, with lines between'
      ' versions; at the end, and on average over the tokens of a run.'
      f' References: the mean of those of {names} that trained for as many'
      ' tokens'
  )


def print_summary(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  """Print what `summarise` returned."""
  _print_uses(summary, console)
  _print_reached(summary, console)
  if summary['references']:
    _print_regret(summary, console)
