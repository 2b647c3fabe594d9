"""Times an update of packed rows by the size of attention's blocks.

    python -m benchmarks.packed_update [--prompts=12] [--micro_groups=6]
        [--blocks=860,256,128]

It prints CPU-seconds. The policy and the limits are those of configs/swe.py.
The episodes are random tokens with the lengths of real episodes. Blocks as long
as a row compute all scores of the row and mask those of later keys. The sizes
alternate, so that other load on the machine slows all of them.
"""

import statistics
import time

from absl import app
from absl import flags
import jax
import numpy as np

from configs import swe
from evojax import records
from evojax.models import decoder
from evojax.runtime import sharding
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib

_PROMPTS = flags.DEFINE_integer('prompts', 12, 'Groups of an update.')
_GROUP = flags.DEFINE_integer('group_size', 8, 'Episodes of a group.')
_MICRO = flags.DEFINE_integer('micro_groups', 6, 'Groups of a micro-batch.')
_BLOCKS = flags.DEFINE_list('blocks', ['860', '256', '128'], 'Sizes compared.')
_REPS = flags.DEFINE_integer('reps', 3, 'Timed updates of each.', lower_bound=1)
# Tokens of an episode, its prompt included: mean, spread, least and most, of
# the first updates of configs/swe.py:smoke.
_LENGTHS = 258.0, 80.0, 80, 650
_PROMPT = 70


def _batch(config) -> tuple[update_lib.Batch, int]:
  """Return synthetic episodes as a batch, and its live micro-batches."""
  rng = np.random.default_rng(0)
  groups, size = _PROMPTS.value, _GROUP.value
  mean, spread, least, most = _LENGTHS
  lengths = rng.normal(mean, spread, groups * size).clip(least, most)
  tokens = lambda count: rng.integers(1, 1000, int(count), np.int32)
  episodes = [
      records.Episode(found, np.full(len(found), -1.0), 'stop', 0, '')
      for found in map(tokens, lengths - _PROMPT)
  ]
  batch, live, _ = update_lib.make_batch(
      [tokens(_PROMPT) for _ in episodes],
      episodes,
      rng.normal(size=(groups, size, 1)).astype(np.float32),
      np.ones((groups, size), bool),
      max_prompt_tokens=config.data.max_prompt_tokens,
      max_tokens=config.rollout.max_tokens,
      micro_groups=_MICRO.value,
      layout='packed',
  )
  return batch, live


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  config = swe.get_config()
  setup = setup_lib.prepare(config)
  cfg, algorithm = setup.policy.cfg, settings.algorithm(config)
  mesh = sharding.make_mesh(**config.mesh.to_dict())
  params = setup.base_params(mesh)
  state = update_lib.init_state(cfg, algorithm, params)
  hyper = settings.hyperparameters(config, 1)
  batch, live = _batch(config)
  print(f'rows: {batch["tokens"].shape}')
  updates, compiling = {}, {}
  for block in map(int, _BLOCKS.value):
    decoder.CAUSAL_BLOCK = block  # Read while the update is traced.
    update = jax.jit(
        lambda *arguments: update_lib.update_step(cfg, algorithm, *arguments)
    )
    begun = time.process_time()
    updates[block] = update.lower(state, batch, live, hyper).compile()
    compiling[block] = time.process_time() - begun
  seconds = {block: [] for block in updates}
  for _ in range(_REPS.value + 1):  # The first one is not counted.
    for block, update in updates.items():
      begun = time.process_time()
      jax.block_until_ready(update(state, batch, live, hyper))
      seconds[block].append(time.process_time() - begun)
  print('block  CPU-s of an update  CPU-s to compile')
  for block, found in seconds.items():
    median = statistics.median(found[1:])
    print(f'{block:5d}  {median:18.2f}  {compiling[block]:16.1f}')


if __name__ == '__main__':
  app.run(main)
