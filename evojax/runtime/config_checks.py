"""Checks of a whole config: bounds of its fields, and fields that contradict.

A check sees the config alone: it runs before a device is touched or a file is
read, and everything that is wrong is reported at once.
"""

from collections.abc import Iterator
import re

import ml_collections

from evojax import config as config_lib

_URL = re.compile(r'https?://[^/?#\s]+/?')


def validate(config: ml_collections.ConfigDict) -> None:
  """Check values and their combinations.

  Raises:
    config.ConfigError: Naming each field, its value and the remedy.
  """
  problems = [
      f'{path}={value!r}: {problem}'
      for path, value in config_lib.flatten(config).items()
      if (problem := config_lib.declaration(path).problem(value))
  ]
  if not problems:  # Combinations of values that make sense on their own.
    problems = [line for check in _CHECKS for line in check(config)]
  if problems:
    lines = ''.join(f'\n  config.{line}' for line in problems)
    raise config_lib.ConfigError(f'the config does not describe a run:{lines}')


def _model(c: ml_collections.ConfigDict) -> Iterator[str]:
  if not c.model.path:
    yield (
        'model.path is not set: pass --config.model.path=DIR, a Hugging Face'
        ' directory'
    )


def _sampling(c: ml_collections.ConfigDict) -> Iterator[str]:
  r = c.rollout
  if r.top_p != 1 or r.top_k > 0 or r.min_p != 0:
    yield (
        f'rollout.top_p={r.top_p}, top_k={r.top_k}, min_p={r.min_p}: a filtered'
        ' sampler is not the policy that the loss differentiates; train with'
        ' top_p=1, top_k=-1, min_p=0'
    )
  if r.token_limit > r.max_tokens:
    yield (
        f'rollout.token_limit={r.token_limit} is more than'
        f' rollout.max_tokens={r.max_tokens}, the shape: lower it, or set it to'
        ' 0 (no limit of its own)'
    )
  if not all(isinstance(text, str) and text for text in r.stop):
    yield f'rollout.stop={r.stop!r}: must hold strings that are not empty'


def _update(c: ml_collections.ConfigDict) -> Iterator[str]:
  g = c.grpo
  per_update = g.minibatches * g.micro_groups
  if g.prompts % per_update:
    yield (
        f'grpo.prompts={g.prompts} does not split into minibatches='
        f'{g.minibatches} x micro_groups={g.micro_groups}: make it a multiple'
        f' of {per_update}'
    )
  if g.dual_clip and g.dual_clip <= 1 + g.clip_high:
    yield (
        f'grpo.dual_clip={g.dual_clip} must exceed 1 + clip_high ='
        f' {1 + g.clip_high:g}, or be 0 (off)'
    )
  if g.refill_rounds and g.keep == 'all':
    yield (
        f'grpo.refill_rounds={g.refill_rounds} replaces dropped groups, but'
        " keep='all' drops none: set grpo.keep=reward_variance"
    )
  if c.optim.warmup_steps > c.steps > 0:
    yield f'optim.warmup_steps={c.optim.warmup_steps} exceeds steps={c.steps}'


def _reward(c: ml_collections.ConfigDict) -> Iterator[str]:
  if not c.reward.weights:
    yield (
        'reward.weights is empty: every reward would be 0; set e.g.'
        ' --config.reward.weights.outcome=1.0'
    )
  for name, weight in c.reward.weights.items():
    if isinstance(weight, bool) or not isinstance(weight, int | float):
      yield f'reward.weights.{name}={weight!r}: must be a number'


def _servers(c: ml_collections.ConfigDict) -> Iterator[str]:
  r = c.rollout
  for url in r.urls:
    if not isinstance(url, str) or not _URL.fullmatch(url):
      yield (
          f"rollout.urls has {url!r}: wanted 'http://HOST:PORT', without a path"
      )
  if len(set(r.urls)) < len(r.urls):
    yield (
        f'rollout.urls={tuple(r.urls)} names a server twice: raise'
        ' rollout.concurrency instead'
    )
  if r.kind == 'sglang' and not r.urls:
    yield (
        "rollout.kind='sglang' needs servers: start one with"
        ' launch/sglang_jax.sh and set'
        """ --config.rollout.urls="('http://localhost:30000',)\""""
    )
  if r.kind == 'engine':
    for name in ('urls', 'api_key_env', 'admin_key_env', 'weights_dir'):
      if r[name]:
        yield (
            f'rollout.{name}={r[name]!r} is of servers, but rollout.kind is'
            " 'engine': set --config.rollout.kind=sglang"
        )


def _off_policy(c: ml_collections.ConfigDict) -> Iterator[str]:
  """Ask for a correction if log-probs of rollouts are not the update's."""
  r, corrected = c.rollout, c.grpo.tis_cap > 0
  dtypes = (c.model.compute_dtype, c.model.param_dtype)
  if r.kind == 'sglang' and 'bfloat16' in dtypes and not corrected:
    yield (
        "rollout.kind='sglang' in bfloat16 samples with log-probs that differ"
        " from the update's, which grpo.tis_cap=0 leaves uncorrected: set"
        ' --config.grpo.tis_cap=2'
    )
  if r.queue_depth and not r.max_staleness:
    yield (
        f'rollout.queue_depth={r.queue_depth} trains on rollouts of the version'
        ' before, which rollout.max_staleness=0 refuses: set'
        ' --config.rollout.max_staleness=1'
    )
  for name in ('queue_depth', 'max_staleness'):
    if r[name] and not corrected:
      yield (
          f'rollout.{name}={r[name]} trains on rollouts of older weights, which'
          ' grpo.tis_cap=0 leaves uncorrected: set --config.grpo.tis_cap=2'
      )


def _evolution(c: ml_collections.ConfigDict) -> Iterator[str]:
  e = c.evolve
  if not all(part.isidentifier() for part in e.proposer.split('.')):
    yield (
        f'evolve.proposer={e.proposer!r} is neither the name of a proposer'
        ' such as rules nor a dotted path such as my_package.my_proposer'
    )
  if e.trials and e.max_children < e.children:
    yield (
        f'evolve.max_children={e.max_children} is less than evolve.children='
        f'{e.children}: raise it'
    )
  if e.dollars and not e.dollars_per_device_hour:
    yield (
        f'evolve.dollars={e.dollars:g} limits nothing without'
        ' evolve.dollars_per_device_hour, the price of a device'
    )


def _mesh(c: ml_collections.ConfigDict) -> Iterator[str]:
  shards = c.mesh.data * c.mesh.fsdp
  if c.mesh.data > 0 and c.mesh.fsdp > 0:
    for group, name in (
        ('grpo', 'micro_groups'),
        ('rollout', 'decode_slots'),
        ('rollout', 'prefill_rows'),
    ):
      if c[group][name] % shards:
        yield (
            f'{group}.{name}={c[group][name]} does not split over mesh.data x'
            f' mesh.fsdp = {shards}: make it a multiple'
        )
  for axis, size in c.mesh.items():
    if size < 1 and size != -1:
      yield f'mesh.{axis}={size}: sizes are >= 1, or -1'
  if list(c.mesh.values()).count(-1) > 1:
    yield (
        f'mesh={c.mesh.to_dict()}: -1 takes the devices that are left; only one'
        ' axis can'
    )


# In this order their lines are reported.
_CHECKS = (
    _model,
    _sampling,
    _update,
    _reward,
    _servers,
    _off_policy,
    _evolution,
    _mesh,
)
