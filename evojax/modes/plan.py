"""--mode=plan: estimate the memory, tokens and time of a run before it starts.

For a small policy on the devices of this machine, the programs are compiled
ahead of time and the compiler reports their memory. For a large policy, or for
devices elsewhere (a pod that is planned on a laptop), `training.memory` bounds
it. FLOPs are those of matrix products, two per multiply-add. Every sequence
counts at its maximum length.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
import time
from typing import Any

import jax
import ml_collections

from evojax.episodes import synthetic
from evojax.ledger import budget
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
from evojax.training import settings
from evojax.training import stages

# Programs of policies with at most this many parameters are compiled.
_COMPILE_PARAMETERS = 50_000_000

# Seconds spent outside matrix products, estimated for two CPU cores: to start,
# to compile a program, and per step (evidence, the box, small batches), per arm
# (checkpoints) and per round (gate, backtest, page).
_START, _PROGRAM, _STEP, _ARM, _ROUND = 12.0, 3.0, 0.15, 0.5, 2.0


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
  tokens: int  # Maximum number of sampled tokens.
  work: Mapping[str, Work]  # By phase.
  other: float  # Seconds outside matrix products.

  def seconds(self, device: devices_lib.Device, devices: int) -> float:
    """Return the wall time on a number of devices."""
    return sum(_seconds(self.work, device, devices).values()) + self.other


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
  work: Mapping[str, Work]
  arms: Sequence[Arm]  # One for each stage of --mode=evolve.
  # The kind of device of this machine, or all kinds that the run may use.
  known: Sequence[devices_lib.Device]

  @property
  def config(self) -> ml_collections.ConfigDict:
    """The config of the run."""
    return self.run.config

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
            _seconds(self.work, device, self.devices),
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
    meshes = plan_meshes.find(config, policy, jax.devices())
    output.say('\n'.join(meshes.lines()) + '\n')
    config = plan_meshes.with_mesh(config, meshes.chosen)
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
    mesh = sharding.make_mesh(**config.mesh.to_dict(), devices=devices)
  else:
    mesh = jax.sharding.AbstractMesh(sizes, sharding.MESH_AXES)
  shards = mesh.shape['fsdp'], mesh.shape['tensor']
  policy = dataclasses.replace(
      policy, cfg=policy_lib.padded(policy.cfg, *shards)
  )
  policy_lib.check_shards(policy.path, policy.cfg, *shards)
  run = memory_lib.Run(config, policy, mesh)
  exact = here and decoder.count_params(run.cfg) <= _COMPILE_PARAMETERS
  if exact:
    with sharding.use(mesh):
      temporaries = dict(memory_lib.compiled(run))
  else:
    temporaries = dict(memory_lib.bounds(run))
  count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
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
      work=_work(run),
      arms=[
          _arm(run, stage, grading)
          for stage in stages.of_evolution(config)
          if config.evolve.rounds and stage.arms
      ],
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
    run: memory_lib.Run, calls: int, prompts: int, samples: int
) -> tuple[Work, ...]:
  """Return the work of (prefill, decode); () if servers sample.

  Args:
    run: The run.
    calls: Number of sampling calls.
    prompts: Prompts of one call.
    samples: Completions of one prompt.
  """
  if not run.samples_here:
    return ()
  r, prompt = run.config.rollout, run.config.data.max_prompt_tokens
  rows, slots, length = r.prefill_rows, r.decode_slots, prompt + r.max_tokens
  read = memory_lib.bytes_of((run.sampler_weights, run.arrays[0]))
  blocks = calls * -(-prompts // rows)
  # The prefill already samples the first token.
  steps = calls * -(-prompts * samples // slots) * (r.max_tokens - 1)
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
  sampled = _sampling(run, calls, c.grpo.prompts, c.grpo.group_size)
  scored = _sampling(run, sum(_evaluations(c)), c.eval.problems, c.eval.samples)
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


def _seconds(
    work: Mapping[str, Work], device: devices_lib.Device, devices: int
) -> dict[str, float]:
  """Return seconds by phase: the slower of computing and reading."""
  share, seconds = plan_devices.UTILISATION[device.platform], {}
  for name, w in work.items():
    kind = 'decode' if name.endswith('decode') else 'update'
    computing = w.flops / (devices * device.flops * share[kind])
    reading = w.bytes_per_device / (device.bandwidth * share['bandwidth'])
    seconds[name] = max(computing, reading)
  return seconds


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
  config = run.config.copy_and_resolve_references()
  with config.unlocked():
    config.update_from_flattened_dict(sizes)
  run = dataclasses.replace(run, config=config)
  calls = stage.steps * (1 + config.grpo.refill_rounds)
  calls = 0 if stage.replays else calls
  sampled = calls * stage.completions + stage.scores * stage.scored
  work = _updates(run) if stage.steps else {}
  for name, sizes in {
      'sampling': (calls, stage.prompts, stage.group_size),
      'scores': (stage.scores, stage.problems, stage.samples),
  }.items():
    kinds = zip(('prefill', 'decode'), _sampling(run, *sizes), strict=False)
    work |= {f'{name} {kind}': each for kind, each in kinds}
  return Arm(
      stage=stage,
      tokens=sampled * config.rollout.max_tokens,
      work=work,
      other=_ARM + _STEP * stage.steps + grading * sampled,
  )


def _evolution(
    plan_: Plan, device: devices_lib.Device, most: bool, workers: int = 1
) -> dict[str, tuple[float | int, ...]]:
  """Return (arms, tokens, seconds) by part of a run that evolves.

  Args:
    plan_: The plan.
    device: The kind of device of the mesh.
    most: True for the maximum cost, False for the expected cost.
    workers: Number of meshes, like that of the plan, that train arms at the
      same time.
  """
  rounds = plan_.config.evolve.rounds
  start = _START + _PROGRAM * sum(plan_.programs.values())
  parts = {'start, compiling': [(0, 0, start)]}
  for arm in plan_.arms:
    stage = arm.stage
    certain = stage.expected is None
    count = stage.arms if most or certain else stage.expected
    trains = bool(stage.steps and not stage.replays)
    in_turn = count  # Arms that one worker trains, one after the other.
    if stage.side_by_side:
      in_turn = max(count / workers, min(count, 1))
    seconds = in_turn * arm.seconds(device, plan_.devices)
    name = stage.name if certain else 'all rounds'
    cost = count * trains, count * arm.tokens, seconds
    parts.setdefault(name, []).append(cost)
  parts['all rounds'].append((0, 0, rounds * _ROUND))
  total = lambda rows: tuple(map(sum, zip(*rows, strict=True)))
  found = {name: total(rows) for name, rows in parts.items()}
  one = tuple(each / rounds for each in found['all rounds'])
  rows = [*found.items(), ('the run', total(found.values()))]
  rows.insert(list(found).index('all rounds') + 1, ('  one of them', one))
  return dict(rows)


# ---------------------------------------------------------------------- show

_WIDTHS = 10, 24, 30  # Columns of the table of parts.


def _bytes(size: int) -> str:
  return f'{size / 2**20:,.1f} MiB'


def show(plan: Plan, workers: int = 0) -> None:
  """Print a plan: memory, programs, tokens, work and time, a block each.

  Args:
    plan: The plan.
    workers: Number of workers of --mode=evolve that train arms in parallel.
  """
  write, config, grpo = output.say, plan.config, plan.config.grpo
  axes = ' '.join(f'{axis}={size}' for axis, size in plan.mesh.items())
  write(
      f'plan of {config.name}: {config.steps} steps of {grpo.prompts} prompts x'
      f' {grpo.group_size} completions'
  )
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
  write(f'\nprograms compiled, at most {sum(plan.programs.values())}: {listed}')

  write(f'\n{"tokens, at most":20}{"sampled":>20}{"prompt":>20}')
  for name, (sampled, prompt) in plan.tokens.items():
    write(f'  {name:18}{sampled:>20,}{prompt:>20,}')

  write('\nFLOPs of matrix products, at most, with')
  write(f'  {flops.FORMULA}')
  for name, work in plan.work.items():
    write(f'  {name:19}{work.flops:9.3g} = {work.formula}')

  if 'decode' not in plan.work:
    write('sampling is left to the servers of --config.rollout.urls')

  share = plan_devices.UTILISATION[plan.known[0].platform]
  write(
      f'\ndevice-seconds, at {share["update"]:.0%} of the peak in updates and'
      f' prefills, {share["decode"]:.0%} in decoding, and'
      f' {share["bandwidth"]:.0%} of the bandwidth where that bounds decoding'
      ' (assumed); without compiling, grading and disk'
  )
  for estimate in plan.estimates:
    device, times = estimate.device, estimate.seconds
    seconds = sum(times.values())
    write(
        f'  {device.name}, {device.flops / 1e12:.3g} TFLOP/s:'
        f' {seconds * plan.devices:,.0f} device-seconds,'
        f' {progress.duration(seconds)}'
    )
    durations = (f'{k} {progress.duration(t)}' for k, t in times.items())
    write(f'    {", ".join(durations)}')
    fit, memory = estimate.fit, _bytes(device.memory_bytes)
    write(f'    {_bytes(estimate.peak)} {fit.words} {memory}')
    for remedy in plan.remedies(device) if fit else ():
      also = plan_devices.fit(remedy.peak, device).note
      write(f'      {remedy}: {_bytes(remedy.peak)}{also}')
  if config.evolve.rounds:
    _show_evolution(plan, workers)


def _show_evolution(plan: Plan, workers: int) -> None:
  """Print the cost of a whole run of --mode=evolve, by part and device."""
  evolve = plan.config.evolve
  output.say(
      f'\n--mode=evolve, {evolve.rounds} rounds: as expected, and (at most).'
      ' Tokens with every completion at its longest, time with compiling,'
      ' grading and disk.'
  )
  largest = memory_lib.with_reference(plan.run)
  added = 'A candidate may add a reference policy (grpo.kl_coef)'
  output.say(f'{added}: {_bytes(memory_lib.peak(largest))}')
  price = budget.Budget(dollars_per_device_hour=evolve.dollars_per_device_hour)
  for device in plan.known:
    expected, most = (_evolution(plan, device, most) for most in (False, True))
    short = lambda n: f'{n:,.0f}' if n < 1e8 else f'{n / 1e6:,.0f} M'
    line = lambda name, cells: f'{name:16}' + ''.join(
        f'{cell:>{wide}}' for cell, wide in zip(cells, _WIDTHS, strict=True)
    )
    output.say(f'\n{device.name}\n{line("", ("arms", "tokens", "time"))}')
    for name, (arms, tokens, seconds) in expected.items():
      cells = (
          (f'{arms:.3g}', f'({most[name][0]:.3g})'),
          (short(tokens), f'({short(most[name][1])})'),
          (progress.duration(seconds), f'({progress.duration(most[name][2])})'),
      )
      output.say(line(name, map(' '.join, cells)))
    spent = [t['the run'][2] * plan.devices for t in (expected, most)]
    costs = f'{spent[0]:,.0f} device-seconds, at most {spent[1]:,.0f}'
    if evolve.dollars_per_device_hour:
      dollars = [f'${price.cost(each):,.2f}' for each in spent]
      costs += f'; {dollars[0]}, at most {dollars[1]}'
    else:
      costs += '\n--config.evolve.dollars_per_device_hour=PRICE shows dollars'
    output.say(costs)
    if memory_lib.peak(largest.on(device.platform)) > device.memory_bytes:
      output.say('a candidate with a reference policy is refused: size_blocked')
    if workers:
      output.say(_beside(plan, device, workers, price))


def _beside(
    plan: Plan,
    device: devices_lib.Device,
    workers: int,
    price: budget.Budget,
) -> str:
  """Return a line with the run's cost if workers have meshes of their own.

  Device-seconds count as in the run's ledger: those of the run's own mesh all
  the time, those of a worker's mesh only while the worker trains an arm.
  """
  texts = []
  for most in (False, True):
    seconds = _evolution(plan, device, most, workers)['the run'][2]
    spent = (seconds + _trained(plan, device, most)) * plan.devices
    texts.append(f'{progress.duration(seconds)}, {spent:,.0f} device-seconds')
    if price.dollars_per_device_hour:
      texts[-1] += f', ${price.cost(spent):,.2f}'
  plural = 's' * (workers > 1)
  return (
      f'{workers} worker{plural}, each on such a mesh beside that of the run:'
      f' {texts[0]}; at most {texts[1]}'
  )


def _trained(plan: Plan, device: devices_lib.Device, most: bool) -> float:
  """Return the seconds of training all arms of a run, one after the other."""
  found = []
  for arm in plan.arms:
    stage = arm.stage
    if stage.steps and not stage.replays:
      sure = most or stage.expected is None
      count = stage.arms if sure else stage.expected
      found.append(count * arm.seconds(device, plan.devices))
  return math.fsum(found)
