"""--mode=plan: estimate the memory, tokens and time of a run before it starts.

For a small policy on the devices of this machine, the programs are compiled
ahead of time and the compiler reports their memory. For a large policy, or for
devices elsewhere (a pod that is planned on a laptop), `training.memory` bounds
it. FLOPs are those of matrix products, two per multiply-add. Every sequence
counts at its maximum length, and for the expected cost at `plan.mean_tokens`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
import time
from typing import Any

import jax
import ml_collections

from evojax import config as config_lib
from evojax.episodes import synthetic
from evojax.models import decoder
from evojax.models import flops
from evojax.models import policy as policy_lib
from evojax.modes import plan_devices
from evojax.modes import plan_meshes
from evojax.modes import plan_remedies
from evojax.rl import packing
from evojax.runtime import config_checks
from evojax.runtime import devices as devices_lib
from evojax.runtime import output
from evojax.runtime import progress
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from evojax.training import meshes
from evojax.training import settings
from evojax.training import stages

# Programs of policies with at most this many parameters are compiled.
_COMPILE_PARAMETERS = 50_000_000

# Seconds spent outside matrix products, estimated for two CPU cores: per step
# (evidence, the box, small batches) and per arm (checkpoints).
_STEP, _ARM = 0.15, 0.5


@dataclasses.dataclass(frozen=True)
class Work:
  """One kind of computation, over the whole run and all devices."""

  flops: int | float
  formula: str
  # Bytes that every device must read for it; 0 if not bound by memory.
  bytes_per_device: int | float = 0


@dataclasses.dataclass(frozen=True)
class Arm:
  """One arm of a stage of a run that evolves."""

  stage: progress.Stage
  tokens: int  # Number of sampled tokens.
  work: Mapping[str, Work]  # By phase.
  other: float  # Seconds outside matrix products.

  def seconds(self, device: devices_lib.Device, devices: int) -> float:
    """Return the wall time on a number of devices."""
    return sum(seconds(self.work, device, devices).values()) + self.other


@dataclasses.dataclass(frozen=True)
class Costs:
  """The work of a run whose completions have a given length."""

  work: Mapping[str, Work]  # The work of plain training, by phase.
  arms: Sequence[Arm]  # One for each stage of --mode=evolve.


@dataclasses.dataclass(frozen=True)
class Plan:
  """The cost of a run; memory in bytes per device."""

  run: memory_lib.Run
  mesh: Mapping[str, int]
  parameters: int
  trained: int
  resident: Mapping[str, int]  # Kept between programs.
  gradients: int  # Part of the update's temporaries.
  temporaries: Mapping[str, int]  # By program.
  exact: bool  # Temporaries come from the compiler.
  programs: Mapping[str, int]  # Maximum number compiled, by kind.
  tokens: Mapping[str, tuple[int, int]]  # Maximum of (sampled, prompt).
  most: Costs  # Every completion has the maximum length.
  expected: Costs  # Completions of `plan.mean_tokens`, or the same as `most`.
  # The kind of device of this machine, or all kinds that the run may use.
  known: Sequence[devices_lib.Device]

  @property
  def config(self) -> ml_collections.ConfigDict:
    """The config of the run."""
    return self.run.config

  @property
  def mean_tokens(self) -> int:
    """Expected tokens of a completion; 0 if all count as the longest."""
    return _mean_tokens(self.config)

  @property
  def devices(self) -> int:
    """The number of devices of the mesh."""
    return math.prod(self.mesh.values())

  @functools.cached_property
  def estimates(self) -> list[plan_devices.Estimate]:
    """The run on each known device."""
    return [
        plan_devices.Estimate(
            device,
            seconds(self.most.work, device, self.devices),
            seconds(self.expected.work, device, self.devices),
            self.peak_on(device),
        )
        for device in self.known
    ]

  @property
  def peak(self) -> int:
    """The most bytes per device at once, on any of `known`."""
    return sum(self.resident.values()) + max(self.temporaries.values())

  def peak_on(self, device: devices_lib.Device) -> int:
    """Return the peak on a kind of device, whose compiler may need less."""
    if self.run.platform:
      return self.peak
    return memory_lib.peak(self.run.on(device.platform))

  def remedies(self, device: devices_lib.Device) -> list[plan_remedies.Remedy]:
    """Return up to three remedies; those that make the run fit come first."""
    return sorted(
        self._remedies[device.platform],
        key=lambda each: plan_devices.fit(each.peak, device),
    )[:3]

  @functools.cached_property
  def _remedies(self) -> dict[str, list[plan_remedies.Remedy]]:
    """All remedies by platform, the smallest peak first."""
    return {
        platform: plan_remedies.find(self.run.on(platform))
        for platform in {device.platform for device in self.known}
    }


def plan(config: ml_collections.ConfigDict, *, mesh_auto: bool = False) -> Plan:
  """Estimate the cost of `training.loop.run(config)`.

  Args:
    config: The config of a run. A mesh without -1 may have more devices than
      this machine. The weights of the policy may be missing.
    mesh_auto: Search for a mesh with as many devices on which the run fits,
      print the result, and plan the run on that mesh.

  Raises:
    ValueError: If the config, the model directory or the mesh is wrong, or if
      `mesh_auto` finds no mesh on which the run fits.
  """
  if mesh_auto:
    plan_meshes.check(config)
    policy = settings.open_policy(config, weights=False)
    found = plan_meshes.find(config, policy, jax.devices())
    output.say('\n'.join(found.lines()) + '\n')
    config = plan_meshes.with_mesh(config, found.chosen)
  config_checks.validate(config)
  policy = settings.open_policy(config, weights=False)
  return estimate(config, policy, jax.devices(), _grading(config))


def _grading(config: ml_collections.ConfigDict) -> float:
  """Measure the seconds of grading one completion, on a few synthetic ones."""
  domain = settings.make_domain(config)
  seconds = []
  for _ in range(2):  # The first call may start grader processes.
    began = time.perf_counter()
    view, _ = synthetic.make_view(domain, config)
    seconds.append(time.perf_counter() - began)
  return min(seconds) / view.valid.size


def estimate(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    devices: Sequence[Any],
    grading: float = 0.0,
) -> Plan:
  """Return the plan of a run whose policy is already open.

  Args:
    config: See `plan`.
    policy: The policy of the config.
    devices: The devices of this machine.
    grading: Seconds of grading one completion.
  """
  sizes = tuple(config.mesh[axis] for axis in sharding.MESH_AXES)
  here = -1 in sizes or math.prod(sizes) == len(devices)
  if here:
    axes = config.mesh.to_dict()
    if -1 in sizes:  # As a run does, which may take a nearby mesh.
      slices = meshes.slices_of(devices)
      axes = meshes.fitting(config, policy, len(devices), slices)
    mesh = sharding.make_mesh(**axes, devices=devices)
  else:
    mesh = jax.sharding.AbstractMesh(sizes, sharding.MESH_AXES)
  asked = config.mesh.fsdp, config.mesh.tensor
  policy = dataclasses.replace(
      policy, cfg=policy_lib.padded(policy.cfg, *asked)
  )
  shards = mesh.shape['fsdp'], mesh.shape['tensor']
  policy_lib.check_shards(policy.path, policy.cfg, *shards)
  run = memory_lib.Run(config, policy, mesh)
  exact = here and decoder.count_params(run.cfg) <= _COMPILE_PARAMETERS
  if exact:
    with sharding.use(mesh):
      temporaries = dict(memory_lib.compiled(run))
  else:
    temporaries = dict(memory_lib.bounds(run))
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  # A change of the harness may lift rollout.token_limit.
  most = expected = _costs(run, grading, lifts=True)
  mean = _mean_tokens(config)
  if mean or config.rollout.token_limit:
    shorter = run.with_fields({'rollout.max_tokens': mean}) if mean else run
    expected = _costs(shorter, grading, lifts=False)
  return Plan(
      run=run,
      mesh=dict(mesh.shape),
      parameters=count(run.params),
      trained=count(run.state['params']),
      resident=memory_lib.resident(run),
      gradients=run.gradient_bytes,
      temporaries={k: math.ceil(size) for k, size in temporaries.items()},
      exact=exact,
      programs=_programs(run),
      tokens=_tokens(config),
      most=most,
      expected=expected,
      known=plan_devices.known(config.mesh, devices),
  )


# ---------------------------------------------------------- programs, tokens


def _programs(run: memory_lib.Run) -> dict[str, int]:
  """Return the maximum number of programs that a run compiles, by kind."""
  shapes = 1
  if run.config.grpo.layout == 'packed':  # One program per number of rows.
    rows = run.batch['tokens'].shape[1]
    shapes = packing.shapes(rows, sharding.batch_shards(run.mesh))
  programs = dict(update=shapes)
  if run.scores:
    programs['score'] = shapes
  # Two small programs make the optimizer's moments and the sampler's seed.
  programs['set-up'] = 2
  if run.samples_here:
    inserts = len(run.slots.prompt_lengths)
    programs |= dict(prefill=1, insert=inserts, decode=1)
    if run.slots.shapes.prefix_chunks:
      programs['copy'] = 2  # Chunks to and from the prefix cache.
    # One makes the empty slots, and one the sampler's own copy of the weights,
    # if it has one.
    programs['set-up'] += 1 + run.copies_weights
  return programs


def _evaluations(config: ml_collections.ConfigDict) -> tuple[int, int]:
  """Return the numbers of (dev, sealed) evaluations of a run."""
  every, steps = config.eval.every, config.steps
  visited = {0, steps, *(range(every, steps, every) if every else ())}
  return len(visited), 2 if config.eval.sealed and steps else 0


def _tokens(config: ml_collections.ConfigDict) -> dict[str, tuple[int, int]]:
  """Return the maximum numbers of (sampled, prompt) tokens by part of a run."""
  c = config
  new, prompt = c.rollout.max_tokens, c.data.max_prompt_tokens
  prompts = c.grpo.prompts * (1 + c.grpo.refill_rounds)
  step = (prompts * c.grpo.group_size * _most_tokens(c), prompts * prompt)
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


def _costs(run: memory_lib.Run, grading: float, *, lifts: bool) -> Costs:
  """Return the costs of a run.

  Args:
    run: The run.
    grading: Seconds of grading a completion.
    lifts: Whether arms after version 0 may have no rollout.token_limit.
  """
  stages_ = stages.of_evolution(run.config) if run.config.evolve.rounds else ()
  free = run.with_fields({'rollout.token_limit': 0}) if lifts else run
  arms = [
      _arm(run if stage.name == stages.FIRST else free, stage, grading)
      for stage in stages_
      if stage.arms
  ]
  return Costs(_work(run), arms)


def _most_tokens(config: ml_collections.ConfigDict) -> int:
  """Return the maximum tokens of a completion in training."""
  return min(config_lib.token_limit(config), config.rollout.max_tokens)


def _mean_tokens(config: ml_collections.ConfigDict) -> int:
  """Return `plan.mean_tokens`; 0 if it is not below the maximum."""
  mean = config.plan.mean_tokens
  return mean if mean < config.rollout.max_tokens else 0


def _forwards(
    run: memory_lib.Run, times: int, unit: str, *counts: int, read: int = 0
) -> Work:
  """Return the work of forward passes; `flops.forward` explains the counts."""
  listed = ', '.join(f'{count:,}' for count in counts)
  return Work(
      flops=times * flops.forward(run.cfg, *counts),
      formula=f'{times:,} {unit} x forward({listed})',
      bytes_per_device=times * read,
  )


def _sampling(
    run: memory_lib.Run, calls: int, prompts: int, samples: int, tokens: int
) -> tuple[Work, ...]:
  """Return the work of (prefill, decode); () if servers sample.

  Args:
    run: The run.
    calls: Number of sampling calls.
    prompts: Prompts of one call.
    samples: Completions of one prompt.
    tokens: Maximum tokens of a completion.
  """
  if not run.samples_here:
    return ()
  r, prompt = run.config.rollout, run.config.data.max_prompt_tokens
  rows, slots, length = r.prefill_rows, r.decode_slots, prompt + r.max_tokens
  read = memory_lib.bytes_of((run.sampler_weights, run.arrays[0]))
  blocks = calls * -(-prompts // rows)
  # The prefill already samples the first token.
  steps = calls * -(-prompts * samples // slots) * (tokens - 1)
  prefills = rows * prompt, rows * prompt**2, rows
  decodes = slots, slots * length, slots
  return (
      _forwards(run, blocks, 'blocks', *prefills),
      _forwards(run, steps, 'steps', *decodes, read=read),
  )


def _work(run: memory_lib.Run) -> dict[str, Work]:
  """Return the run's work by phase, without the work of servers."""
  c = run.config
  calls = c.steps * (1 + c.grpo.refill_rounds)
  step = c.grpo.prompts, c.grpo.group_size, _most_tokens(c)
  score = c.eval.problems, c.eval.samples, c.rollout.max_tokens
  sampled = _sampling(run, calls, *step)
  scored = _sampling(run, sum(_evaluations(c)), *score)
  names = 'prefill', 'decode'
  return (
      dict(zip(names, sampled, strict=False))
      | _updates(run)
      | {f'evaluation {n}': w for n, w in zip(names, scored, strict=False)}
  )


def _updates(run: memory_lib.Run) -> dict[str, Work]:
  """Return the work of the run's updates by phase."""
  c, cfg, work = run.config, run.cfg, {}
  prompt, new = c.data.max_prompt_tokens, c.rollout.max_tokens
  group, length = c.grpo.group_size, prompt + new
  forwards = functools.partial(_forwards, run)
  if c.grpo.layout == 'shared':
    tokens, logits = prompt + group * new, group * new
    pairs = prompt**2 + group * new * length
  else:
    tokens, logits, pairs = group * length, group * length, group * length**2
  groups = c.steps * c.grpo.prompts
  if run.scores:
    passes = (not run.algorithm.on_policy) + run.algorithm.reference
    work['score'] = forwards(passes * groups, 'groups', tokens, pairs, logits)
  # Activations that are not kept are recomputed in the backward pass: one more
  # forward pass through the layers or the head.
  layers = flops.passes(cfg) + (cfg.remat == 'full')
  head = flops.passes(cfg) + (c.model.logprob_chunk > 0)
  once = forwards(c.grpo.epochs * groups, 'groups', tokens, pairs, logits)
  heads = c.grpo.epochs * groups * flops.forward(cfg, 0, 0, logits)
  work['update'] = dataclasses.replace(
      once,
      flops=layers * (once.flops - heads) + head * heads,
      formula=f'{layers} x {once.formula}'
      + f', logits {head} x' * (head != layers),
  )
  return work


def seconds(
    work: Mapping[str, Work], device: devices_lib.Device, devices: int
) -> dict[str, float]:
  """Return seconds by phase: the slower of computing and reading."""
  share, found = plan_devices.UTILISATION[device.platform], {}
  for name, w in work.items():
    kind = 'decode' if name.endswith('decode') else 'update'
    computing = w.flops / (devices * device.flops * share[kind])
    reading = w.bytes_per_device / (device.bandwidth * share['bandwidth'])
    found[name] = max(computing, reading)
  return found


# ----------------------------------------------------------------- evolution


def _arm(run: memory_lib.Run, stage: progress.Stage, grading: float) -> Arm:
  """Return the cost of an arm of a stage.

  Args:
    run: The run, whose steps and batch sizes are replaced by the stage's.
    stage: One of `stages.of_evolution`.
    grading: Seconds of grading a completion.
  """
  sizes = {
      'steps': stage.steps,
      'grpo.prompts': stage.prompts,
      'grpo.group_size': stage.group_size,
  }
  run = run.with_fields(sizes)
  config = run.config
  calls = stage.steps * (1 + config.grpo.refill_rounds)
  calls = 0 if stage.replays else calls
  trained, scored = calls * stage.completions, stage.scores * stage.scored
  work = _updates(run) if stage.steps else {}
  most, longest = _most_tokens(config), config.rollout.max_tokens
  for name, sizes in {
      'sampling': (calls, stage.prompts, stage.group_size, most),
      'scores': (stage.scores, stage.problems, stage.samples, longest),
  }.items():
    kinds = zip(('prefill', 'decode'), _sampling(run, *sizes), strict=False)
    work |= {f'{name} {kind}': each for kind, each in kinds}
  return Arm(
      stage=stage,
      tokens=trained * most + scored * longest,
      work=work,
      other=_ARM + _STEP * stage.steps + grading * (trained + scored),
  )
