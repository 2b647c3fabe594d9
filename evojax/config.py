"""Checks, canonical form and schedule of a run's config.

Configs are `ml_collections.ConfigDict`s made by the files in `configs/`; this
module never imports those. `validate` sees the config alone: it runs before a
device is touched and reports everything that is wrong at once.
"""

from collections.abc import Callable
import difflib
import hashlib
import json
import math
import os
import re
from typing import Any

import ml_collections

# Field -> the names it may take.
CHOICES = {
    'model.param_dtype': ('float32', 'bfloat16'),
    'model.compute_dtype': ('float32', 'bfloat16'),
    'model.remat': ('none', 'dots', 'full'),
    'rollout.kind': ('engine', 'sglang'),
    'grpo.advantage': ('group_norm', 'group_mean', 'leave_one_out'),
    'grpo.ratio': ('token', 'sequence'),
    'grpo.aggregation': ('sequence', 'token', 'constant'),
    'grpo.keep': ('all', 'reward_variance', 'outcome_variance'),
    'grpo.layout': ('shared', 'packed'),
    'optim.schedule': ('constant', 'cosine', 'linear'),
    'eval.split': ('dev', 'sealed'),
    'evolve.proposer': ('rules', 'random'),
    'evolve.underpowered': ('refuse', 'run'),
    'log.wandb': ('disabled', 'offline', 'online'),
}

# Field -> (lowest, highest) value, both allowed.
RANGES = {
    'seed': (0, 2**32 - 1),
    'steps': (0, math.inf),
    'model.lora_rank': (0, math.inf),
    'model.lora_alpha': (1e-6, math.inf),
    'model.logprob_chunk': (0, math.inf),
    'data.max_prompt_tokens': (1, math.inf),
    'rollout.max_tokens': (1, math.inf),
    'rollout.token_limit': (0, math.inf),
    'rollout.temperature': (1e-3, 10.0),
    'rollout.decode_slots': (1, math.inf),
    'rollout.prefill_rows': (1, math.inf),
    'rollout.refill_every': (0, math.inf),
    'rollout.concurrency': (1, math.inf),
    'rollout.timeout_seconds': (1.0, math.inf),
    'rollout.queue_depth': (0, 1),
    'rollout.max_staleness': (0, math.inf),
    'grpo.prompts': (1, math.inf),
    'grpo.group_size': (2, math.inf),
    'grpo.clip_low': (0.0, 1.0),
    'grpo.clip_high': (0.0, math.inf),
    'grpo.dual_clip': (0.0, math.inf),
    'grpo.kl_coef': (0.0, math.inf),
    'grpo.tis_cap': (0.0, math.inf),
    'grpo.epochs': (1, math.inf),
    'grpo.minibatches': (1, math.inf),
    'grpo.micro_groups': (1, math.inf),
    'grpo.refill_rounds': (0, math.inf),
    'optim.learning_rate': (0.0, 1.0),
    'optim.warmup_steps': (0, math.inf),
    'optim.b1': (0.0, 1.0 - 1e-9),
    'optim.b2': (0.0, 1.0 - 1e-9),
    'optim.eps': (1e-30, 1.0),
    'optim.weight_decay': (0.0, math.inf),
    'optim.max_grad_norm': (0.0, math.inf),
    'checkpoint.every': (1, math.inf),
    'checkpoint.keep': (1, math.inf),
    'eval.every': (0, math.inf),
    'eval.problems': (2, math.inf),
    'eval.samples': (1, math.inf),
    'eval.temperature': (1e-3, 10.0),
    'evolve.trials': (0, math.inf),
    'evolve.updates': (1, math.inf),
    'evolve.first_updates': (1, math.inf),
    'evolve.prompts': (1, math.inf),
    'evolve.group_size': (2, math.inf),
    'evolve.controls': (4, math.inf),
    'evolve.children': (2, math.inf),
    'evolve.max_children': (2, math.inf),
    'evolve.problems': (2, math.inf),
    'evolve.samples': (1, math.inf),
    'evolve.false_discovery_rate': (1e-6, 1.0 - 1e-6),
    'evolve.replay_updates': (1, math.inf),
    'evolve.replay_problems': (2, math.inf),
    'evolve.arm_seconds': (0.0, math.inf),
    'evolve.device_seconds': (0.0, math.inf),
    'evolve.dollars': (0.0, math.inf),
    'evolve.dollars_per_device_hour': (0.0, math.inf),
    'serve.context_tokens': (2, math.inf),
    'serve.prefill_chunk': (1, math.inf),
    'serve.prefix_chunks': (0, math.inf),
    'serve.max_waiting': (0, math.inf),
    'serve.connections': (1, math.inf),
    'serve.body_bytes': (1, math.inf),
    'serve.client_seconds': (0.1, math.inf),
    'serve.shutdown_seconds': (0.0, math.inf),
    'log.every': (1, math.inf),
    'log.profile_steps': (1, math.inf),
}

# Why a bound is where it is, for the fields where the number alone is no help.
_REASONS = {
    'grpo.group_size': (
        'a group of one has no advantage: set --config.grpo.group_size=8'
    ),
    'rollout.temperature': 'log-probs are of softmax(logits / temperature)',
    'rollout.queue_depth': '0 samples each step with its own weights, 1 ahead',
    'eval.problems': 'an interval over problems needs at least two',
    'evolve.controls': 'the spread between seeds needs at least four arms',
    'evolve.children': 'a child that one seed liked proves nothing: at least 2',
}


_URL = re.compile(r'https?://[^/?#\s]+/?')


class ConfigError(ValueError):
  """Everything that is wrong with a config, one line each."""


def token_limit(config: ml_collections.ConfigDict) -> int:
  """Most tokens of a training completion."""
  return config.rollout.token_limit or config.rollout.max_tokens


def validate(config: ml_collections.ConfigDict) -> None:
  """Checks values and their combinations; touches no device and no file.

  Raises:
    ConfigError: Naming each field, its value and the remedy.
  """
  flat = flatten(config)
  problems = []
  for name, allowed in CHOICES.items():
    if name in flat and flat[name] not in allowed:
      problems.append(f'{name}={flat[name]!r}: choose one of {allowed}')
  for name, value in flat.items():
    low, high = RANGES.get(name, (-math.inf, math.inf))
    if isinstance(value, float) and not math.isfinite(value):
      problems.append(f'{name}={value!r}: must be a finite number')
    elif name in RANGES and not low <= value <= high:
      reason = _REASONS.get(name, f'must lie in [{low:g}, {high:g}]')
      problems.append(f'{name}={value!r}: {reason}')
  if not problems:  # Combinations of values that make sense on their own.
    problems = _conflicts(config)
  if problems:
    lines = ''.join(f'\n  config.{line}' for line in problems)
    raise ConfigError(f'the config does not describe a run:{lines}')


def _conflicts(c: ml_collections.ConfigDict) -> list[str]:
  """Fields that contradict each other."""
  problems = []
  if not c.model.path:
    problems.append(
        'model.path is not set: pass --config.model.path=DIR, a Hugging Face'
        ' directory'
    )
  if c.rollout.top_p != 1 or c.rollout.top_k > 0 or c.rollout.min_p != 0:
    problems.append(
        f'rollout.top_p={c.rollout.top_p}, top_k={c.rollout.top_k},'
        f' min_p={c.rollout.min_p}: a filtered sampler is not the policy that'
        ' the loss differentiates; train with top_p=1, top_k=-1, min_p=0'
    )
  if c.rollout.token_limit > c.rollout.max_tokens:
    problems.append(
        f'rollout.token_limit={c.rollout.token_limit} is more than'
        f' rollout.max_tokens={c.rollout.max_tokens}, the shape: lower it, or'
        ' set it to 0 (no limit of its own)'
    )
  per_update = c.grpo.minibatches * c.grpo.micro_groups
  if c.grpo.prompts % per_update:
    problems.append(
        f'grpo.prompts={c.grpo.prompts} does not split into'
        f' minibatches={c.grpo.minibatches} x micro_groups='
        f'{c.grpo.micro_groups}: make it a multiple of {per_update}'
    )
  if c.grpo.dual_clip and c.grpo.dual_clip <= 1 + c.grpo.clip_high:
    problems.append(
        f'grpo.dual_clip={c.grpo.dual_clip} must exceed 1 + clip_high ='
        f' {1 + c.grpo.clip_high:g}, or be 0 (off)'
    )
  if c.grpo.refill_rounds and c.grpo.keep == 'all':
    problems.append(
        f'grpo.refill_rounds={c.grpo.refill_rounds} replaces dropped groups,'
        " but keep='all' drops none: set grpo.keep=reward_variance"
    )
  if not c.reward.weights:
    problems.append(
        'reward.weights is empty: every reward would be 0; set e.g.'
        ' --config.reward.weights.outcome=1.0'
    )
  for name, weight in c.reward.weights.items():
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
      problems.append(f'reward.weights.{name}={weight!r}: must be a number')
  if not all(isinstance(text, str) and text for text in c.rollout.stop):
    problems.append(
        f'rollout.stop={c.rollout.stop!r}: must hold strings that are not empty'
    )
  problems += _service_conflicts(c)
  if c.evolve.trials and c.evolve.max_children < c.evolve.children:
    problems.append(
        f'evolve.max_children={c.evolve.max_children} is less than'
        f' evolve.children={c.evolve.children}: raise it'
    )
  if c.evolve.dollars and not c.evolve.dollars_per_device_hour:
    problems.append(
        f'evolve.dollars={c.evolve.dollars:g} limits nothing without'
        ' evolve.dollars_per_device_hour, the price of a device'
    )
  batch_shards = c.mesh.data * c.mesh.fsdp
  if c.mesh.data > 0 and c.mesh.fsdp > 0:
    for name, size in (
        ('grpo.micro_groups', c.grpo.micro_groups),
        ('rollout.decode_slots', c.rollout.decode_slots),
        ('rollout.prefill_rows', c.rollout.prefill_rows),
    ):
      if size % batch_shards:
        problems.append(
            f'{name}={size} does not split over mesh.data x mesh.fsdp ='
            f' {batch_shards}: make it a multiple'
        )
  for axis, size in c.mesh.items():
    if size < 1 and size != -1:
      problems.append(f'mesh.{axis}={size}: sizes are >= 1, or -1')
  if list(c.mesh.values()).count(-1) > 1:
    problems.append(
        f'mesh={c.mesh.to_dict()}: -1 takes the devices that are left; only one'
        ' axis can'
    )
  if c.optim.warmup_steps > c.steps > 0:
    problems.append(
        f'optim.warmup_steps={c.optim.warmup_steps} exceeds steps={c.steps}'
    )
  return problems


def _service_conflicts(c: ml_collections.ConfigDict) -> list[str]:
  """Fields of who samples, and when, that contradict each other."""
  problems, r = [], c.rollout
  for url in r.urls:
    if not isinstance(url, str) or not _URL.fullmatch(url):
      problems.append(
          f"rollout.urls has {url!r}: wanted 'http://HOST:PORT', without a path"
      )
  if len(set(r.urls)) < len(r.urls):
    problems.append(
        f'rollout.urls={tuple(r.urls)} names a server twice: raise'
        ' rollout.concurrency instead'
    )
  if r.kind == 'sglang' and not r.urls:
    problems.append(
        "rollout.kind='sglang' needs servers: start one with"
        ' launch/sglang_jax.sh and set'
        """ --config.rollout.urls="('http://localhost:30000',)\""""
    )
  if r.kind == 'engine':
    for name in ('urls', 'api_key_env', 'admin_key_env', 'weights_dir'):
      if r[name]:
        problems.append(
            f'rollout.{name}={r[name]!r} is of servers, but rollout.kind is'
            " 'engine': set --config.rollout.kind=sglang"
        )
  dtypes = (c.model.compute_dtype, c.model.param_dtype)
  if r.kind == 'sglang' and 'bfloat16' in dtypes and c.grpo.tis_cap <= 0:
    problems.append(
        "rollout.kind='sglang' in bfloat16 samples with log-probs that differ"
        " from the update's, which grpo.tis_cap=0 leaves uncorrected: set"
        ' --config.grpo.tis_cap=2'
    )
  if r.queue_depth and not r.max_staleness:
    problems.append(
        f'rollout.queue_depth={r.queue_depth} trains on rollouts of the version'
        ' before, which rollout.max_staleness=0 refuses: set'
        ' --config.rollout.max_staleness=1'
    )
  for name in ('queue_depth', 'max_staleness'):
    if r[name] and c.grpo.tis_cap <= 0:
      problems.append(
          f'rollout.{name}={r[name]} trains on rollouts of older weights, which'
          ' grpo.tis_cap=0 leaves uncorrected: set --config.grpo.tis_cap=2'
      )
  return problems


def read_key(variable: str, field: str) -> str:
  """The key in an environment variable; '' if none is named.

  Raises:
    ValueError: If the variable is not set.
  """
  if not variable:
    return ''
  key = os.environ.get(variable, '')
  if not key:
    raise ValueError(
        f'{field}={variable!r}: the environment variable {variable} is not set;'
        ' export the key of the servers in it, or leave the field empty'
    )
  return key


def check_field(config: ml_collections.ConfigDict, name: str) -> None:
  """Checks that a field can be set.

  Args:
    config: Any config.
    name: Dotted name of a field or a group of fields, e.g. 'grpo.group_size'.

  Raises:
    ConfigError: If the config has neither; with the names that come near.
  """
  node, known = config, 'config'
  for part in name.split('.'):
    if not isinstance(node, ml_collections.ConfigDict) or part not in node:
      break
    node, known = node[part], f'{known}.{part}'
  else:
    return
  names = list(node) if isinstance(node, ml_collections.ConfigDict) else []
  near = [f'{known}.{n}' for n in difflib.get_close_matches(part, names, n=2)]
  leaf = name.rpartition('.')[2]
  near += [
      f'config.{field}'
      for field in flatten(config)
      if field.rpartition('.')[2] == leaf
  ]
  if near:
    hint = f'did you mean {" or ".join(near)}?'
  elif names:
    hint = f'{known} has {", ".join(names)}'
  else:
    hint = f'{known} is a value, not a group'
  raise ConfigError(f'config.{name} is not a field; {hint}')


def flatten(tree: Any, prefix: str = '') -> dict[str, Any]:
  """{'grpo.group_size': 8, ...}; tuples are values."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, ml_collections.ConfigDict):
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat


def to_json(config: ml_collections.ConfigDict) -> str:
  """The resolved config in canonical form: sorted keys, no spaces."""
  return json.dumps(config.to_dict(), sort_keys=True, separators=(',', ':'))


def sha256(config: ml_collections.ConfigDict) -> str:
  """Hash of the canonical form, 64 hex digits."""
  return hashlib.sha256(to_json(config).encode()).hexdigest()


def learning_rate(
    config: ml_collections.ConfigDict,
) -> Callable[[int], float]:
  """step -> learning rate: linear warm-up, then the schedule down to 0."""
  optim, steps = config.optim, max(config.steps, 1)

  def rate(step: int) -> float:
    if step < optim.warmup_steps:
      return optim.learning_rate * (step + 1) / optim.warmup_steps
    progress = (step - optim.warmup_steps) / max(steps - optim.warmup_steps, 1)
    if optim.schedule == 'cosine':
      return optim.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if optim.schedule == 'linear':
      return optim.learning_rate * (1 - progress)
    return optim.learning_rate

  return rate
