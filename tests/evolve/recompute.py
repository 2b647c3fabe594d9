"""Recomputes every verdict of a run from its evidence.

    python tests/evolve/recompute.py WORKDIR

Reads the ledger and the dev evidence of all arms, on problems as they are and
written otherwise, and shares no code with the package, so that a wrong decision
there cannot confirm itself here. Exits with 0 if all numbers agree to 1e-9,
with 1 and the differences otherwise.
"""

import json
import pathlib
import sys

import numpy as np
import pandas as pd
from scipy import stats

TOLERANCE = 1e-9


def arm_scores(folder: pathlib.Path) -> pd.Series:
  """Mean outcome of each problem of an arm's last dev evaluation."""
  file = max((folder / 'evidence' / 'dev').glob('step_*.parquet'))
  columns = ['group', 'problem_id', 'outcome', 'graded']
  frame = pd.read_parquet(file, columns=columns)
  frame = frame[frame['graded']]
  outcome = frame['outcome'].astype('float64')
  return outcome.groupby([frame['group'], frame['problem_id']]).mean()


def sum_of_rest(table: pd.DataFrame) -> float:
  """Squares beyond arms (columns) and problems: two-way anova."""
  of_arm, of_problem = table.mean(axis=0), table.mean(axis=1)
  total = table.stack().var(ddof=0) * table.size
  arms = len(table) * of_arm.var(ddof=0) * table.shape[1]
  problems = table.shape[1] * of_problem.var(ddof=0) * len(table)
  return total - arms - problems


def effect(control: pd.DataFrame, child: pd.DataFrame) -> dict[str, float]:
  """Columns are arms, rows problems."""
  if not control.index.equals(child.index):
    raise ValueError('controls and children were scored on other problems')
  problems, arms, children = len(control), control.shape[1], child.shape[1]
  value = child.stack().mean() - control.stack().mean()
  free = arms + children - 2
  rest = (sum_of_rest(control) + sum_of_rest(child)) / free / (problems - 1)
  spread = control.mean().var(ddof=0) * arms
  spread += child.mean().var(ddof=0) * children
  variance = spread / free or rest / problems
  seeds = variance / arms + variance / children

  paired = (child.mean(axis=1) - control.mean(axis=1)).var() / problems
  noise = (rest / arms + rest / children) / problems
  interaction = paired - noise
  terms = [(seeds, free)]
  if interaction > 0:
    terms += [(paired, problems - 1), (noise, free * (problems - 1))]
  square = seeds + max(interaction, 0.0)
  spread = sum(term**2 / degrees for term, degrees in terms)
  df = max(square**2 / spread, free) if spread else free
  error = square**0.5
  if error:
    p = stats.t(df).sf(value / error)
    low, high = stats.t(df, value, error).interval(0.95)
  else:
    p, low, high = float(value <= 0), value, value
  return {
      'effect': value,
      'standard_error': error,
      'df': df,
      'sigma_seed': variance**0.5,
      'low': low,
      'high': high,
      'p': p,
      'control': control.stack().mean(),
      'child': child.stack().mean(),
  }


def perturbed_effect(workdir: pathlib.Path, arms: list[dict]) -> float | None:
  """Gain on the problems written otherwise; None if no arm was asked them."""
  columns = {'control': {}, 'child': {}}
  folders = {
      arm['scores']: workdir / f'{arm["scores"]}-perturbed' for arm in arms
  }
  if not any(folder.exists() for folder in folders.values()):
    return None
  for arm in arms:
    columns[arm['role']][arm['scores']] = arm_scores(folders[arm['scores']])
  tables = [pd.DataFrame(scores) for scores in columns.values()]
  if any(table.isna().any(axis=None) for table in tables):
    raise ValueError('arms of a trial were scored on different problems')
  return effect(*tables)['effect']


def level_of_test(level: float, horizon: int, kept: list[bool]) -> float:
  """LORD++ with gamma_j ~ 1 / j and three quarters of the wealth at first."""
  share = 1 / np.arange(1, horizon + 1)
  share = np.append(share / share.sum(), np.zeros(len(kept) + 1))
  now = len(kept)  # share[k] is gamma of k + 1.
  discoveries = np.flatnonzero(kept)
  total = 3 * level / 4 * share[now]
  for rank, when in enumerate(discoveries):
    total += (level if rank else level / 4) * share[now - when - 1]
  return float(total)


def compare(workdir: pathlib.Path) -> list[str]:
  """Every number that differs, in words."""
  lines = (workdir / 'ledger.jsonl').read_text().splitlines()
  rows = [json.loads(line)['payload'] for line in lines]
  config = next(row['config'] for row in rows if row['step'] == 'open')
  rate = config['evolve']['false_discovery_rate']
  tests = config['evolve']['trials']
  trials = {row['trial']: row for row in rows if row['step'] == 'trial'}
  kept, differences = [], []
  for row in rows:
    if row['step'] != 'verify' or row.get('p') is None:
      continue
    arms = {'control': {}, 'child': {}}
    for arm in trials[row['trial']]['arms']:
      if arm['status'] == 'done':
        arms[arm['role']][arm['scores']] = arm_scores(workdir / arm['scores'])
    tables = []
    for scores in arms.values():
      table = pd.DataFrame(scores)
      if table.isna().any(axis=None):
        raise ValueError('arms of a trial were scored on different problems')
      tables.append(table)
    numbers = effect(*tables)
    numbers['alpha'] = level_of_test(rate, tests, kept)
    for name, value in numbers.items():
      if not abs(row[name] - value) <= TOLERANCE:
        differences.append(
            f'trial {row["trial"]}: {name} is {row[name]!r} in the ledger and'
            f' {value!r} from the evidence'
        )
    passed = numbers['p'] <= numbers['alpha']
    perturbed = None
    if passed:
      perturbed = perturbed_effect(workdir, trials[row['trial']]['arms'])
    stored = row['perturbed_effect']
    if None in (stored, perturbed):
      same = stored is perturbed
    else:
      same = abs(stored - perturbed) <= TOLERANCE
    if not same:
      differences.append(
          f'trial {row["trial"]}: perturbed_effect is {stored!r} in the ledger'
          f' and {perturbed!r} from the evidence'
      )
    keep = passed and not row['alerts'] and (perturbed is None or perturbed > 0)
    status = 'keep' if keep else 'discard'
    if row['status'] != status:
      differences.append(
          f'trial {row["trial"]}: {row["status"]} in the ledger, {status} from'
          ' the evidence'
      )
    kept.append(keep)
  print(f'{len(kept)} verdicts recomputed, {len(differences)} differences')
  return differences


if __name__ == '__main__':
  found = compare(pathlib.Path(sys.argv[1]))
  print(*found, sep='\n')
  sys.exit(bool(found))
