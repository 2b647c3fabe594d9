"""Compiles a run's programs for a TPU v5e 4x4 that is not there.

  TPU_PYTHON -m tests.tpu_aot.programs SHAPE

Runs in an environment with libtpu (`jax[tpu]`), started by compile_test.py;
prints one JSON line per program: its name, seconds to compile, bytes per chip
and collectives. Nothing is allocated: every argument is a shape.
"""

import dataclasses
import json
import sys
import time

import jax
from jax.experimental import topologies
import jax.numpy as jnp
import numpy as np

from evojax import records
from evojax.models import decoder
from evojax.rollout import engine
from evojax.rollout import slots
from evojax.runtime import sharding
from evojax.training import update as update_lib
from tests.tpu_aot import collectives

# A GRPO step of 64 sequences of 2,048 tokens, in two micro-batches.
P, G, LP, LC = 8, 8, 1024, 1024
MESH = dict(data=1, fsdp=4, tensor=4)
QWEN3 = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rope_theta=1e6,
    tie_embeddings=True,
    qk_norm=True,
    compute_dtype='bfloat16',
    remat='full',
    scan_layers=True,
)
SHAPES = {
    '0.6B': QWEN3,
    '4B': dataclasses.replace(
        QWEN3,
        hidden_size=2560,
        intermediate_size=9728,
        num_layers=36,
        num_heads=32,
    ),
}


def placed(shapes, shardings):
  """Shapes that say where their array would lie."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      shardings,
  )


def lower_update(cfg, mesh):
  """The train step: float32 parameters and moments, bfloat16 arithmetic."""
  algorithm = update_lib.Algorithm(max_tokens=LC, logprob_chunk=2048)
  state = jax.eval_shape(
      lambda: update_lib.init_state(
          cfg, algorithm, decoder.init(cfg, jax.random.key(0))
      )
  )
  batch, _, _ = update_lib.make_batch(
      [np.ones(LP, np.int32)] * (P * G),
      [records.Episode(np.ones(LC, np.int32), np.zeros(LC), 'stop', 0, '')]
      * (P * G),
      np.ones((P, G, 1), np.float32),
      np.ones((P, G), bool),
      max_prompt_tokens=LP,
      max_tokens=LC,
      micro_groups=MESH['fsdp'],
  )
  whole = sharding.replicated(mesh)
  scalar = lambda dtype: jax.ShapeDtypeStruct((), dtype, sharding=whole)
  update = update_lib.compiled(update_lib.update_step, cfg, algorithm, mesh)
  return update.lower(
      placed(state, update_lib.state_shardings(cfg, algorithm, mesh)),
      placed(batch, update_lib.batch_shardings(batch, mesh)),
      scalar(jnp.int32),
      {name: scalar(jnp.float32) for name in update_lib.HYPERPARAMETERS},
  )


def lower_engine(cfg, mesh):
  """Prefill of 16 prompts and decoding of 64 rows of 2,048 slots."""
  sampler = engine.Engine(
      cfg,
      slots.Shapes(
          max_prompt_tokens=LP,
          max_tokens=LC,
          decode_slots=P * G,
          prefill_rows=16,
      ),
      eos_ids=(151_645,),
      decode_text=str,
      refill_every=0,
      mesh=mesh,
  )
  params = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  params = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, cfg.compute_dtype), params
  )
  axes = decoder.logical_axes(cfg, gathered=True)
  params = placed(params, sharding.shardings(mesh, axes))
  yield from sampler.slots.lower(params)


def main():
  cfg = SHAPES[sys.argv[1]]
  topology = topologies.get_topology_desc(
      platform='tpu', topology_name='v5e:4x4'
  )
  mesh = sharding.make_mesh(**MESH, devices=topology.devices)
  with sharding.use(mesh):
    programs = dict(lower_engine(cfg, mesh), train=lower_update(cfg, mesh))
    for name, lowered in programs.items():
      start = time.time()
      compiled = lowered.compile()
      memory = compiled.memory_analysis()
      found = collectives.find(compiled.as_text())
      print(
          json.dumps(
              dict(
                  program=name,
                  seconds=time.time() - start,
                  argument=memory.argument_size_in_bytes,
                  output=memory.output_size_in_bytes,
                  temporary=memory.temp_size_in_bytes,
                  alias=memory.alias_size_in_bytes,
                  collectives=[dataclasses.asdict(c) for c in found],
              )
          ),
          flush=True,
      )


if __name__ == '__main__':
  main()
