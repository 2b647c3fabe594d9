"""Times decode steps and an update of a Qwen3 shape on one accelerator.

    python -m benchmarks.device_step [--size=0.6B]

Weights are random; dtypes, rows, lengths and micro-batches are those of
configs/gsm8k.py. It prints the milliseconds of a step of decoding, in which
every row reads the slots before --slots, and the seconds of an update of
--groups groups of full length, each the median of --reps. On a CPU,
benchmarks.grpo_step compares with bare JAX.
"""

import functools
import statistics
import time

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import random_qwen3
from configs import gsm8k
from evojax import config as config_lib
from evojax import records
from evojax.models import cache as cache_lib
from evojax.models import decoder
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from evojax.training import update as update_lib

_VARIANT = flags.DEFINE_enum(
    'variant', 'default', gsm8k.VARIANTS, 'Variant of configs/gsm8k.py.'
)
_SLOTS = flags.DEFINE_list(
    'slots', ['32', '640', '1400'], 'Where rows decode; 0 to the last slot.'
)
_GROUPS = flags.DEFINE_integer('groups', 4, 'Groups of an update.')
_STEPS = flags.DEFINE_integer('steps', 32, 'Decode steps per repetition.')
_REPS = flags.DEFINE_integer('reps', 4, 'Timed repetitions.', lower_bound=1)


def _make_run() -> memory_lib.Run:
  config = config_lib.with_fields(
      gsm8k.get_config(_VARIANT.value), {'grpo.prompts': _GROUPS.value}
  )
  return memory_lib.Run(
      config,
      random_qwen3.without_weights(
          random_qwen3.SIZES[flags.FLAGS.size], config
      ),
      sharding.make_mesh(**config.mesh.to_dict()),
  )


def _random(shapes, key):
  """Return parameters: ones for vectors, small random matrices."""

  def draw(x):
    if x.ndim == 1:
      return jnp.ones(x.shape, x.dtype)
    return 0.02 * jax.random.normal(key, x.shape, x.dtype)

  return jax.tree.map(lambda x: jax.device_put(draw(x), x.sharding), shapes)


def _median(call) -> float:
  """Return the median seconds of a call, without the first, which warms up."""
  seconds = []
  for _ in range(1 + _REPS.value):
    start = time.perf_counter()
    jax.block_until_ready(call())
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds[1:])


def time_decode(run: memory_lib.Run) -> None:
  """Print the milliseconds of a step, with all decode slots at one position."""
  cfg, c, steps = run.cfg, run.config, _STEPS.value
  rows = c.rollout.decode_slots
  length = c.data.max_prompt_tokens + c.rollout.max_tokens
  weights = _random(run.used_weights, jax.random.key(0))

  @functools.partial(jax.jit, donate_argnums=1)
  def decode(weights, cache, tokens, start):
    def body(i, carry):
      tokens, cache = carry
      hidden, cache = decoder.decode(
          cfg, weights, tokens, start + i, cache, start.max() + i + 1
      )
      return jnp.argmax(decoder.logits(cfg, weights, hidden), -1), cache

    return jax.lax.fori_loop(0, steps, body, (tokens, cache))

  cache = cache_lib.empty(cfg, rows, length)
  for slot in map(int, _SLOTS.value):

    def call(slot=slot):
      nonlocal cache
      start = jnp.full(rows, min(slot, length - steps))
      tokens, cache = decode(weights, cache, jnp.zeros(rows, int), start)
      return tokens

    milliseconds = 1e3 * _median(call) / steps
    print(f'decode, {rows} rows at {slot}: {milliseconds:.2f} ms')


def time_update(run: memory_lib.Run) -> None:
  """Print the seconds of an update of groups of the longest completions."""
  c, rng = run.config, np.random.default_rng(0)
  size = c.grpo.group_size
  draw = lambda n: rng.integers(0, run.cfg.vocab_size, n).astype(np.int32)
  # The sampler was nearly uniform.
  uniform = np.full(c.rollout.max_tokens, -np.log(run.cfg.vocab_size))
  prompts = [p for _ in range(_GROUPS.value) for p in [draw(150)] * size]
  batch, live, _ = update_lib.make_batch(
      [p[: c.data.max_prompt_tokens] for p in prompts],
      [
          records.Episode(draw(len(uniform)), uniform, 'length', 0, '')
          for _ in prompts
      ],
      rng.standard_normal((_GROUPS.value, size, 1)).astype(np.float32),
      np.ones((_GROUPS.value, size), bool),
      max_prompt_tokens=c.data.max_prompt_tokens,
      max_tokens=c.rollout.max_tokens,
      micro_groups=c.grpo.micro_groups,
      layout=c.grpo.layout,
      shards=sharding.batch_shards(run.mesh),
  )
  batch = sharding.to_device(batch, update_lib.batch_shardings(batch, run.mesh))
  state = update_lib.init_state(
      run.cfg, run.algorithm, _random(run.params, jax.random.key(0))
  )
  update = update_lib.compiled(
      update_lib.update_step, run.cfg, run.algorithm, run.mesh
  )
  values = dict.fromkeys(update_lib.HYPERPARAMETERS, jnp.float32(1))
  values['learning_rate'] = jnp.float32(1e-6)

  def call():
    nonlocal state
    state, metrics, _ = update(state, batch, jnp.int32(live), values)
    return metrics

  print(f'update of {len(prompts)} completions: {_median(call):.3f} s')


def main(_):
  device = jax.devices()[0]
  print(f'{device.device_kind}, jax {jax.__version__}, {flags.FLAGS.size}')
  run = _make_run()
  with sharding.use(run.mesh):
    time_decode(run)
    time_update(run)


if __name__ == '__main__':
  flags.FLAGS.set_default('size', '0.6B')
  app.run(main)
