"""Times one GRPO step of evojax against the same arithmetic in bare JAX.

    python -m benchmarks.grpo_step [--shape=workload|v151936|0p6b] [--reps=5]

Both alternate in one process, so that other load on the machine slows both; the
ratio of each pair is compared. evojax is timed as in a run: the engine with its
scheduling on the host, batches laid out in NumPy, metrics and checks. Peak
memory is that of a process that runs only evojax.
"""

from collections.abc import Callable
import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import floor
from evojax import records
from evojax.models import decoder
from evojax.models import flops as flops_lib
from evojax.rl import advantages as advantages_lib
from evojax.rollout import engine as engine_lib
from evojax.rollout import slots
from evojax.runtime import devices
from evojax.runtime import sharding
from evojax.training import update as update_lib

SHAPES = {
    'workload': floor.Workload(),
    'v151936': dataclasses.replace(floor.Workload(), vocab=151_936),
    # Qwen3-0.6B; everything else is small enough for a laptop.
    '0p6b': floor.Workload(
        layers=28,
        width=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        mlp=3072,
        vocab=151_936,
        prompts=1,
        group=2,
        prompt_tokens=16,
        new_tokens=8,
        micro_groups=1,
    ),
}
# Largest allowed multiple of the floor's time.
TARGETS = dict(rollout=1.05, train=1.10)

_SHAPE = flags.DEFINE_enum('shape', 'workload', list(SHAPES), 'What to run.')
_REPS = flags.DEFINE_integer('reps', 5, 'Timed steps of each.', lower_bound=1)
_LAYOUT = flags.DEFINE_enum(
    'layout', 'shared', ['shared', 'packed'], "evojax's layout of the update."
)
_CHUNK = flags.DEFINE_integer(
    'chunk', 0, 'Tokens whose logits evojax keeps alive at once; 0: all.'
)
_ALONE = flags.DEFINE_bool('alone', False, 'Time evojax without the floor.')


@dataclasses.dataclass
class Timer:
  """Wall and CPU seconds by phase, one entry per step."""

  wall: dict[str, list[float]] = dataclasses.field(default_factory=dict)
  cpu: dict[str, list[float]] = dataclasses.field(default_factory=dict)

  def __call__(self, phase: str, f: Callable[[], Any]) -> Any:
    """Return f(), timed until its device work has ended."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(f())
    self.wall.setdefault(phase, []).append(time.perf_counter() - wall)
    self.cpu.setdefault(phase, []).append(time.process_time() - cpu)
    return result


class Evojax:
  """The package's own step, as in `evojax.training.loop`."""

  def __init__(self, w: floor.Workload, layout: str, chunk: int):
    self.w, self.layout = w, layout
    self.cfg = decoder.DecoderConfig(
        family='qwen3',
        vocab_size=w.vocab,
        hidden_size=w.width,
        intermediate_size=w.mlp,
        num_layers=w.layers,
        num_heads=w.heads,
        num_kv_heads=w.kv_heads,
        head_dim=w.head_dim,
        rope_theta=1e6,
        qk_norm=True,
    )
    self.algorithm = update_lib.Algorithm(
        layout=layout,
        max_tokens=w.new_tokens,
        logprob_chunk=chunk,
    )
    self.mesh = sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    self.whole = sharding.replicated(self.mesh)
    placed = update_lib.state_shardings(self.cfg, self.mesh)

    # Sampled on the host: a device program would add its compilation to the
    # peak memory, and a real run loads its weights instead.
    rng = np.random.default_rng(0)
    shapes = decoder.shapes(self.cfg)
    params = jax.tree.map(
        lambda x, s: jax.device_put(
            0.05 * rng.standard_normal(x.shape, np.float32), s
        ),
        shapes,
        placed['params'],
    )
    self.state = jax.jit(
        lambda params: update_lib.init_state(self.cfg, self.algorithm, params),
        out_shardings=placed,
        donate_argnums=0,
    )(params)
    self.engine = engine_lib.Engine(
        self.cfg,
        slots.Shapes(
            max_prompt_tokens=w.prompt_tokens,
            max_tokens=w.new_tokens,
            decode_slots=w.prompts * w.group,
            prefill_rows=w.prompts,
        ),
        eos_ids=(1,),
        decode_text=lambda tokens: '',
        refill_every=16,
        mesh=self.mesh,
    )
    self.update = update_lib.compiled(
        update_lib.update_step, self.cfg, self.algorithm, self.mesh
    )
    values = dict.fromkeys(update_lib.HYPERPARAMETERS, 0.0) | dict(
        learning_rate=1e-4,
        max_grad_norm=1.0,
        temperature=1.0,
        clip_low=0.2,
        clip_high=0.2,
    )
    self.hyper = sharding.to_device(
        {name: np.float32(value) for name, value in values.items()}, self.whole
    )
    self.version = 0

  def step(self, prompts: np.ndarray, seed: int, timer: Timer) -> None:
    """Run rollout, reward and update."""
    params = records.SamplingParams(self.w.new_tokens, ignore_eos=True)
    requests = [
        records.Request(tuple(prompt.tolist()), seed, i, sample, params)
        for i, prompt in enumerate(prompts)
        for sample in range(self.w.group)
    ]

    def rollout():
      self.engine.update_weights(self.state['params'], self.version)
      return self.engine.generate(requests)

    completions = timer('rollout', rollout)

    def train():
      rewards = np.stack([np.mean(c.tokens % 2 == 0) for c in completions])
      rewards = rewards.reshape(len(prompts), -1).astype(np.float32)
      valid = np.ones(rewards.shape, bool)
      advantages = advantages_lib.group_norm(rewards, valid)
      batch, live, _ = update_lib.make_batch(
          [p for p in prompts for _ in range(self.w.group)],
          completions,
          advantages[..., None],
          valid,
          max_prompt_tokens=self.w.prompt_tokens,
          max_tokens=self.w.new_tokens,
          micro_groups=self.w.micro_groups,
          layout=self.layout,
      )
      batch = sharding.to_device(
          batch, update_lib.batch_shardings(batch, self.mesh)
      )
      live = sharding.to_device(np.int32(live), self.whole)
      with sharding.use(self.mesh):
        self.state, metrics, rows = self.update(
            self.state, batch, live, self.hyper
        )
      metrics, _ = sharding.to_host((metrics, rows))
      update_lib.check_finite(metrics, self.version)

    timer('train', train)
    self.version += 1


class Floor:
  """The same step in bare JAX."""

  def __init__(self, w: floor.Workload):
    self.w = w
    params = jax.jit(lambda key: floor.init(w, key))(jax.random.key(0))
    self.state = params, floor.optimizer().init(params)
    self.rollout, self.update = floor.jit_rollout(w), floor.jit_update(w)

  def step(self, prompts: np.ndarray, seed: int, timer: Timer) -> None:
    """Run rollout, reward and update."""
    prompts, key = jnp.asarray(prompts), jax.random.key(seed)
    tokens, _ = timer(
        'rollout', lambda: self.rollout(self.state[0], prompts, key)
    )

    def train():
      completions = np.asarray(tokens).reshape(len(prompts), self.w.group, -1)
      rewards = np.mean(completions % 2 == 0, -1).astype(np.float32)
      advantages = rewards - rewards.mean(1, keepdims=True)
      self.state = self.update(*self.state, prompts, completions, advantages)
      return self.state

    timer('train', train)


def flops(w: floor.Workload, cfg: decoder.DecoderConfig) -> dict[str, float]:
  """Return FLOPs of a step's matrix products; prompts count once per group."""
  rows, length = w.prompts * w.group, w.prompt_tokens + w.new_tokens
  decoded = rows * (w.new_tokens - 1)
  prompt, new = w.prompts * w.prompt_tokens, rows * w.new_tokens
  forward = lambda *counts: flops_lib.forward(cfg, *counts)
  return dict(
      rollout=forward(prompt, prompt * w.prompt_tokens, w.prompts)
      + forward(decoded, decoded * length, decoded),
      train=3
      * forward(prompt + new, prompt * w.prompt_tokens + new * length, new),
  )


def compile_times() -> dict[str, float]:
  """Return a dict that will hold tracing and compile seconds by function."""
  seconds: dict[str, float] = {}

  def listen(event, duration, fun_name='', **_):
    if event.startswith('/jax/core/compile'):
      seconds[fun_name] = seconds.get(fun_name, 0.0) + duration

  jax.monitoring.register_event_duration_secs_listener(listen)
  return seconds


def measure(
    w: floor.Workload, *, reps: int, alone: bool, layout: str, chunk: int
) -> dict[str, Any]:
  """Time `reps` steps of evojax, alternating with the floor unless alone."""
  compiled = compile_times()
  devices.trim_memory_after_compiling()  # As in every run.
  sides = {'evojax': Evojax(w, layout, chunk)}
  if not alone:
    sides['floor'] = Floor(w)
  timers = {name: Timer() for name in sides}
  rng = np.random.default_rng(0)
  draw = lambda: rng.integers(
      3, w.vocab, (w.prompts, w.prompt_tokens), np.int32
  )
  for side in sides.values():  # Compiles.
    side.step(draw(), 0, Timer())
  peaks = []
  for i in range(reps):
    prompts = draw()
    for name in sorted(sides, reverse=i % 2 == 1):
      sides[name].step(prompts, i, timers[name])
    peaks.append(flops_lib.measure(jax.devices()[0]))
  needed = flops(w, sides['evojax'].cfg)
  result = dict(
      peak_gflops=float(np.median(peaks)) / 1e9,
      needed_gflop={k: v / 1e9 for k, v in needed.items()},
      compile_s={
          name: seconds for name, seconds in compiled.items() if seconds > 0.2
      },
      programs=sides['evojax'].engine.compilations(),
      peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
  )
  for name, timer in timers.items():
    for phase in needed:
      seconds = float(np.median(timer.wall[phase]))
      result[f'{name} {phase}'] = dict(
          seconds=seconds,
          cpu_seconds=float(np.median(timer.cpu[phase])),
          of_peak=needed[phase] / seconds / np.median(peaks),
      )
  if not alone:
    a, b = timers['evojax'], timers['floor']
    result['ratio'] = {
        phase: dict(
            seconds=float(np.median(np.divide(a.wall[phase], b.wall[phase]))),
            cpu_seconds=float(np.median(np.divide(a.cpu[phase], b.cpu[phase]))),
        )
        for phase in needed
    }
  return result


def report(w: floor.Workload, result: dict[str, Any]) -> None:
  """Print the measurements."""
  needed = result['needed_gflop']
  print(f'matmul peak, same run: {result["peak_gflops"]:,.0f} GFLOP/s float32')
  print(flops_lib.FORMULA)
  print(
      f'rollout {needed["rollout"]:,.0f} GFLOP (prefill and decode forward),'
      f' train {needed["train"]:,.0f} GFLOP (3 x forward)'
  )
  sampled = w.prompts * w.group * w.new_tokens
  print(f'{"":8}{"phase":10}{"s":>8}{"CPU s":>8}{"tok/s":>10}{"of peak":>9}')
  for side in ('evojax', 'floor'):
    if f'{side} rollout' not in result:
      continue
    total = 0.0
    for phase in needed:
      row = result[f'{side} {phase}']
      total += row['seconds']
      print(
          f'{side:8}{phase:10}{row["seconds"]:8.3f}{row["cpu_seconds"]:8.3f}'
          f'{sampled / row["seconds"]:10,.0f}{row["of_peak"]:9.0%}'
      )
    print(f'{side:8}{"step":10}{total:8.3f}')
  for phase, ratio in result.get('ratio', {}).items():
    print(
        f'evojax / floor, {phase}: {ratio["seconds"]:.3f} of the seconds,'
        f' {ratio["cpu_seconds"]:.3f} of the CPU seconds (median of pairs;'
        f' target {TARGETS[phase]})'
    )
  slowest = sorted(result['compile_s'].items(), key=lambda item: -item[1])
  print('compile s: ' + ', '.join(f'{name} {s:.1f}' for name, s in slowest))
  print(f'programs of the engine: {result["programs"]}')


def _alone_rss_mb() -> float:
  """Return the peak memory of a process that runs only evojax."""
  command = [
      sys.executable,
      '-m',
      'benchmarks.grpo_step',
      '--alone',
      '--reps=1',
      f'--shape={_SHAPE.value}',
      f'--layout={_LAYOUT.value}',
      f'--chunk={_CHUNK.value}',
  ]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  return json.loads(done.stdout.splitlines()[-1])['peak_rss_mb']


def main(argv: list[str]) -> None:
  del argv
  w = SHAPES[_SHAPE.value]
  # Parameters and moments of the 0.6B shape do not fit a laptop twice.
  alone = _ALONE.value or _SHAPE.value == '0p6b'
  load = os.getloadavg()[0]
  result = measure(
      w,
      reps=_REPS.value,
      alone=alone,
      layout=_LAYOUT.value,
      chunk=_CHUNK.value,
  )
  if not alone:
    result['peak_rss_mb'] = _alone_rss_mb()
  print(
      f'{_SHAPE.value}, {_LAYOUT.value} layout, chunk {_CHUNK.value},'
      f' {_REPS.value} steps; {os.cpu_count()} cores, load {load:.1f} at the'
      f' start, jax {jax.__version__}'
  )
  report(w, result)
  print(f'peak RSS, evojax alone: {result["peak_rss_mb"]:,.0f} MB')
  print(json.dumps(result))  # For tools; the last line.


if __name__ == '__main__':
  app.run(main)
