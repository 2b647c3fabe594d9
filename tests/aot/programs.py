"""Compiles the programs of a shipped config for devices that are not there.

  PYTHON -m tests.aot.programs CONFIG:VARIANT SHAPE TOPOLOGY [PATH=VALUE...]
  PYTHON -m tests.aot.programs slices

PYTHON is that of an environment with libtpu (`jax[tpu]`) for TPUs, or with
jax's plugin for CUDA. SHAPE is that of the policy, one of SHAPES. Prints one
JSON line per program: its name, seconds to compile, bytes per device and
collectives; and last what stays between programs and what --mode=plan expects.
Nothing is allocated: every argument is a shape. XLA_FLAGS must contain
--xla_dump_to=FOLDER, a new folder for what the compiler writes.
"""

from collections.abc import Mapping
import dataclasses
import importlib
import json
import os
import pathlib
import re
import shutil
import sys
import time
from typing import Any

from jax.experimental import topologies
import ml_collections

from benchmarks import random_qwen3
from evojax import config as config_lib
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from tests.aot import collectives

# The shapes of the policies that the variants of configs are for.
SHAPES = {
    f'qwen3_{size.lower().replace(".", "p")}': shape
    for size, shape in random_qwen3.SIZES.items()
}
# Files with what the compiler asks about a GPU; here there is none to ask.
GPUS = {'h100': pathlib.Path(__file__).with_name('h100.txtpb')}


def run_on_slices() -> memory_lib.Run:
  """Return a small run on two slices of v5e 2x2."""
  config = shipped_config(
      'math:qwen3_0p6b',
      {
          'mesh.slice': 2,
          'mesh.fsdp': 2,
          'mesh.tensor': 2,
          'model.logprob_chunk': 256,
          'data.max_prompt_tokens': 128,
          'grpo.prompts': 8,
          'rollout.max_tokens': 256,
          'rollout.decode_slots': 16,
          'rollout.prefill_rows': 8,
      },
  )
  shape = dataclasses.replace(
      SHAPES['qwen3_0p6b'],
      vocab_size=4096,
      hidden_size=256,
      intermediate_size=512,
      num_layers=4,
      num_heads=4,
      num_kv_heads=2,
  )
  return _run(config, shape, 'v5e:2x2', num_slices=2)


def shipped_config(
    name: str, changes: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Return a shipped config with other values of some fields.

  Args:
    name: Name and variant of the config, 'math:qwen3_8b'.
    changes: Path of a field -> its value.
  """
  name, variant = name.split(':')
  config = importlib.import_module(f'configs.{name}').get_config(variant)
  return config_lib.with_fields(config, changes)


def shipped_run(
    name: str, shape: str, topology: str, *changes: str
) -> memory_lib.Run:
  """Return a shipped config on the mesh that it names.

  Args:
    name: Name and variant of the config.
    shape: The policy's, one of SHAPES.
    topology: Name by which libtpu knows a slice, of which there are
      config.mesh.slice; or 'h100:8' for eight GPUs of one machine.
    *changes: Values of config fields, such as 'mesh.slice=2'.
  """
  pairs = (change.partition('=') for change in changes)
  config = shipped_config(name, {k: json.loads(v) for k, _, v in pairs})
  slices = dict(num_slices=config.mesh.slice) if config.mesh.slice > 1 else {}
  return _run(config, SHAPES[shape], topology, **slices)


def _run(config, shape, topology, **slices):
  return memory_lib.Run(
      config,
      random_qwen3.without_weights(shape, config),
      sharding.make_mesh(
          **config.mesh.to_dict(), devices=_devices(topology, **slices)
      ),
  )


def _devices(topology, **slices):
  """Return the devices of a topology, see `shipped_run`."""
  kind, _, count = topology.partition(':')
  if kind in GPUS:
    return topologies.get_topology_desc(
        platform='cuda',
        topology_name='',
        target_config=GPUS[kind].read_text(),
        topology=f'1x1x{count}',  # Partitions, machines in one, GPUs of one.
    ).devices
  return topologies.get_topology_desc(
      platform='tpu', topology_name=topology, **slices
  ).devices


def allocated(folder: pathlib.Path) -> int:
  """Return the bytes per device reserved for a program's temporaries.

  The temp_size_in_bytes of libtpu's `memory_analysis` is another number: it
  adds what it counts as fragmentation, which is a part of them. libtpu
  compiles, for a v5e (15.75 GiB), a program for which it says 19.43 GiB and
  reserves 14.03; if a program does not fit, its error adds up these bytes,
  arguments and results. For GPUs both are the same.

  Args:
    folder: What the compiler has written of this program alone.
  """
  (path,) = folder.glob('*after_optimizations-buffer-assignment.txt')
  # With a color they are in another memory than HBM.
  sizes = re.findall(
      r'^allocation \d+: size (\d+), preallocated-temp:', path.read_text(), re.M
  )
  return sum(map(int, sizes))


def main():
  dumps = pathlib.Path(
      re.search(r'--xla_dump_to=(\S+)', os.environ['XLA_FLAGS'])[1]
  )
  slices = sys.argv[1:] == ['slices']
  run = run_on_slices() if slices else shipped_run(*sys.argv[1:])
  with sharding.use(run.mesh):
    for name, lowered in memory_lib.lower(run):
      shutil.rmtree(dumps, ignore_errors=True)
      start = time.time()
      compiled = lowered.compile()
      memory = compiled.memory_analysis()
      results = memory_lib.fresh_bytes(name, memory) - memory.temp_size_in_bytes
      found = collectives.find(compiled.as_text())
      line = dict(
          program=name,
          seconds=time.time() - start,
          argument=memory.argument_size_in_bytes,
          temporary=allocated(dumps) + results,
          collectives=[dataclasses.asdict(c) for c in found],
      )
      print(json.dumps(line), flush=True)
  resident, bounds = memory_lib.resident(run), memory_lib.bounds(run)
  last = dict(resident=resident, bounds=dict(bounds))
  print(json.dumps(last | dict(gradients=run.gradient_bytes)))


if __name__ == '__main__':
  main()
