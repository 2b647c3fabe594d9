"""Rows of the ledger from older versions of their records.

A row is upgraded one version at a time; the frozen workdirs in tests/frozen
hold rows of every version.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses

from evojax.ledger import records

FORMER = {'trial': 'race'}  # Former names of steps.


def _renamed(old: str, new: str) -> Callable[[dict], dict]:
  """Return an upgrade that renames one key."""
  return lambda row: {
      new if name == old else name: value for name, value in row.items()
  }


_folder = _renamed('arm', 'folder')
_class = _renamed('klass', 'intervention_class')


def _arm_1(arm: dict) -> dict:
  """Upgrade an arm of a trial, whose `arm` was the folder of its dev scores."""
  return _renamed('trained', 'folder')(_renamed('arm', 'scores')(arm))


def _race_2(row: dict) -> dict:
  """Upgrade a trial of one change to a round with one candidate."""
  number, count = row['trial'], collections.Counter()
  arms = []
  for arm in row['arms']:
    role = arm['role']
    fields = {k: v for k, v in arm.items() if k not in ('role', 'scores')}
    arms.append(
        fields
        | {
            'role': 'incumbent' if role == 'control' else 'candidate',
            'trial': None if role == 'control' else number,
            'pair': count[role],
            'score': None,
            'dev': arm['scores'],
        }
    )
    count[role] += 1
  standing = dict.fromkeys(f.name for f in dataclasses.fields(records.Standing))
  standing |= dict(trial=number, index=number + 1, rounds=1)
  standing |= dict(differences=[], errors=[], pairs=row['children'])
  standing |= dict(e_value=1.0, detectable=row['mde'])
  return {
      'round': number,
      'version': '',
      'start': row['start'],
      'scored_by': 'dev',
      'arms': arms,
      'standings': [standing],
  }


def _promote_2(row: dict) -> dict:
  """Upgrade a version without sources: its only source is its own arm."""
  source = {name: row[name] for name in ('folder', 'harness', 'end')}
  return row | {'round': None, 'sources': [source | {'weight': 1.0}]}


def _without(*names: str) -> Callable[[dict], dict]:
  """Return an upgrade that drops fields."""
  return lambda row: {k: v for k, v in row.items() if k not in names}


# Fields of the fixed-level significance test that trials used before races.
_FIXED = ('df', 'p', 'alpha', 'sigma_seed', 'se_problems', 'wilcoxon_p')


# (class, version of the row) -> function that returns the row of the next
# version. Rows without a version are of version 0.
UPGRADES: Mapping[tuple[type, int], Callable[[dict], dict]] = {
    (records.Arm, 0): _folder,
    (records.Train, 0): _folder,
    (records.Promote, 0): _folder,
    (records.Retrain, 0): _folder,
    (records.Diagnose, 0): lambda row: row
    | {'measures': [m | {'calls_for': []} for m in row['measures']]},
    (records.Diagnose, 1): lambda row: row | {'round': row['trial']},
    (records.Diagnose, 2): lambda row: row | {'findings': []},
    # A row without a proposal held only its version and an empty proposer.
    (records.Hypothesize, 0): lambda row: dataclasses.asdict(
        records.Hypothesize(trial=0, version='')
    )
    | row,
    (records.Design, 0): lambda row: row | {'delta': _class(row['delta'])},
    (records.Backtest, 0): lambda row: {'crash': ''} | row,
    (records.Backtest, 1): lambda row: row | {'sampled_tokens': 0},
    (records.Race, 0): lambda row: row
    | {'arms': list(map(_arm_1, row['arms']))},
    (records.Race, 1): _race_2,
    (records.Race, 2): lambda row: row | {'queue': []},
    (records.Race, 3): lambda row: row
    | {'queue': [place | {'hopeless': False} for place in row['queue']]},
    (records.Verify, 1): lambda row: dataclasses.asdict(
        records.Verify(trial=0, version='', status='', reasons=())
    )
    | _without(*_FIXED, 'no_loss', 'control', 'child')(row),
    (records.Promote, 1): _promote_2,
    (records.Promote, 2): lambda row: row | {'outer_learning_rate': 1.0},
    (records.Accumulate, 0): lambda row: row
    | {'validity': _class(row['validity'])},
    (records.Accumulate, 1): _without('head'),
}
