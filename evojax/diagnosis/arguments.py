"""Settings of a run, from the arguments that its trainer has saved.

TRL saves its arguments as training_args.bin in every checkpoint and exported
model: a zip archive of `torch.save` with a pickle of a GRPOConfig. It is read
without torch, and no code that the pickle names is run. verl uses Hydra,
which writes .hydra/config.yaml below the folder from which it was started.
prime-rl writes configs/trainer.json and configs/orchestrator.json; older
versions write .toml. Runs in Weights & Biases hold the arguments as their
config.
"""

from collections.abc import Mapping, Sequence
import io
import json
import math
import pathlib
import pickle
import tomllib
from typing import Any, NoReturn
import zipfile

import yaml

from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.runtime import pickles

FILE = 'training_args.bin'
HYDRA = '.hydra/config.yaml'
_PICKLE = 'data.pkl'
# A GRPOConfig takes 7 KB, verl's config 30 KB.
_MOST_BYTES = 4 << 20
_PARSERS = {
    '.json': json.loads,
    '.toml': tomllib.loads,
    '.yaml': yaml.safe_load,
    '.yml': yaml.safe_load,
}
_SHARED = 'orchestrator.train.sampling.'
# Files of prime-rl -> fields by which one is recognised.
_PRIME_RL = {
    'trainer': ('optim', 'scheduler', 'weight_broadcast'),
    'orchestrator': ('train', 'weight_broadcast'),
}
# Loss types of TRL that clip the ratio on both sides of 1. In others,
# epsilon_high has another meaning.
_TWO_SIDED = ('grpo', 'bnpo', 'dr_grpo', 'dapo', 'luspo')


class _Object:
  """An object of an unknown class: its constructor arguments and its fields."""

  made_from: tuple[Any, ...]

  def __new__(cls, *made_from: Any):  # Some pickles call only this.
    made = super().__new__(cls)
    made.made_from = made_from
    return made

  def __init__(self, *made_from: Any):
    pass


class _Reader(pickle.Unpickler):
  """Reads any object as an `_Object`; no class of a pickle is imported."""

  def find_class(self, module: str, name: str) -> type[_Object]:
    del module, name
    return _Object

  def persistent_load(self, pid: Any) -> NoReturn:
    raise ValueError('it refers to something outside of it')


def load(path: pathlib.Path) -> dict[str, Any]:
  """Return the fields of the arguments in a training_args.bin.

  Raises:
    ValueError: If it is damaged, or not a file of this kind.
    OSError: If it cannot be read.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      names = [n for n in archive.namelist() if n.endswith(f'/{_PICKLE}')]
      if len(names) != 1:
        raise ValueError(f'no {_PICKLE}')
      with archive.open(names[0]) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
      raise ValueError(f'over {_MOST_BYTES} bytes')
    with io.BytesIO(data) as file:
      pickles.check_memo(file)
      found = _Reader(file).load()
  except OSError:
    raise
  except Exception as error:  # Broken archives and pickles raise many kinds.
    raise ValueError(f'not arguments of a trainer: {error!s:.100}') from error
  fields = vars(found) if isinstance(found, _Object) else {}
  return {
      name: value.made_from[0] if _is_enum(value) else value
      for name, value in fields.items()
  }


def _is_enum(value: Any) -> bool:
  """Return whether it is a value of an enumeration, such as a scheduler."""
  return isinstance(value, _Object) and len(value.made_from) == 1


def load_text(path: pathlib.Path) -> dict[str, Any]:
  """Return the config in a JSON, TOML or YAML file.

  Raises:
    ValueError: If it is damaged, or not a file of this kind.
    OSError: If it cannot be read.
  """
  if path.suffix not in _PARSERS:
    raise ValueError(f'its name does not end in {", ".join(_PARSERS)}')
  with path.open('rb') as file:
    data = file.read(_MOST_BYTES + 1)
  if len(data) > _MOST_BYTES:
    raise ValueError(f'over {_MOST_BYTES} bytes')
  try:
    found = _PARSERS[path.suffix](data.decode('utf-8-sig'))
  except Exception as error:  # Each parser raises kinds of its own.
    text = ' '.join(f'{error!s:.100}'.split())
    raise ValueError(
        f'not valid {path.suffix[1:].upper()}: {text}'
    ) from error
  if not isinstance(found, dict):
    raise ValueError('it is not a mapping of fields')
  return found


def load_prime_rl(folder: pathlib.Path) -> dict[str, Any]:
  """Return the configs in prime-rl's folder configs/.

  Returns:
    {'trainer': config, 'orchestrator': config}, without missing ones.

  Raises:
    ValueError: If one is damaged.
    OSError: If one cannot be read.
  """
  found = {}
  for name in _PRIME_RL:
    for suffix in ('.json', '.toml'):
      path = folder / f'{name}{suffix}'
      if path.is_file():
        found[name] = load_text(path)
        break
  return found


def of_file(path: pathlib.Path) -> dict[str, Any]:
  """Return the settings in a file, or in prime-rl's folder configs/.

  Raises:
    ValueError: If it does not hold the settings of a known trainer.
    OSError: If it cannot be read.
  """
  if path.is_dir():
    found = of_prime_rl(load_prime_rl(path))
  elif path.suffix == '.bin':
    found = of_trl(load(path))
  else:
    found = of_config(load_text(path))
  if not found:
    raise ValueError(
        f"no settings of a trainer: give TRL's {FILE}, verl's {HYDRA} or"
        " prime-rl's folder configs/"
    )
  return found


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings in a config; {} if its trainer is not known."""
  if isinstance(config.get('actor_rollout_ref'), Mapping):
    return of_verl(config)
  if 'max_completion_length' in config:
    return of_trl(config)
  if all(name in config for name in _PRIME_RL):
    return of_prime_rl(config)
  parts = {n: config for n, f in _PRIME_RL.items() if set(f) <= set(config)}
  return of_prime_rl(parts)


def of_trl(
    arguments: Mapping[str, Any], total_steps: float | int | None = None
) -> dict[str, Any]:
  """Return the settings in the arguments of TRL's GRPOTrainer, by name.

  Args:
    arguments: The arguments; {} if they are not known.
    total_steps: Steps of the training, used if the arguments set no limit.
  """
  found = _named('trl', arguments)
  total = found.get('total_steps', total_steps)
  # A warm-up that is a share of all steps is given as `warmup_ratio` or, since
  # transformers 5, as a `warmup_steps` below 1.
  warmup = found.get('warmup_steps') or _number(arguments.get('warmup_ratio'))
  if warmup is not None and warmup < 1:
    found['warmup_steps'] = _part(warmup, total)
  if arguments.get('loss_type') in _TWO_SIDED:
    low = _number(arguments.get('epsilon'))
    high = _number(arguments.get('epsilon_high'))
    found |= {'clip_low': low, 'clip_high': low if high is None else high}
  return _known(found)


def of_verl(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings in the config of verl's PPO trainer, by name."""
  found = _named('verl', config)
  actor = _at(config, 'actor_rollout_ref.actor')
  if 'total_steps' not in found:  # The schedule's own total is usually -1.
    found['total_steps'] = _number(_at(config, 'trainer.total_training_steps'))
  total = found['total_steps']
  if 'warmup_steps' not in found:  # Its value is -1.
    share = _number(_at(actor, 'optim.lr_warmup_steps_ratio'))
    found['warmup_steps'] = None if share is None else _part(share, total)
  if _at(actor, 'use_kl_loss') is False:
    found['kl_coef'] = 0.0
    if _at(config, 'algorithm.use_kl_in_reward'):
      found['kl_coef'] = _number(_at(config, 'algorithm.kl_ctrl.kl_coef'))
  for side in ('low', 'high'):
    bound = _number(_at(actor, f'clip_ratio_{side}'))
    if bound is None:
      bound = _number(_at(actor, 'clip_ratio'))
    found[f'clip_{side}'] = bound
  return _known(found)


def of_prime_rl(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings in the configs of prime-rl, by name.

  prime-rl's loss.kl_tau pulls towards the policy that sampled, not towards a
  reference policy, and the bounds of its loss apply to probabilities, not to
  ratios; both are left out. Its token limit, which applies to a turn, is
  returned as max_tokens.

  Args:
    config: {'trainer': config, 'orchestrator': config}, or one of them.
  """
  found = _named('prime-rl', config) | _sampling(config)
  for name in ('kl_coef', 'turn_tokens'):
    found.pop(name, None)
  return _known(found)


def _sampling(config: Mapping[str, Any]) -> dict[str, float | None]:
  """Return prime-rl's sampling settings; None for those that differ by source.

  Each source in a config has a copy of the shared settings, and may change it.
  """
  sources = _at(config, 'orchestrator.train.source')
  sources = sources if isinstance(sources, list) else []
  own = [s for source in sources if (s := _at(source, 'sampling')) is not None]
  found = {}
  for name, word in words.own('prime-rl', form.SETTINGS).items():
    if own and word.startswith(_SHARED):
      first, *others = [_at(s, word.removeprefix(_SHARED)) for s in own]
      same = all(value == first for value in others)
      found[name] = _number(first) if same else None
  return found


def weights(
    arguments: Mapping[str, Any], functions: Sequence[str]
) -> dict[str, Any]:
  """Return {'weights': function -> weight} of TRL; {} if they are not known.

  Args:
    arguments: The arguments of the trainer; {} if they are not known.
    functions: The reward functions, in the order in which they are logged.
  """
  added = 'sum_then_normalize'  # Else rewards are scaled before they are added.
  if arguments.get('multi_objective_aggregation', added) != added:
    return {}
  if 'reward_weights' not in arguments:
    return {}
  given = arguments['reward_weights'] or [1.0] * len(functions)
  numbers = list(map(_number, given)) if isinstance(given, list) else []
  if len(numbers) != len(functions) or None in numbers:
    return {}
  return {'weights': dict(zip(functions, numbers, strict=True))}


def _named(format_: str, config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings that are single fields of a config, by name."""
  found = {
      name: _number(_at(config, word))
      for name, word in words.own(format_, form.SETTINGS).items()
  }
  return _known(found)


def _known(settings: Mapping[str, float | None]) -> dict[str, float]:
  """Return the settings that have a value; a negative value means none."""
  return {n: x for n, x in settings.items() if x is not None and x >= 0}


def _at(config: Any, path: str) -> Any:
  """Return the value at a dotted path; None if there is none."""
  value: Any = config
  for name in path.split('.'):
    if not isinstance(value, Mapping):
      return None
    value = value.get(name)
  return value


def _number(value: Any) -> float | None:
  """Return a finite number; None for anything else."""
  if isinstance(value, bool) or not isinstance(value, int | float | str):
    return None
  try:
    number = float(value)  # YAML reads 1e-6 as text.
  except (ValueError, OverflowError):
    return None
  return number if math.isfinite(number) else None


def _part(share: float, total: float | int | None) -> float | None:
  """Return a share of all steps; None if it depends on an unknown total."""
  if not share:
    return 0.0
  return None if total is None else float(math.ceil(share * total))
