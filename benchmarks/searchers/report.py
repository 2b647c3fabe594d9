"""Tables of the results of each rule, with intervals."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import pathlib
import subprocess
from typing import Any

import numpy as np

from benchmarks import json_lines
from benchmarks.searchers import racing
from benchmarks.searchers import replays
from benchmarks.searchers import rivals
from benchmarks.searchers import rules
from benchmarks.searchers import tables
from evojax.stats import intervals

_ROOT = pathlib.Path(__file__).parents[2]


def run(
    path: pathlib.Path,
    setting: str,
    plan: replays.Plan,
    changes: racing.Changes,
    python: str = '',
) -> dict[str, dict[str, Any]]:
  """Return the results of each rule in the replays of a setting.

  Args:
    path: Rows of `recording`.
    setting: The setting whose rows are replayed.
    plan: The replays.
    changes: Prior knowledge of the factors.
    python: Python of the environment of `rivals`; '' leaves them out.
  """
  table = tables.tables(json_lines.read(path))[setting]
  found = {}
  for name, rule in rules.RULES.items():
    found[name] = replays.replayed(
        table, plan, lambda world, rng, rule=rule: rule(world, rng, changes)
    )
  found['random search'] = replays.searched(table, plan, rules.random_search)
  for name in rivals.RIVALS if python else ():
    found[name] = _of_rival(path, setting, plan, name, python)
  return found


def _of_rival(
    path: pathlib.Path,
    setting: str,
    plan: replays.Plan,
    name: str,
    python: str,
) -> dict[str, Any]:
  """Return the results of a searcher that needs another environment.

  Raises:
    subprocess.CalledProcessError: If it fails; its message goes to standard
      error.
  """
  request = dict(
      path=str(path.resolve()), setting=setting, plan=vars(plan), rival=name
  )
  done = subprocess.run(
      [python, '-m', 'benchmarks.searchers.rivals'],
      input=json.dumps(request) + '\n',
      stdout=subprocess.PIPE,
      text=True,
      check=True,
      cwd=_ROOT,
  )
  return json.loads(done.stdout)


@dataclasses.dataclass(frozen=True)
class Mean:
  """A mean over replays, as a fraction."""

  value: float
  error: float  # Standard error due to the number of replays.
  margin: float  # Half of the 95 % interval due to the recorded seeds.

  @property
  def both(self) -> float:
    """The margin of replays and seeds together."""
    return math.hypot(intervals.Z95 * self.error, self.margin)


def mean(scores: np.ndarray, seeds: int) -> Mean:
  """Return the mean of scores with its uncertainties.

  The mean curves of worlds vary by the uncertainty that S recorded seeds leave.
  So the variance of the worlds' means, minus the part due to the replays within
  a world, is the squared standard error due to the seeds (one-way analysis of
  variance). The margin is this error times the quantile of Student's t at S - 1
  degrees of freedom.

  Args:
    scores: Scores of replays, or their differences, float64 [worlds, repeats].
    seeds: S, the number of recorded seeds.
  """
  worlds, repeats = scores.shape
  means = scores.mean(axis=1)
  variance = float(means.var(ddof=1))
  within = float(scores.var(axis=1, ddof=1).mean()) if repeats > 1 else 0.0
  between = math.sqrt(max(0.0, variance - within / repeats))
  error = math.sqrt(variance / worlds)
  return Mean(float(means.mean()), error, intervals.margin(between, seeds - 1))


def lines(
    table: tables.Table,
    found: Mapping[str, Mapping[str, Any]],
    best: tuple[int, float],
    plan: replays.Plan,
) -> Sequence[str]:
  """Return the lines for a setting, the best rule first."""
  seeds = table.share.shape[1]
  harness, known = best
  made = [
      f'{table.setting}, {len(table.share)} harnesses under {seeds} seeds:'
      f' {plan.worlds * plan.repeats} replays of {plan.tokens:,.0f} tokens',
      f'  the best harness, known beforehand: {harness}, {100 * known:.1f}',
  ]
  own = np.array(found['evojax']['scores'])
  each = {name: np.array(of['scores']) for name, of in found.items()}
  for name in sorted(each, key=lambda n: -each[n].mean()):
    of = found[name]
    its = mean(each[name], seeds)
    text = (
        f'  {name:22} {100 * its.value:5.1f} ±{100 * its.error:.1f} by replays,'
        f' ±{100 * its.margin:.1f} by seeds;'
        f' regret {100 * (known - its.value):.1f}'
    )
    if name != 'evojax':
      ahead = mean(own - each[name], seeds)
      low, high = ahead.value - ahead.both, ahead.value + ahead.both
      text += f'; evojax is {100 * ahead.value:+.1f}'
      text += f' [{100 * low:+.1f}, {100 * high:+.1f}]'
    repaired = np.mean([h > 0 and h & 1 for h in of['harnesses']])
    text += f'; factor 0 flipped in {100 * repaired:.0f} %'
    if of['beyond']:
      text += f'; past the curves in {100 * of["beyond"]:.0f} %'
    if 'most' in of:
      text += f'; trials of {of["most"]} units, {100 * of["part"]:.0f} % of all'
    made.append(text)
  for predicted, recorded in tables.error_of_switches(table):
    made.append(
        f'  a switch of the harness: {100 * recorded:.1f}, predicted'
        f' {100 * predicted:.1f}'
    )
  return made
