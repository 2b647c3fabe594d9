"""What a run costs, worked out from shapes before anything is paid for.

Nothing is read to a device: parameters, moments and caches are shapes with
shardings. A small policy on a mesh that is here is compiled ahead of time, and
the compiler's own numbers are shown; a large one, or a mesh that is elsewhere
(a pod, planned on a laptop), gets bounds. FLOPs are those of the matrix
products, two per multiply-add; every sequence counts at its longest.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import io
import math
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from evojax import domains
from evojax import records
from evojax.models import decoder
from evojax.models import flops
from evojax.models import policy as policy_lib
from evojax.runtime import config_checks
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import settings
from evojax.training import update as update_lib

# Up to this many parameters programs are compiled for their temporaries.
_COMPILE_PARAMETERS = 50_000_000

# Assumed share of the peak in matrix products of updates and prefills, and in
# decode steps; and of the bandwidth in decode steps that are bound by memory.
# On CPU as benchmarks/grpo_step.py measures; elsewhere a modest guess.
UTILISATION = {
    'cpu': dict(update=0.65, decode=0.35, bandwidth=0.5),
    'accelerator': dict(update=0.40, decode=0.30, bandwidth=0.5),
}


@dataclasses.dataclass(frozen=True)
class Device:
  """What one device can do."""

  name: str
  flops: float  # Peak of dense bfloat16 products, FLOP/s; CPU: float32.
  bandwidth: float  # Bytes/s from its memory.
  memory_bytes: int  # That programs may use.


_GIB = 2**30
# By the beginning of jax's device_kind, the longest that fits. TPU: system
# architecture pages, cloud.google.com/tpu/docs/v4, v5e, v5p, v6e; XLA gives
# programs 15.75 of a v5e's 16 GiB. GPU (SXM): NVIDIA's data sheets.
DEVICES = {
    'TPU v4': Device('TPU v4', 275e12, 1.228e12, 32 * _GIB),
    'TPU v5 lite': Device('TPU v5e', 197e12, 0.819e12, int(15.75 * _GIB)),
    'TPU v5': Device('TPU v5p', 459e12, 2.765e12, 95 * _GIB),
    'TPU v6 lite': Device('TPU v6e', 918e12, 1.640e12, 32 * _GIB),
    'NVIDIA A100': Device('A100 80 GB', 312e12, 2.039e12, 80 * 10**9),
    'NVIDIA H100': Device('H100', 989e12, 3.35e12, 80 * 10**9),
    'NVIDIA H200': Device('H200', 989e12, 4.8e12, 141 * 10**9),
}


_WEIGHTS = (
    'raise --config.mesh.fsdp, or train adapters with --config.model.lora_rank'
)
# What to turn if this entry of the memory is the largest and it does not fit.
REMEDIES = {
    'parameters': _WEIGHTS,
    'optimizer moments': _WEIGHTS,
    'reference policy': 'raise --config.mesh.fsdp, or --config.grpo.kl_coef=0',
    'sampler weights': (
        'raise --config.mesh.tensor, or set'
        ' --config.model.compute_dtype=bfloat16'
    ),
    'rollout cache': 'lower --config.rollout.decode_slots',
    'update': (
        'lower --config.grpo.micro_groups, or set --config.model.remat=full and'
        ' --config.model.logprob_chunk=1024'
    ),
    'score': 'lower --config.grpo.micro_groups',
    'prefill': 'lower --config.rollout.prefill_rows',
    'insert': 'lower --config.rollout.prefill_rows',
    'decode': 'lower --config.rollout.decode_slots',
}


@dataclasses.dataclass(frozen=True)
class Work:
  """One kind of computation, over the whole run and all devices."""

  flops: int | float
  formula: str
  # Bytes that every device must read for it; 0: not bound by memory.
  bytes_per_device: int | float = 0


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A run on one kind of device."""

  device: Device
  platform: str  # Key of UTILISATION.
  seconds: Mapping[str, float]  # By phase, all devices working together.
  fits: bool


@dataclasses.dataclass(frozen=True)
class Plan:
  """The cost of a run; memory in bytes per device."""

  title: str
  mesh: Mapping[str, int]
  parameters: int
  trained: int
  resident: Mapping[str, int]  # Kept between programs.
  gradients: int  # Within the update's temporaries.
  temporaries: Mapping[str, int]  # By program; prefill's block counts for
  # insert and decode too, which run while it is there.
  exact: bool  # Temporaries come from the compiler.
  programs: Mapping[str, int]  # How many are compiled, at most.
  tokens: Mapping[str, tuple[int, int]]  # (sampled, prompt), at most.
  work: Mapping[str, Work]
  estimates: tuple[Estimate, ...]
  # What the meta-loop adds: arms, updates of each, and completions of an update
  # as a share of those of a step; arms are 0 without it.
  arms: int = 0
  arm_updates: int = 0
  arm_share: float = 0.0

  @property
  def devices(self) -> int:
    """Devices of the mesh."""
    return math.prod(self.mesh.values())

  @property
  def peak(self) -> int:
    """Bytes per device while the largest program runs."""
    return sum(self.resident.values()) + max(self.temporaries.values())

  @property
  def remedy(self) -> str:
    """What makes the largest part of the memory smaller."""
    parts = {**self.resident, **self.temporaries}
    parts['update'] -= self.gradients  # They shrink with the weights.
    return REMEDIES[max(parts, key=parts.get)]


@dataclasses.dataclass(frozen=True)
class _Run:
  """A config with what follows from it."""

  config: ml_collections.ConfigDict
  policy: policy_lib.Policy
  mesh: sharding.AnyMesh  # Abstract where its devices are elsewhere.

  @property
  def cfg(self) -> decoder.DecoderConfig:
    return self.policy.cfg

  @functools.cached_property
  def algorithm(self) -> update_lib.Algorithm:
    return settings.algorithm(self.config)

  @functools.cached_property
  def params(self) -> decoder.Params:
    """Shapes of the stored parameters, with their shardings."""
    shapes = jax.eval_shape(lambda: decoder.init(self.cfg, jax.random.key(0)))
    return _place(
        _cast(shapes, self.config.model.param_dtype),
        sharding.shardings(self.mesh, decoder.logical_axes(self.cfg)),
    )

  @functools.cached_property
  def state(self) -> update_lib.State:
    """Shapes of the learner's state, with their shardings."""
    shapes = jax.eval_shape(
        functools.partial(update_lib.init_state, self.cfg, self.algorithm),
        self.params,
    )
    return _place(
        shapes, update_lib.state_shardings(self.cfg, self.algorithm, self.mesh)
    )

  @functools.cached_property
  def batch(self) -> update_lib.Batch:
    """Shapes of one optimizer update's batch at its largest."""
    c = self.config
    groups = c.grpo.prompts // c.grpo.minibatches
    rows = groups * c.grpo.group_size
    tokens = np.zeros(c.rollout.max_tokens, np.int32)
    episode = records.Episode(tokens, tokens.astype(float), 'length', 0, '')
    batch, _, _ = update_lib.make_batch(
        [np.zeros(c.data.max_prompt_tokens, np.int32)] * rows,
        [episode] * rows,
        np.zeros((groups, c.grpo.group_size, 1), np.float32),
        np.ones((groups, c.grpo.group_size), bool),
        max_prompt_tokens=c.data.max_prompt_tokens,
        max_tokens=c.rollout.max_tokens,
        micro_groups=c.grpo.micro_groups,
        layout=c.grpo.layout,
    )
    return _place(batch, update_lib.batch_shardings(batch, self.mesh))

  @functools.cached_property
  def cache(self) -> Any:
    """Shapes of the keys and values of all decode slots."""
    return self._cache(
        self.config.rollout.decode_slots,
        self.config.data.max_prompt_tokens + self.config.rollout.max_tokens,
    )

  @functools.cached_property
  def block(self) -> Any:
    """Shapes of the keys and values of one prefill."""
    return self._cache(
        self.config.rollout.prefill_rows, self.config.data.max_prompt_tokens
    )

  def _cache(self, rows: int, slots: int) -> Any:
    shapes = jax.eval_shape(
        lambda: decoder.empty_cache(
            self.cfg, rows, slots, self.cfg.compute_dtype
        )
    )
    layers = ('layers',) if self.cfg.scan_layers else ()
    axes = (*layers, 'batch', 'kv_heads', None, None)
    return _place(
        shapes,
        sharding.shardings(self.mesh, jax.tree.map(lambda _: axes, shapes)),
    )


def _cast(shapes: Any, dtype: str) -> Any:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)


def _place(shapes: Any, shardings: Any) -> Any:
  """Shapes that say where their array would lie."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      shardings,
  )


def _size(placed: Any) -> int:
  """Bytes per device of a tree of placed shapes."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(placed)
  )


def plan(
    config: ml_collections.ConfigDict, devices: Sequence[Any] | None = None
) -> Plan:
  """Works out what `train.run(config)` would cost.

  Args:
    config: As for a run. A mesh without -1 may be larger than what is here.
    devices: Those that are here; default: all of jax's.

  Raises:
    ValueError: If the config, the model directory or the mesh is wrong.
  """
  config_checks.validate(config)
  policy = policy_lib.open_policy(
      fsdp_shards=max(config.mesh.fsdp, 1),
      tensor_shards=max(config.mesh.tensor, 1),
      max_tokens=config.data.max_prompt_tokens + config.rollout.max_tokens,
      **config.model.to_dict()
      | {'path': domains.policy_path(config.model.path)},
  )
  return estimate(config, policy, jax.devices() if devices is None else devices)


def estimate(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    devices: Sequence[Any],
) -> Plan:
  """`plan` for a policy that is open already."""
  sizes = tuple(config.mesh[axis] for axis in sharding.MESH_AXES)
  here = -1 in sizes or math.prod(sizes) == len(devices)
  mesh = (
      sharding.make_mesh(**config.mesh.to_dict(), devices=devices)
      if here
      else jax.sharding.AbstractMesh(sizes, sharding.MESH_AXES)
  )
  policy_lib.check_shards(
      policy.path, policy.cfg, mesh.shape['fsdp'], mesh.shape['tensor']
  )
  run = _Run(config, policy, mesh)
  exact = here and decoder.count_params(run.cfg) <= _COMPILE_PARAMETERS
  with sharding.use(mesh) if exact else contextlib.nullcontext():
    temporaries = dict(compiled(run) if exact else bounds(run))
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  result = Plan(
      title=(
          f'{config.name}: {config.steps} steps of {config.grpo.prompts}'
          f' prompts x {config.grpo.group_size} completions'
      ),
      mesh=dict(mesh.shape),
      parameters=count(run.params),
      trained=count(run.state['params']),
      resident=_resident(run),
      gradients=_size(_as_dtype(run.state['params'], 'float32')),
      temporaries={k: math.ceil(size) for k, size in temporaries.items()},
      exact=exact,
      programs=_programs(run),
      tokens=_tokens(config),
      work=_work(run),
      estimates=(),
      arms=_arms(config),
      arm_updates=config.evolve.updates,
      arm_share=(config.evolve.prompts * config.evolve.group_size)
      / (config.grpo.prompts * config.grpo.group_size),
  )
  known = (
      [_local_device(devices)]
      if here
      else [(device, 'accelerator') for device in DEVICES.values()]
  )
  return dataclasses.replace(
      result,
      estimates=tuple(
          Estimate(
              device=device,
              platform=platform,
              seconds=_seconds(result, device, UTILISATION[platform]),
              fits=result.peak <= device.memory_bytes,
          )
          for device, platform in known
      ),
  )


def _arms(config: ml_collections.ConfigDict) -> int:
  """Arms of the meta-loop, at most: every trial is kept, with new controls."""
  e = config.evolve
  return e.trials * (e.controls + e.max_children)


# ------------------------------------------------------------------ memory


def _resident(run: _Run) -> dict[str, int]:
  """Bytes per device of what stays between programs."""
  memory = {
      'parameters': _size((run.state['params'], run.state['frozen'])),
      'optimizer moments': _size(run.state['moments']),
  }
  if run.algorithm.reference:
    memory['reference policy'] = _size(run.params)
  if _samples_here(run):
    memory['rollout cache'] = _size(run.cache)
    if _copies_weights(run):
      memory['sampler weights'] = _size(_sampler_weights(run))
  return memory


def _samples_here(run: _Run) -> bool:
  """Whether this process samples, and not a server."""
  return run.config.rollout.kind == 'engine'


def _copies_weights(run: _Run) -> bool:
  """Whether the engine has weights of its own.

  Because they are used in another form than they are stored in, or because it
  samples beside the update.
  """
  model = run.config.model
  return bool(
      model.compute_dtype != model.param_dtype
      or run.mesh.shape['fsdp'] > 1
      or run.config.rollout.queue_depth
  )


def _sampler_weights(run: _Run) -> Any:
  """Shapes of the weights as the engine holds them: whole along fsdp."""
  return _place(
      _cast(run.params, run.cfg.compute_dtype),
      sharding.shardings(
          run.mesh, decoder.logical_axes(run.cfg, gathered=True)
      ),
  )


def _as_dtype(placed: Any, dtype: str) -> Any:
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, dtype, sharding=x.sharding),
      placed,
  )


def _scores(run: _Run) -> bool:
  """Whether log-probs are computed apart from the update."""
  return run.algorithm.reference or not run.algorithm.on_policy


def lower(run: _Run) -> Iterator[tuple[str, jax.stages.Lowered]]:
  """The run's programs at their shapes, ready to compile."""
  whole = sharding.replicated(run.mesh)
  array = lambda shape, dtype: jax.ShapeDtypeStruct(
      shape, dtype, sharding=whole
  )
  c, scalar = run.config, array((), jnp.float32)
  batch = dict(run.batch)
  if _scores(run):
    score = functools.partial(update_lib.score_step, run.cfg, run.algorithm)
    yield 'score', jax.jit(score).lower(run.params, batch, scalar)
  like = batch['sampler_logprobs']
  if not run.algorithm.on_policy:
    batch['old_logprobs'] = like
  if run.algorithm.reference:
    batch['ref_logprobs'] = like
  update = update_lib.jit_update_step(run.cfg, run.algorithm, run.mesh)
  yield 'update', update.lower(
      run.state,
      batch,
      array((), jnp.int32),
      {name: scalar for name in update_lib.HYPERPARAMETERS},
  )
  if _samples_here(run):
    engine = engines.make_engine(c, run.policy, run.mesh)
    yield from engine.slots.lower(_sampler_weights(run))


def compiled(run: _Run) -> Iterator[tuple[str, int]]:
  """Temporary bytes of each program, from the compiler."""
  for name, lowered in lower(run):
    memory = lowered.compile().memory_analysis()
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    block = _size(run.block) if name in ('insert', 'decode') else 0
    yield name, memory.temp_size_in_bytes + fresh + block


def bounds(run: _Run) -> Iterator[tuple[str, int | float]]:
  """Temporary bytes of each program, from what must be alive in it.

  Estimates on the safe side: a compiler that fuses well needs less.
  """
  c, cfg, mesh = run.config, run.cfg, dict(run.mesh.shape)
  fsdp, tensor, replicas = mesh['fsdp'], mesh['tensor'], mesh['data']
  shards = replicas * fsdp  # Of a batch.
  item = jnp.dtype(cfg.compute_dtype).itemsize
  d, h, n, k = (cfg.hidden_size, cfg.head_dim, cfg.num_heads, cfg.num_kv_heads)
  prompt, new = c.data.max_prompt_tokens, c.rollout.max_tokens

  def layer(slots: int) -> float:
    """Bytes per token of a layer's activations, scores of `slots` keys too."""
    split = (2 * (n + 2 * k) * h + n * h + 3 * cfg.intermediate_size) * item
    return d * (4 * item + 8) + (split + n * slots * (4 + item)) / tensor

  saved = {  # Bytes per token that each layer keeps for the backward pass.
      'none': layer(prompt + new),
      'dots': (3 * d + ((n + 2 * k) * h + 2 * cfg.intermediate_size) / tensor)
      * item,
      'full': d * item,
  }[cfg.remat]
  # Bytes per token: its logits, and its hidden state, whole beside them.
  logits = cfg.vocab_size * 4 / (fsdp * tensor) + d * item
  weights = _size(_sampler_weights(run)['layers'])
  table = cfg.vocab_size * d * item / (fsdp * tensor)
  # Cast and gathered over fsdp for use: the next layer's with it.
  copies = _copies_weights(run)
  used = (
      copies * 2 * weights / cfg.num_layers
      + (cfg.compute_dtype != c.model.param_dtype) * table
  )

  groups, size = c.grpo.micro_groups, c.grpo.group_size
  if c.grpo.layout == 'shared':
    tokens = groups * (prompt + size * new) / shards
    targets = groups * size * new / replicas
  else:
    tokens = math.prod(run.batch['tokens'].shape[1:]) / shards
    targets = tokens * fsdp
  alive = min(c.model.logprob_chunk / replicas or math.inf, targets)
  forward = tokens * layer(prompt + new) + used
  yield 'update', (
      # The sum over micro-batches, and one micro-batch's.
      2 * _size(_as_dtype(run.state['params'], 'float32'))
      + cfg.num_layers * tokens * saved
      # Without recomputation copies of all weights wait for the backward pass.
      + copies * (cfg.remat == 'none') * weights
      + 2 * forward
      + 3 * alive * logits
  )
  if _scores(run):
    yield 'score', 2 * forward + 2 * alive * logits
  if not _samples_here(run):
    return
  block = _size(run.block)
  rows, slots = c.rollout.prefill_rows, c.rollout.decode_slots
  scored = slots / replicas * logits
  yield 'prefill', (
      block
      + rows / shards * 2 * prompt * layer(prompt)
      + rows / replicas * logits
  )
  yield 'insert', block + _size(run.cache) / cfg.num_layers + scored
  yield 'decode', block + slots / shards * 2 * layer(prompt + new) + 5 * scored


# ---------------------------------------------------------- programs, tokens


def _programs(run: _Run) -> dict[str, int]:
  """How many programs of each kind a run compiles, at most."""
  shapes = 1
  if run.config.grpo.layout == 'packed':  # One per bucket of rows.
    rows = run.batch['tokens'].shape[1]
    shapes = -(-rows // update_lib.PACKED_ROWS_BUCKET)
  programs = dict(update=shapes)
  if _scores(run):
    programs['score'] = shapes
  # Optimizer moments and the sampler's seed: once each, and small.
  programs['set-up'] = 2
  if _samples_here(run):
    programs |= dict(prefill=1, insert=1, decode=1)
    # Free slots, and the sampler's weights where it has its own.
    programs['set-up'] += 1 + _copies_weights(run)
  return programs


def _evaluations(config: ml_collections.ConfigDict) -> tuple[int, int]:
  """(dev, sealed) evaluations of a run."""
  every, steps = config.eval.every, config.steps
  visited = {0, steps} | (
      set(range(every, steps + 1, every)) if every else set()
  )
  return len(visited), 2 if config.eval.sealed and steps else 0


def _tokens(config: ml_collections.ConfigDict) -> dict[str, tuple[int, int]]:
  """(sampled, prompt) tokens by stage, every sequence at its longest."""
  c = config
  new, prompt = c.rollout.max_tokens, c.data.max_prompt_tokens
  prompts = c.grpo.prompts * (1 + c.grpo.refill_rounds)
  step = (prompts * c.grpo.group_size * new, prompts * prompt)
  scored = (c.eval.problems * c.eval.samples * new, c.eval.problems * prompt)
  times = lambda count, pair: (count * pair[0], count * pair[1])
  training = times(c.steps, step)
  evaluations = times(sum(_evaluations(c)), scored)
  return {
      'a step': step,
      'training': training,
      'evaluations': evaluations,
      'the run': tuple(map(sum, zip(training, evaluations, strict=True))),
  }


# ------------------------------------------------------------- work and time


def _work(run: _Run) -> dict[str, Work]:
  """The run's computation by phase, without that of servers."""
  c, cfg = run.config, run.cfg
  prompt, new = c.data.max_prompt_tokens, c.rollout.max_tokens
  group, length = c.grpo.group_size, prompt + new
  rows, slots = c.rollout.prefill_rows, c.rollout.decode_slots
  read = _size(_sampler_weights(run)) + _size(run.cache)

  def forwards(times: int, unit: str, *counts: int, read: int = 0) -> Work:
    listed = ', '.join(f'{count:,}' for count in counts)
    return Work(
        flops=times * flops.forward(cfg, *counts),
        formula=f'{times:,} {unit} x forward({listed})',
        bytes_per_device=times * read,
    )

  def sample(calls: int, prompts: int, samples: int) -> tuple[Work, Work]:
    blocks = calls * -(-prompts // rows)
    # The first token comes with the prefill.
    steps = calls * -(-prompts * samples // slots) * (new - 1)
    return (
        forwards(blocks, 'blocks', rows * prompt, rows * prompt**2, rows),
        forwards(steps, 'steps', slots, slots * length, slots, read=read),
    )

  work = {}
  if _samples_here(run):
    work['prefill'], work['decode'] = sample(
        c.steps * (1 + c.grpo.refill_rounds), c.grpo.prompts, group
    )
  if c.grpo.layout == 'shared':
    tokens, logits = prompt + group * new, group * new
    pairs = prompt**2 + group * new * length
  else:
    tokens, logits, pairs = group * length, group * length, group * length**2
  groups = c.steps * c.grpo.prompts
  if _scores(run):
    passes = (not run.algorithm.on_policy) + run.algorithm.reference
    work['score'] = forwards(passes * groups, 'groups', tokens, pairs, logits)
  # Backward, two products for each product, one where weights are frozen; and
  # what is not kept for it is computed again.
  back = 1 if cfg.lora_rank else 2
  layers = 1 + back + (cfg.remat == 'full')
  head = 1 + back + (c.model.logprob_chunk > 0)
  once = forwards(c.grpo.epochs * groups, 'groups', tokens, pairs, logits)
  heads = c.grpo.epochs * groups * flops.forward(cfg, 0, 0, logits)
  work['update'] = dataclasses.replace(
      once,
      flops=layers * (once.flops - heads) + head * heads,
      formula=f'{layers} x {once.formula}'
      + f', logits {head} x' * (head != layers),
  )
  if _samples_here(run):
    work['evaluation prefill'], work['evaluation decode'] = sample(
        sum(_evaluations(c)), c.eval.problems, c.eval.samples
    )
  return work


def _seconds(
    plan_: Plan, device: Device, share: Mapping[str, float]
) -> dict[str, float]:
  """Seconds by phase: the slower of computing and reading."""
  seconds = {}
  for name, w in plan_.work.items():
    kind = 'decode' if name.endswith('decode') else 'update'
    computing = w.flops / (plan_.devices * device.flops * share[kind])
    reading = w.bytes_per_device / (device.bandwidth * share['bandwidth'])
    seconds[name] = max(computing, reading)
  return seconds


def _local_device(devices: Sequence[Any]) -> tuple[Device, str]:
  """What the devices that are here can do, and the key of UTILISATION."""
  kind, platform = devices[0].device_kind, devices[0].platform
  if platform == 'cpu':
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    # Virtual devices share the machine.
    return (
        Device(
            name=f'{os.cpu_count()} CPU cores, shared by {len(devices)}'
            ' devices',
            flops=flops.measure(devices[0]) / len(devices),
            bandwidth=math.inf,
            memory_bytes=memory // len(devices),
        ),
        'cpu',
    )
  known = [prefix for prefix in DEVICES if kind.startswith(prefix)]
  if not known:
    raise ValueError(
        f'device_kind={kind!r} is not in evojax.modes.plan.DEVICES; add its'
        f' peak FLOP/s, bandwidth and memory. Known: {sorted(DEVICES)}'
    )
  device = DEVICES[max(known, key=len)]
  usable = (devices[0].memory_stats() or {}).get('bytes_limit')
  return (
      dataclasses.replace(
          device, name=kind, memory_bytes=usable or device.memory_bytes
      ),
      'accelerator',
  )


# ---------------------------------------------------------------------- show


def _bytes(size: int) -> str:
  return f'{size / 2**20:,.1f} MiB'


def _duration(seconds: float) -> str:
  if seconds < 120:
    return f'{seconds:,.0f} s'
  if seconds < 7200:
    return f'{seconds / 60:,.0f} min'
  return f'{seconds / 3600:,.1f} h'


def show(plan: Plan, out: io.TextIOBase | None = None) -> None:
  """Prints a plan, a block per question."""
  write = functools.partial(print, file=sys.stdout if out is None else out)
  axes = ' '.join(f'{axis}={size}' for axis, size in plan.mesh.items())
  write(f'plan of {plan.title}')
  write(f'mesh {axes}: {plan.devices} device{"s" * (plan.devices > 1)}')
  write(f'parameters {plan.parameters:,}, trained {plan.trained:,}')

  source = 'as compiled' if plan.exact else 'estimated from shapes'
  write(f'\nmemory per device, temporaries {source}')
  for name, size in plan.resident.items():
    write(f'  {name:24}{_bytes(size):>16}')
  for name, size in plan.temporaries.items():
    note = f', gradients {_bytes(plan.gradients)} of it' * (name == 'update')
    write(f'  {"during " + name:24}{_bytes(size):>16}{note}')
  write(f'  {"at once, at most":24}{_bytes(plan.peak):>16}')

  listed = ', '.join(f'{name} {n}' for name, n in plan.programs.items())
  write(
      f'\nprograms compiled, at most: {sum(plan.programs.values())} ({listed})'
  )

  write(f'\n{"tokens, at most":20}{"sampled":>20}{"prompt":>20}')
  for name, (sampled, prompt) in plan.tokens.items():
    write(f'  {name:18}{sampled:>20,}{prompt:>20,}')

  write('\nFLOPs of matrix products, at most, with')
  write(f'  {flops.FORMULA}')
  for name, work in plan.work.items():
    write(f'  {name:20}{work.flops:10.3g} = {work.formula}')

  if 'decode' not in plan.work:
    write('sampling is left to the servers of --config.rollout.urls')

  if plan.arms:
    write(
        f'\n--mode=evolve: all of this is its last step. Before that, at most'
        f' {plan.arms} arms of {plan.arm_updates} updates, each'
        f' {plan.arm_share:.0%} of a step above'
    )
  share = UTILISATION[plan.estimates[0].platform]
  write(
      f'\ndevice-seconds, at {share["update"]:.0%} of the peak in updates and'
      f' prefills, {share["decode"]:.0%} in decoding,\nand'
      f' {share["bandwidth"]:.0%} of the bandwidth where that bounds decoding'
      ' (assumed); without compiling, grading and disk'
  )
  for estimate in plan.estimates:
    device, seconds = estimate.device, sum(estimate.seconds.values())
    phases = ', '.join(
        f'{name} {_duration(time)}' for name, time in estimate.seconds.items()
    )
    write(
        f'  {device.name}, {device.flops / 1e12:.3g} TFLOP/s:'
        f' {seconds * plan.devices:,.0f} device-seconds, {_duration(seconds)}'
        f' ({phases})'
    )
    fits = 'fits in' if estimate.fits else 'DOES NOT FIT into'
    remedy = '' if estimate.fits else f'; {plan.remedy}'
    write(
        f'    {_bytes(plan.peak)} {fits} {_bytes(device.memory_bytes)}{remedy}'
    )
