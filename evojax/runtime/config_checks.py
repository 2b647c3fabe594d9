"""Checks of a whole config: bounds of fields, and contradictions between them.

The checks use nothing but the config. They run before a device is touched or a
file is read, and report all problems at once.
"""

from collections.abc import Iterator, Mapping, Sequence
import datetime
import json
import math
import re
from typing import Any

import ml_collections

from evojax import config as config_lib

# A field, the field that enables it, and a value of the latter.
_PARTS = (
    ('model.lora_alpha', 'model.lora_rank', '8'),
    ('grpo.tis_mode', 'grpo.tis_cap', '3'),
    ('grpo.tis_floor', 'grpo.tis_cap', '3'),
    ('grpo.reject_low', 'grpo.reject', 'sequence'),
    ('grpo.reject_high', 'grpo.reject', 'sequence'),
)
_OF_SERVERS = (
    'urls', 'urls_file', 'api_key_env', 'admin_key_env', 'weights_dir',
    'weights_transport',
)  # fmt: skip
# Lowest learning rate of parameters in bfloat16.
_LEAST_RATE = 1e-5
_TABLES = Mapping | ml_collections.ConfigDict
URL = re.compile(r'https?://[^/?#\s]+/?')


def validate(
    config: ml_collections.ConfigDict, *, arm: bool = False, trains: bool = True
) -> None:
  """Check values and their combinations.

  Args:
    config: The config of a run or of an arm.
    arm: True for an arm of a race. An arm may be shorter than its warm-up; the
      diagnosis reports the effect.
    trains: False for --mode=eval, which may sample with top_p, top_k or min_p.

  Raises:
    config.ConfigError: Naming each field, its value and the remedy.
  """
  _check_fields(config)
  # Combinations are checked last, because these checks divide by values that
  # must not be 0.
  found = _training(config, arm, trains) | _rollout(config) | _run(config)
  _refuse_wrong(found)


def validate_warmstart(config: ml_collections.ConfigDict) -> None:
  """Check values, and combinations of those that --mode=warmstart reads.

  Args:
    config: The config of a warm start, with warmstart.steps > 0.

  Raises:
    config.ConfigError: Naming each field, its value and the remedy.
  """
  _check_fields(config)
  w = config.warmstart
  _refuse_wrong({
      f'warmstart.warmup_steps={w.warmup_steps} leaves none of steps={w.steps}'
      ' for the decay of the learning rate: lower it': (
          w.warmup_steps >= w.steps
      ),
      f'warmstart.num_heads={w.num_heads} is no multiple of num_kv_heads='
      f'{w.num_kv_heads}, which share them evenly: make it one': (
          w.num_heads % w.num_kv_heads
      ),
      f'warmstart.head_dim={w.head_dim} is odd, and positions rotate pairs of'
      ' its features: make it even': w.head_dim % 2,
  })


def check_names(config: ml_collections.ConfigDict) -> None:
  """Check that a config has all declared fields and no others, and is JSON.

  A config file may unlock its config, and then set a misspelled field.

  Raises:
    config.ConfigError: Naming each field that is missing, not declared or not
      JSON.
  """
  declared = {field.path: field.default for field in config_lib.FIELDS}
  found = dict(_named(config, declared))
  problems = [
      f'{path} is missing: start from the get_config of a file in configs/, and'
      ' set single fields'
      for path in declared.keys() - found
  ]
  for path, value in found.items():
    if path not in declared:
      try:
        config_lib.check_field(config_lib.base(), path)
      except config_lib.ConfigError as error:
        problems.append(str(error).removeprefix('config.'))
    elif isinstance(declared[path], dict) and not isinstance(value, _TABLES):
      problems.append(f"{path}={value!r} must be a table such as {{'a': 1}}")
  for path, value in config_lib.flatten(config).items():
    try:
      json.dumps(value)
    except TypeError:
      problems.append(
          f'{path}={value!r} is not a JSON value: use texts (of a function, its'
          ' dotted path), numbers, lists and dicts'
      )
  _refuse(sorted(problems))


def _named(
    tree: Any, declared: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yield the paths and values of fields; names in a table are not fields."""
  for name, value in tree.items():
    path = f'{prefix}{name}'
    if isinstance(value, _TABLES) and path not in declared:
      yield from _named(value, declared, f'{path}.')
    else:
      yield path, value


def unusual(config: ml_collections.ConfigDict) -> list[str]:
  """Return a line for each allowed value that is outside its usual range."""
  found = []
  for path, value in config_lib.flatten(config).items():
    field = config_lib.declaration(path)
    if not field.is_usual(value):
      low, high = field.usual
      found.append(f'{path}={value:g} ({low:g} to {high:g} is usual)')
  return found


def check_mesh(
    config: ml_collections.ConfigDict, sizes: Mapping[str, int]
) -> None:
  """Check that sizes split evenly over the mesh, once its sizes are known.

  Args:
    config: A valid config, in which a size of the mesh may be -1 (open).
    sizes: Axis of the mesh -> its size.

  Raises:
    config.ConfigError: Naming each field, its value and the remedy.
  """
  mesh = {f'mesh.{axis}': size for axis, size in sizes.items()}
  known = config_lib.with_fields(config, mesh)
  _refuse_wrong(_run(known))


def _check_fields(config: ml_collections.ConfigDict) -> None:
  """Raise ConfigError if a field does not have a value that it may have."""
  check_names(config)
  _refuse([
      f'{path}={value!r}: {problem}'
      for path, value in config_lib.flatten(config).items()
      if (problem := config_lib.declaration(path).problem(value))
  ])


def _refuse_wrong(found: Mapping[str, Any]) -> None:
  """Raise ConfigError with the lines whose conditions hold."""
  _refuse([line for line, wrong in found.items() if wrong])


def _refuse(problems: Sequence[str]) -> None:
  if problems:
    lines = ''.join(f'\n  config.{line}' for line in problems)
    raise config_lib.ConfigError(f'the config does not describe a run:{lines}')


# Each of these functions returns a dict: line of the message -> its condition.
# A line is reported if its condition holds.


def _training(
    c: ml_collections.ConfigDict, arm: bool, trains: bool
) -> dict[str, Any]:
  """Check the model, the sampling, the update and the reward."""
  r, g, flat = c.rollout, c.grpo, config_lib.flatten(c)
  per_update, rate = g.minibatches * g.micro_groups, c.optim.learning_rate
  return {
      'model.path is not set: pass --config.model.path=DIR, a Hugging Face'
      ' directory': not c.model.path,
      f'model.chat_template_date={c.model.chat_template_date!r} is no date:'
      ' write it as 2024-07-26': not _is_date(c.model.chat_template_date),
      f'rollout.top_p={r.top_p}, top_k={r.top_k}, min_p={r.min_p}: a filtered'
      ' sampler is not the policy that the loss differentiates; train with'
      ' top_p=1, top_k=-1, min_p=0': (
          trains and (r.top_p != 1 or r.top_k > 0 or r.min_p != 0)
      ),
      # In bfloat16, a parameter near 0.03 changes in steps of 1e-4, but an
      # update is about the learning rate. Adapters are always float32.
      f"model.param_dtype='bfloat16' rounds updates of optim.learning_rate="
      f'{rate:g} away: set --config.model.param_dtype=float32 (compute_dtype'
      ' may be bfloat16), or train adapters with --config.model.lora_rank=16': (
          trains
          and c.model.param_dtype == 'bfloat16'
          and 0 < rate < _LEAST_RATE
          and not c.model.lora_rank
      ),
      f'rollout.token_limit={r.token_limit} is more than'
      f' rollout.max_tokens={r.max_tokens}, the compiled shape: lower it, or'
      ' set it to 0 (no limit of its own)': r.token_limit > r.max_tokens,
      f'rollout.turn_tokens={r.turn_tokens} is more than'
      f' rollout.max_tokens={r.max_tokens}, the limit of a whole episode: lower'
      ' it': r.turn_tokens > r.max_tokens,
      f'rollout.stop={r.stop!r}: must hold strings that are not empty': not all(
          isinstance(text, str) and text for text in r.stop
      ),
      f'grpo.prompts={g.prompts} does not split into minibatches='
      f'{g.minibatches} x micro_groups={g.micro_groups}: make it a multiple'
      f' of {per_update}': g.prompts % per_update,
      f'grpo.dual_clip={g.dual_clip} must exceed 1 + clip_high ='
      f' {1 + g.clip_high:g}, or be 0 (off)': (
          g.dual_clip and g.dual_clip <= 1 + g.clip_high
      ),
      f'grpo.tis_floor={g.tis_floor} must be less than'
      f' grpo.tis_cap={g.tis_cap}: lower it': 0 < g.tis_cap <= g.tis_floor,
      **{
          f'{name}={flat[name]!r} changes nothing while'
          f' {switch}={flat[switch]!r}: set --config.{switch}={on}': (
              flat[switch] == config_lib.declaration(switch).default
              and flat[name] != config_lib.declaration(name).default
          )
          for name, switch, on in _PARTS
      },
      f'grpo.refill_rounds={g.refill_rounds} replaces dropped groups, but'
      " keep='all' drops none: set grpo.keep=reward_variance": (
          g.refill_rounds and g.keep == 'all'
      ),
      f'optim.warmup_steps={c.optim.warmup_steps} exceeds steps={c.steps}:'
      ' lower it': (
          c.optim.warmup_steps > c.steps > 0 and not arm
      ),
      f'reward.weights={c.reward.weights.to_dict()}: every reward would be 0;'
      ' set e.g. --config.reward.weights.outcome=1.0': not any(
          c.reward.weights.values()
      ),
      **{
          f'reward.weights.{name}={weight!r}: must be a number': (
              isinstance(weight, bool) or not isinstance(weight, int | float)
          )
          for name, weight in c.reward.weights.items()
      },
  }


def corrects_sampler(c: ml_collections.ConfigDict) -> bool:
  """Return True if the update corrects for a sampler's different log-probs.

  It does so by importance weights (tis_cap) or by rejection (reject). A veto
  that only drops far too unlikely tokens is not enough.
  """
  return c.grpo.tis_cap > 0 or c.grpo.reject != 'none'


def _is_date(text: str) -> bool:
  try:
    datetime.date.fromisoformat(text)
  except ValueError:
    return False
  return True


def _rollout(c: ml_collections.ConfigDict) -> dict[str, Any]:
  """Check servers, and rollouts whose log-probs differ from the update's."""
  r = c.rollout
  corrected = corrects_sampler(c)
  dtypes = (c.model.compute_dtype, c.model.param_dtype)
  return {
      **{
          f"rollout.urls has {url!r}: wanted 'http://HOST:PORT', without a"
          ' path': not (isinstance(url, str) and URL.fullmatch(url))
          for url in r.urls
      },
      f'rollout.urls and rollout.urls_file={r.urls_file!r} both name servers:'
      ' set one of them': (r.urls and r.urls_file),
      f'rollout.urls={tuple(r.urls)} names a server twice: raise'
      ' rollout.concurrency instead': len(set(r.urls)) < len(r.urls),
      "rollout.kind='sglang' needs servers: start one with launch/sglang_jax.sh"
      """ and set --config.rollout.urls="('http://localhost:30000',)\"""": (
          r.kind == 'sglang' and not (r.urls or r.urls_file)
      ),
      **{
          f'rollout.{name}={r[name]!r} is for servers, but rollout.kind is'
          " 'engine': set --config.rollout.kind=sglang": (
              r[name]
              and r[name] != config_lib.declaration(f'rollout.{name}').default
          )
          for name in _OF_SERVERS
          if r.kind == 'engine'
      },
      "rollout.kind='sglang' in bfloat16 samples with log-probs that differ"
      " from the update's; nothing corrects this difference: set"
      ' --config.grpo.tis_cap=2': (
          r.kind == 'sglang' and 'bfloat16' in dtypes and not corrected
      ),
      f'rollout.queue_depth={r.queue_depth} trains on rollouts of the version'
      ' before, which rollout.max_staleness=0 refuses: set'
      ' --config.rollout.max_staleness=1': (
          r.queue_depth and not r.max_staleness
      ),
      **{
          f'rollout.{name}={r[name]} trains on rollouts of older weights, which'
          ' nothing corrects: set --config.grpo.tis_cap=2': (
              r[name] and not corrected
          )
          for name in ('queue_depth', 'max_staleness')
      },
  }


def _run(c: ml_collections.ConfigDict) -> dict[str, Any]:
  """Check the meta-loop and the mesh."""
  e, batch = c.evolve, (c.mesh.slice, c.mesh.data, c.mesh.fsdp)
  flat = config_lib.flatten(c)
  shards = math.prod(batch) if min(batch) > 0 else 1
  # Problems of an arm's second half, by which `evolve.pairs` compares it.
  compared = (e.updates - e.updates // 2) * c.grpo.prompts
  groups = c.grpo.micro_groups, c.grpo.group_size
  return {
      f'evolve.proposer={e.proposer!r} is neither the name of a proposer'
      ' such as rules nor a dotted path such as my_package.my_proposer': (
          not all(part.isidentifier() for part in e.proposer.split('.'))
      ),
      f'evolve.policy={e.policy!r} with model.lora_rank={c.model.lora_rank}:'
      ' the mean of adapters is not the mean of what they add; set'
      ' --config.evolve.policy=chain': (
          e.rounds and e.policy == 'mean' and c.model.lora_rank
      ),
      f'evolve.retrain=True with steps={c.steps}: the final harness is trained'
      ' again for that many steps; raise it': (
          e.rounds and e.retrain and not c.steps
      ),
      f'evolve.updates={e.updates} with grpo.prompts={c.grpo.prompts}: arms are'
      ' compared by the problems of the second half of their updates,'
      f' {compared} here, and a standard error needs at least 2; raise'
      ' either': bool(e.rounds) and compared < 2,
      f'evolve.dollars={e.dollars:g} limits nothing without'
      ' evolve.dollars_per_device_hour, the price of a device': (
          e.dollars and not e.dollars_per_device_hour
      ),
      f'grpo.micro_groups={groups[0]} of group_size={groups[1]} do not split'
      f' over mesh.slice x mesh.data x mesh.fsdp = {shards}: make'
      f' micro_groups a multiple of {shards}': not group_parts(*groups, shards),
      f"grpo.layout='packed' with mesh.slice={c.mesh.slice}: a row may hold"
      ' sequences of several slices, and activations would go over the network'
      ' between them; set --config.grpo.layout=shared': (
          c.grpo.layout == 'packed' and c.mesh.slice > 1
      ),
      **{
          f'{name}={flat[name]} does not split over mesh.slice x mesh.data x'
          f' mesh.fsdp = {shards}: make it a multiple of {shards}': (
              flat[name] % shards
          )
          for name in ('rollout.decode_slots', 'rollout.prefill_rows')
      },
      **{
          f'mesh.{axis}={size}: sizes are >= 1, or -1': size < 1 and size != -1
          for axis, size in c.mesh.items()
      },
      f'mesh={c.mesh.to_dict()}: -1 takes the devices that are left; set it'
      ' for only one axis': list(c.mesh.values()).count(-1) > 1,
  }


def group_parts(micro_groups: int, group_size: int, shards: int) -> int:
  """Return the number of parts into which each group is split for devices.

  A group may be too large for a device. Advantages are already known, so its
  sequences may be on different devices; each part computes the group's prompt.

  Args:
    micro_groups: Groups per micro-batch.
    group_size: Sequences per group.
    shards: Devices, which get equally many parts.

  Returns:
    The smallest number of parts; 0 if the sequences do not split evenly.
  """
  parts = shards // math.gcd(shards, micro_groups)
  return 0 if group_size % parts else parts
