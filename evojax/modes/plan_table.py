"""The output of --mode=plan: a block for each part of a plan, and a table.

The table is the cost of a whole run of --mode=evolve, as expected and at most.
"""

from collections.abc import Iterator
import math

import ml_collections

from evojax.ledger import budget
from evojax.models import flops
from evojax.modes import plan as plan_lib
from evojax.modes import plan_devices
from evojax.runtime import devices as devices_lib
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import progress
from evojax.training import memory as memory_lib

# Seconds outside matrix products, estimated for two CPU cores: to start, to
# compile a program, and per round (gate, backtest, page).
_START, _PROGRAM, _ROUND = 12.0, 3.0, 2.0


def evolution(
    plan: plan_lib.Plan,
    device: devices_lib.Device,
    most: bool,
    workers: int = 1,
) -> dict[str, tuple[float | int, ...]]:
  """Return (arms, tokens, seconds) by part of a run that evolves.

  Args:
    plan: The plan.
    device: The kind of device of the mesh.
    most: True for the maximum cost, False for the expected cost.
    workers: Number of meshes, like that of the plan, that train arms at the
      same time.
  """
  rounds = plan.config.evolve.rounds
  start = _START + _PROGRAM * sum(plan.programs.values())
  parts = {'start, compiling': [(0, 0, start)]}
  for arm, count in _counted(plan, most):
    stage = arm.stage
    in_turn = count  # Arms that one worker trains, one after the other.
    if stage.side_by_side and count == stage.arms:
      # The next stage waits for all arms: 3 workers need two turns for 4 arms.
      in_turn = math.ceil(count / workers)
    elif stage.side_by_side:  # The expected number of arms.
      in_turn = max(count / workers, min(count, 1))
    seconds = in_turn * arm.seconds(device, plan.devices)
    name = stage.name if stage.expected is None else 'all rounds'
    cost = count * _trains(stage), count * arm.tokens, seconds
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


def run(
    config: ml_collections.ConfigDict, *, mesh_auto: bool, workers: int
) -> None:
  """Plan a run and print the plan; for the arguments, see `plan` and `show`."""
  show(plan_lib.plan(config, mesh_auto=mesh_auto), workers=workers)


def show(plan: plan_lib.Plan, workers: int = 0) -> None:
  """Print a plan: memory, programs, tokens, work and time, a block each.

  Args:
    plan: The plan.
    workers: Number of workers of --mode=evolve that train arms in parallel.
  """
  write, config, grpo = output.say, plan.config, plan.config.grpo
  axes = ' '.join(f'{axis}={size}' for axis, size in plan.mesh.items())
  other = ' with --mode=train; --mode=evolve is planned in the last table'
  write(
      f'plan of {config.name}: {config.steps} steps of {grpo.prompts} prompts x'
      f' {grpo.group_size} completions{other if config.evolve.rounds else ""}'
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
  write(
      '  (D width, N heads, K key-value heads, H head width, F MLP width, V'
      ' vocabulary; pairs of a query and a key)'
  )
  for name, work in plan.most.work.items():
    write(f'  {name:19}{work.flops:9.3g} = {work.formula}')

  if 'decode' not in plan.most.work:
    write('sampling is left to the servers of --config.rollout.urls')

  write(
      f'\ndevice-seconds, {plan_devices.assumed(plan.known)} (assumed); without'
      ' compiling, grading and disk'
  )
  for estimate in plan.estimates:
    device, times = estimate.device, estimate.seconds
    seconds = sum(times.values())
    write(
        f'  {device.name}, {device.flops / 1e12:.3g} TFLOP/s:'
        f' {seconds * plan.devices:,.0f} device-seconds,'
        f' {numerals.duration(seconds)}'
    )
    durations = (f'{k} {numerals.duration(t)}' for k, t in times.items())
    write(f'    {", ".join(durations)}')
    if plan.mean_tokens:
      expected = numerals.duration(sum(estimate.expected.values()))
      write(
          f'    {expected} with completions of {plan.mean_tokens} tokens, as'
          ' expected'
      )
    fit, memory = estimate.fit, _bytes(device.memory_bytes)
    write(f'    {_bytes(estimate.peak)} {fit.words} {memory}')
    for remedy in plan.remedies(device) if fit else ():
      also = plan_devices.fit(remedy.peak, device).note
      write(f'      {remedy}: {_bytes(remedy.peak)}{also}')
  if config.evolve.rounds:
    _show_evolution(plan, workers)


def _show_evolution(plan: plan_lib.Plan, workers: int) -> None:
  """Print the cost of a whole run of --mode=evolve, by part and device."""
  evolve = plan.config.evolve
  output.say(
      f'\n--mode=evolve, {evolve.rounds} rounds: as expected, and (at most,'
      ' with every completion at its longest). Time with compiling, grading'
      ' and disk.'
  )
  if not plan.mean_tokens:
    output.say(
        f'--config.plan.mean_tokens={plan.config.plan.mean_tokens}: all'
        ' completions count as the longest; a number below rollout.max_tokens'
        ' expects shorter ones'
    )
  largest = memory_lib.with_reference(plan.run)
  added = 'A candidate may add a reference policy (grpo.kl_coef)'
  output.say(f'{added}: {_bytes(memory_lib.peak(largest))}')
  price = budget.Budget(dollars_per_device_hour=evolve.dollars_per_device_hour)
  for device in plan.known:
    expected, most = (evolution(plan, device, most) for most in (False, True))
    short = lambda n: f'{n:,.0f}' if n < 1e8 else f'{n / 1e6:,.0f} M'
    line = lambda name, cells: f'{name:16}' + ''.join(
        f'{cell:>{wide}}' for cell, wide in zip(cells, _WIDTHS, strict=True)
    )
    output.say(f'\n{device.name}\n{line("", ("arms", "tokens", "time"))}')
    for name, (arms, tokens, seconds) in expected.items():
      cells = (
          (f'{arms:.3g}', f'({most[name][0]:.3g})'),
          (short(tokens), f'({short(most[name][1])})'),
          (numerals.duration(seconds), f'({numerals.duration(most[name][2])})'),
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
      output.say(beside(plan, device, workers, price))


def beside(
    plan: plan_lib.Plan,
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
    seconds = evolution(plan, device, most, workers)['the run'][2]
    spent = (seconds + _trained(plan, device, most)) * plan.devices
    texts.append(f'{numerals.duration(seconds)}, {spent:,.0f} device-seconds')
    if price.dollars_per_device_hour:
      texts[-1] += f', ${price.cost(spent):,.2f}'
  plural = 's' * (workers > 1)
  return (
      f'{workers} worker{plural}, each on such a mesh beside that of the run:'
      f' {texts[0]}; at most {texts[1]}'
  )


def _trained(
    plan: plan_lib.Plan, device: devices_lib.Device, most: bool
) -> float:
  """Return the seconds of training all arms of a run, one after the other."""
  return math.fsum(
      count * arm.seconds(device, plan.devices)
      for arm, count in _counted(plan, most)
      if _trains(arm.stage)
  )


def _counted(
    plan: plan_lib.Plan, most: bool
) -> Iterator[tuple[plan_lib.Arm, float]]:
  """Yield the arms of each stage, and their number, at most or as expected."""
  for arm in (plan.most if most else plan.expected).arms:
    stage = arm.stage
    sure = most or stage.expected is None
    yield arm, stage.arms if sure else stage.expected


def _trains(stage: progress.Stage) -> bool:
  """Return whether the arms of a stage train; others only sample."""
  return bool(stage.steps and not stage.replays)
