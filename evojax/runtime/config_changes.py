"""Config fields that may change between two starts of a run.

    refused(saved, config, 'train')  # {'grpo.group_size': (8, 16)}
"""

from collections.abc import Mapping, Sequence
import hashlib
import json
from typing import Any

import ml_collections

from evojax import config as config_lib

# Config fields that a resumed run may change, because training does not depend
# on them. Exception: `mesh` changes the order of sums, so a change of it logs a
# warning. An entry covers everything below it. `steps` may change too if the
# learning rate does not depend on it: see `_may_change`.
FREE_FIELDS = (
    'name',
    'checkpoint',
    'eval',
    'log',
    'mesh',
    'plan',
    'evolve.rounds',
    'evolve.device_seconds',
    'evolve.dollars',
    'evolve.dollars_per_device_hour',
    # Where servers are and how they are reached: a new machine, a new address.
    'rollout.urls',
    'rollout.urls_file',
    'rollout.api_key_env',
    'rollout.admin_key_env',
    'rollout.concurrency',
    'rollout.timeout_seconds',
    'rollout.weights_dir',
    'rollout.weights_transport',
)
# Free fields that are fixed if a run evolves: the dev scores and replays, by
# which it keeps changes, sample at this temperature.
_OF_RACES = ('eval.temperature',)
# Fields that a resumed run may change, and on which its results depend.
_OF_RESULTS = (
    'steps',
    'eval',
    'evolve.rounds',
    'evolve.device_seconds',
    'evolve.dollars',
)


def refused(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    mode: str,
    ended: bool = False,
) -> dict[str, tuple[Any, Any]]:
  """Return the fields that must not differ but do.

  Args:
    old: The config of the run, as nested JSON values.
    new: The config of its next start, likewise.
    mode: The mode of the run.
    ended: True if the run's results are final, so that the fields on which they
      depend must be equal as well.

  Returns:
    Field -> (value before, now).
  """
  was, now = config_lib.flatten(old), config_lib.flatten(new)
  pairs = {
      name: (
          was[name] if name in was else _without(name),
          now.get(name, '(absent)'),
      )
      for name in sorted(was | now)
  }
  return {
      name: (before, after)
      for name, (before, after) in pairs.items()
      if before != after and not _may_change(name, new, mode, ended)
  }


# Newer field -> the value with which evojax behaves as it did before the field
# existed. For all other fields, this is the default.
FORMERLY = {'evolve.settled': 1.0}


def _without(name: str) -> Any:
  """Return the value of a field that a run without it had, as JSON."""
  if name in FORMERLY:
    return FORMERLY[name]
  declared = config_lib.declaration(name)
  if not declared.path or isinstance(declared.default, type):
    return '(absent)'
  return json.loads(json.dumps(declared.default))


def _may_change(
    name: str, config: Mapping[str, Any], mode: str, ended: bool = False
) -> bool:
  """Return True if a run may change this field, see `refused`."""
  # Other modes race no arms, but they start from the seed harness, too.
  if mode not in ('evolve', 'aa') and name.startswith('evolve.'):
    return name != 'evolve.seed_harness'
  if ended and _is_below(name, _OF_RESULTS):
    return False
  if mode == 'evolve' and name in _OF_RACES:
    return False
  if name == 'steps':
    return config.get('optim', {}).get('schedule') == 'constant'
  return _is_below(name, FREE_FIELDS)


def _is_below(name: str, groups: Sequence[str]) -> bool:
  """Return True if a field is among these fields, or in one of these groups."""
  # Names end with a dot here; otherwise 'log' would cover 'log_prob' as well.
  return any(f'{name}.'.startswith(f'{group}.') for group in groups)


def recipe(config: ml_collections.ConfigDict) -> str:
  """Return the hash of the fields on which training depends, 64 hex digits."""
  values = config_lib.to_mapping(config)
  lasting = {
      name: value
      for name, value in config_lib.flatten(values).items()
      if not _may_change(name, values, 'train')
  }
  text = json.dumps(lasting, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
