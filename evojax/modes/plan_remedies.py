"""Changes of the config that make a run need less memory.

The memory of the run is bounded under each change, and only changes that reduce
it are returned. All meshes of the same number of devices are among them, so a
mesh that fits is found if there is one.
"""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import jax

from evojax.models import policy as policy_lib
from evojax.runtime import config_checks
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from evojax.training import meshes

# Fields to halve; they set the size of caches and activations.
_HALVED = 'rollout.decode_slots', 'rollout.prefill_rows', 'grpo.micro_groups'
_SET = (
    ('model.remat', 'full'),
    ('model.logprob_chunk', 1024),
    ('model.compute_dtype', 'bfloat16'),
    ('grpo.kl_coef', 0.0),
    ('model.lora_rank', 16),
)


@dataclasses.dataclass(frozen=True)
class Remedy:
  """A change of the config that reduces the memory of a run."""

  fields: Mapping[str, Any]  # Config path -> new value.
  peak: int  # Upper bound on the bytes per device after the change.

  def __str__(self) -> str:
    return ' '.join(f'--config.{k}={v}' for k, v in self.fields.items())


def find(run: memory_lib.Run) -> list[Remedy]:
  """Return the changes that reduce memory, the smallest peak first."""
  now, found = memory_lib.peak(run), []
  for fields in _changes(run):
    other = changed(run, fields)
    if other and (peak := memory_lib.peak(other)) < now:
      found.append(Remedy(fields, peak))
  return sorted(found, key=lambda remedy: remedy.peak)


def _changes(run: memory_lib.Run) -> Iterator[dict[str, Any]]:
  """Yield changes that may help, as config path -> new value."""
  shape = tuple(run.mesh.shape[axis] for axis in sharding.MESH_AXES)
  slices, data, fsdp, tensor = shape
  # Meshes of the same devices, and one of twice as many.
  same = meshes.all_sizes(data * fsdp * tensor)
  for sizes in [*same, (data, 2 * fsdp, tensor)]:
    sizes = (slices, *sizes)
    if sizes != shape:
      changed = zip(sharding.MESH_AXES, sizes, strict=True)
      # The number of slices is given by the machines.
      yield {f'mesh.{a}': size for a, size in changed if a != 'slice'}
  for field in _HALVED:
    group, name = field.split('.')
    yield {field: run.config[group][name] // 2}
  for field, value in _SET:
    yield {field: value}


def changed(
    run: memory_lib.Run, fields: Mapping[str, Any]
) -> memory_lib.Run | None:
  """Return the run with some fields changed; None if the result is invalid."""
  config, mesh = run.with_fields(fields).config, run.mesh
  if 'mesh.data' in fields:
    sizes = tuple(config.mesh[axis] for axis in sharding.MESH_AXES)
    mesh = jax.sharding.AbstractMesh(sizes, sharding.MESH_AXES)
  asked = config.mesh.fsdp, config.mesh.tensor
  computed = {
      name: fields[f'model.{name}']
      for name in policy_lib.COMPUTED
      if f'model.{name}' in fields
  }
  cfg = dataclasses.replace(run.cfg, **computed)
  policy = dataclasses.replace(run.policy, cfg=policy_lib.padded(cfg, *asked))
  try:
    config_checks.validate(config)
    config_checks.check_mesh(config, mesh.shape)
    policy_lib.check_shards(
        policy.path, policy.cfg, mesh.shape['fsdp'], mesh.shape['tensor']
    )
  except ValueError:
    return None
  return memory_lib.Run(config, policy, mesh, run.platform)
