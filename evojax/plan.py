"""What a run costs, worked out from shapes before anything is paid for.

Nothing is read to a device: parameters, moments and caches are shapes with
shardings. A small policy on a mesh that is here is compiled ahead of time, and
the compiler's own numbers are shown; a large one, or a mesh that is elsewhere
(a pod, planned on a laptop), gets bounds. FLOPs are those of the matrix
products, two per multiply-add; every sequence counts at its longest.
"""
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import os
import sys
import time
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import learner
from evojax import sharding
from evojax import train
from evojax.models import decoder
from evojax.models import policy as policy_lib

# Up to this many parameters programs are compiled for their temporaries.
_COMPILE_PARAMETERS = 50_000_000
_MATMUL_SECONDS = 0.3

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


@dataclasses.dataclass(frozen=True)
class Work:
  """One kind of computation, over the whole run and all devices."""

  flops: float
  formula: str
  # Bytes that every device must read for it; 0: not bound by memory.
  bytes_per_device: float = 0.0


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

  @property
  def devices(self) -> int:
    """Devices of the mesh."""
    return math.prod(self.mesh.values())

  @property
  def peak(self) -> int:
    """Bytes per device while the largest program runs."""
    return sum(self.resident.values()) + max(self.temporaries.values())


@dataclasses.dataclass(frozen=True)
class _Run:
  """A config with what follows from it."""

  config: ml_collections.ConfigDict
  policy: policy_lib.Policy
  mesh: Any  # Mesh, or AbstractMesh where its devices are elsewhere.

  @property
  def cfg(self) -> decoder.DecoderConfig:
    return self.policy.cfg

  @functools.cached_property
  def algorithm(self) -> learner.Algorithm:
    return train.make_algorithm(self.config)

  @functools.cached_property
  def params(self) -> decoder.Params:
    """Shapes of the stored parameters, with their shardings."""
    shapes = jax.eval_shape(lambda: decoder.init(self.cfg, jax.random.key(0)))
    return _place(
        _cast(shapes, self.config.model.param_dtype),
        sharding.shardings(self.mesh, decoder.logical_axes(self.cfg)),
    )

  @functools.cached_property
  def state(self) -> learner.State:
    """Shapes of the learner's state, with their shardings."""
    shapes = jax.eval_shape(
        functools.partial(learner.init_state, self.cfg, self.algorithm),
        self.params,
    )
    return _place(
        shapes, learner.state_shardings(self.cfg, self.algorithm, self.mesh)
    )

  @functools.cached_property
  def batch(self) -> learner.Batch:
    """Shapes of one optimizer update's batch at its largest."""
    c = self.config
    groups = c.grpo.prompts // c.grpo.minibatches
    rows = groups * c.grpo.group_size
    batch, _, _ = learner.make_batch(
        [np.zeros(c.data.max_prompt_tokens, np.int32)] * rows,
        [np.zeros(c.rollout.max_tokens, np.int32)] * rows,
        [np.zeros(c.rollout.max_tokens, np.float32)] * rows,
        np.zeros((groups, c.grpo.group_size), np.float32),
        np.ones((groups, c.grpo.group_size), bool),
        max_prompt_tokens=c.data.max_prompt_tokens,
        max_tokens=c.rollout.max_tokens,
        micro_groups=c.grpo.micro_groups,
        layout=c.grpo.layout,
    )
    return _place(batch, learner.batch_shardings(batch, self.mesh))

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
  config_lib.validate(config)
  policy = policy_lib.open_policy(
      tensor_shards=max(config.mesh.tensor, 1),
      max_tokens=config.data.max_prompt_tokens + config.rollout.max_tokens,
      **config.model.to_dict(),
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
  run = _Run(config, policy, mesh)
  exact = here and decoder.count_params(run.cfg) <= _COMPILE_PARAMETERS
  with sharding.use(mesh) if exact else _nothing():
    temporaries = dict(compiled(run) if exact else bounds(run))
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  result = Plan(
      title=(
          f'{config.name}: {config.steps} steps of {config.grpo.prompts} prompts'
          f' x {config.grpo.group_size} completions'
      ),
      mesh=dict(mesh.shape),
      parameters=count(run.params),
      trained=count(run.state['params']),
      resident=_resident(run),
      gradients=_size(_as_float32(run.state['params'])),
      temporaries=temporaries,
      exact=exact,
      programs=_programs(run),
      tokens=_tokens(config),
      work=_work(run),
      estimates=(),
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


def _nothing() -> contextlib.AbstractContextManager[None]:
  return contextlib.nullcontext()


# ------------------------------------------------------------------ memory


def _resident(run: _Run) -> dict[str, int]:
  """Bytes per device of what stays between programs."""
  model = run.config.model
  memory = {
      'parameters': _size((run.state['params'], run.state['frozen'])),
      'optimizer moments': _size(run.state['moments']),
      'rollout cache': _size(run.cache),
  }
  if run.algorithm.reference:
    memory['reference policy'] = _size(run.params)
  if model.compute_dtype != model.param_dtype:
    memory[f'sampler weights ({model.compute_dtype})'] = _size(
        _sampler_weights(run)
    )
  return memory


def _sampler_weights(run: _Run) -> Any:
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
          x.shape, run.cfg.compute_dtype, sharding=x.sharding
      ),
      run.params,
  )


def _as_float32(placed: Any) -> Any:
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
          x.shape, jnp.float32, sharding=x.sharding
      ),
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
    score = functools.partial(learner.score_step, run.cfg, run.algorithm)
    yield 'score', jax.jit(score).lower(run.params, batch, scalar)
  like = batch['sampler_logprobs']
  if not run.algorithm.on_policy:
    batch['old_logprobs'] = like
  if run.algorithm.reference:
    batch['ref_logprobs'] = like
  update = learner.jit_update_step(run.cfg, run.algorithm, run.mesh)
  yield 'update', update.lower(
      run.state,
      batch,
      array((), jnp.int32),
      {name: scalar for name in learner.HYPERPARAMETERS},
  )
  engine = train.make_engine(c, run.policy, run.mesh)
  rows = c.rollout.prefill_rows
  yield from engine.lower(_sampler_weights(run)).items()


def compiled(run: _Run) -> Iterator[tuple[str, int]]:
  """Temporary bytes of each program, from the compiler."""
  for name, lowered in lower(run):
    memory = lowered.compile().memory_analysis()
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    block = _size(run.block) if name in ('insert', 'decode') else 0
    yield name, memory.temp_size_in_bytes + fresh + block
