"""Compiles the programs of a shipped config for TPUs that are not there.

  TPU_PYTHON -m tests.tpu_aot.programs CONFIG VARIANT TOPOLOGY [PATH=VALUE...]
  TPU_PYTHON -m tests.tpu_aot.programs slices

Runs in an environment with libtpu (`jax[tpu]`), started by compile_test.py;
prints one JSON line per program: its name, seconds to compile, bytes per chip
and collectives; and last what stays between programs and what --mode=plan
expects. Nothing is allocated: every argument is a shape. XLA_FLAGS must contain
--xla_dump_to=FOLDER, a new folder for what the compiler writes.
"""

import dataclasses
import importlib
import json
import os
import pathlib
import re
import shutil
import sys
import time

from jax.experimental import topologies

from evojax import domains
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from tests.tpu_aot import collectives

_QWEN3 = decoder.DecoderConfig(
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
)
# config.json of Qwen/Qwen3-0.6B, -8B and -32B, by the variants for them.
SHAPES = {
    'qwen3_0p6b': _QWEN3,
    'qwen3_8b': dataclasses.replace(
        _QWEN3,
        hidden_size=4096,
        intermediate_size=12_288,
        num_layers=36,
        num_heads=32,
        tie_embeddings=False,
    ),
    'qwen3_32b': dataclasses.replace(
        _QWEN3,
        hidden_size=5120,
        intermediate_size=25_600,
        num_layers=64,
        num_heads=64,
        tie_embeddings=False,
    ),
}


def run_on_slices() -> memory_lib.Run:
  """Return a small run on two slices of v5e 2x2."""
  config = importlib.import_module('configs.math').get_config('qwen3_0p6b')
  with config.unlocked():
    config.update_from_flattened_dict(
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
        }
    )
  shape = dataclasses.replace(
      _QWEN3,
      vocab_size=4096,
      hidden_size=256,
      intermediate_size=512,
      num_layers=4,
      num_heads=4,
      num_kv_heads=2,
  )
  return _run(config, shape, 'v5e:2x2', num_slices=2)


def shipped_run(
    name: str, variant: str, topology: str, *changes: str
) -> memory_lib.Run:
  """Return a shipped config on the mesh that it names.

  Args:
    name: Name of the config.
    variant: Its variant.
    topology: Name by which libtpu knows a slice; config.mesh.slice of them.
    *changes: Values of config fields, such as 'mesh.slice=2'.
  """
  config = importlib.import_module(f'configs.{name}').get_config(variant)
  with config.unlocked():
    config.update_from_flattened_dict(
        {k: json.loads(v) for k, _, v in (c.partition('=') for c in changes)}
    )
  slices = dict(num_slices=config.mesh.slice) if config.mesh.slice > 1 else {}
  return _run(config, SHAPES[variant], topology, **slices)


def _run(config, shape, topology, **slices):
  computed = {field: config.model[field] for field in policy_lib.COMPUTED}
  devices = topologies.get_topology_desc(
      platform='tpu', topology_name=topology, **slices
  ).devices
  return memory_lib.Run(
      config,
      policy_lib.Policy(
          pathlib.Path('unused'),
          dataclasses.replace(shape, **computed),
          # Any one: only its special tokens reach a program.
          tokenizer_lib.Tokenizer(domains.policy_path('package:math')),
      ),
      sharding.make_mesh(**config.mesh.to_dict(), devices=devices),
  )


def allocated(folder: pathlib.Path) -> int:
  """Return the bytes per chip that libtpu reserves for a program's temporaries.

  `memory_analysis` does not tell: its temp_size_in_bytes adds to them what it
  counts as fragmentation, which is a part of them. libtpu compiles, for a v5e
  (15.75 GiB), a program for which it says 19.43 GiB and reserves 14.03; if a
  program does not fit, its error adds up these bytes, arguments and results.

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
