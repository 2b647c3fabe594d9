"""Compares systems by the policies that they train on broken settings."""

from collections.abc import Mapping, Sequence
import sys
from typing import Any

from benchmarks.faults import evaluation
from evojax.stats import intervals

# Two settings of each domain, with different causes.
SETTINGS = (
    'math_brevity_paid',
    'math_limit_short',
    'coding_limit_half',
    'coding_rate_low',
)
# Recordings use smaller seeds, and runs with seeds 100 to 108 and 201 to 206
# were looked at while rules were changed.
FIRST_SEED = 207
OWN = 'evojax'

Row = Mapping[str, Any]


def systems(best: str, python: str) -> dict[str, list[str]]:
  """Return the commands of the systems.

  Args:
    best: Key of `rivals.LIVE`, the best searcher in replays.
    python: Python of the environment of `rivals`; '' leaves its searchers out.
  """
  command = [sys.executable, '-m', 'benchmarks.searchers.live']
  found = evaluation.systems([OWN])
  found |= {name: [*command, name] for name in ('reference', 'seed')}
  if python:
    found |= {name: [*command, name, python] for name in (best, 'pbt')}
  return found


def lines(rows: Sequence[Row]) -> list[str]:
  """Return the table: sealed scores by setting, then over all settings.

  The interval of a difference is Student's, over the jobs in which both systems
  left a policy: pairs with the same setting and seed.
  """
  made = []
  for setting in (*sorted({row['setting'] for row in rows}), ''):
    made.append(f'{setting or "all settings"}:')
    scores = _scores(rows, setting)
    own = scores.get(OWN, {})
    mean = lambda of: sum(of.values()) / len(of)
    for system in sorted(scores, key=lambda name: -mean(scores[name])):
      its = scores[system]
      text = f'  {system:10} {100 * mean(its):5.1f} ({len(its)} jobs)'
      both = sorted(own.keys() & its.keys())
      if system != OWN and len(both) > 1:
        d = [own[job] - its[job] for job in both]
        gain = intervals.student(d)
        low, high = 100 * gain.low, 100 * gain.high
        text += (
            f'; {OWN} is {100 * gain.value:+.1f} [{low:+.1f}, {high:+.1f}]'
            f' in {len(both)} pairs'
        )
      made.append(text)
    lost = [
        r['system']
        for r in rows
        if r['setting'] == setting and r['true'] is None
    ]
    made += [
        f'  {system:10} left no policy in {lost.count(system)} jobs'
        for system in sorted(set(lost))
    ]
  return made


def _scores(
    rows: Sequence[Row], setting: str
) -> dict[str, dict[tuple[str, int], float]]:
  """Return true scores by system and job, of all settings if it is ''."""
  found: dict[str, dict[tuple[str, int], float]] = {}
  for row in rows:
    if row['true'] is not None and setting in ('', row['setting']):
      job = row['setting'], row['seed']
      found.setdefault(row['system'], {})[job] = row['true']
  return found
