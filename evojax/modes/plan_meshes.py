"""A mesh of so many devices that a run fits on: `--config.mesh.auto`.

Every mesh of as many devices as the config's is bounded. Of those that leave
5 % of a device's memory free, the one that splits least is taken: first as few
parts as possible along `tensor`, whose sums every layer waits for, then along
`fsdp`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import jax
import ml_collections

from evojax.models import policy as policy_lib
from evojax.modes import plan_devices
from evojax.modes import plan_memory
from evojax.modes import plan_remedies
from evojax.runtime import config_checks
from evojax.runtime import devices as devices_lib
from evojax.runtime import sharding

# Share of a device's memory to use; the bounds do not cover everything.
_SHARE = 0.95


@dataclasses.dataclass(frozen=True)
class Mesh:
  """A mesh that describes a run, and what the run needs on it."""

  sizes: Mapping[str, int]  # By axis.
  peak: int  # Bytes per device, by bounds.

  def __str__(self) -> str:
    return ' '.join(f'--config.mesh.{k}={v}' for k, v in self.sizes.items())

  def fits(self, device: devices_lib.Device) -> bool:
    """Return whether the run fits on such a device."""
    return self.peak <= _SHARE * device.memory_bytes


@dataclasses.dataclass(frozen=True)
class Meshes:
  """All meshes of so many devices that a run can have, least split first."""

  devices: int
  meshes: Sequence[Mesh]
  known: Sequence[devices_lib.Device]  # What they may be made of.

  def of(self, device: devices_lib.Device) -> Mesh | None:
    """Return the mesh to take of such devices, None if the run fits on none."""
    return next((m for m in self.meshes if m.fits(device)), None)

  @property
  def chosen(self) -> Mesh:
    """The mesh for the smallest devices that hold the run.

    Raises:
      ValueError: If no known device does.
    """
    by_memory = sorted(self.known, key=lambda device: device.memory_bytes)
    for device in by_memory:
      if (mesh := self.of(device)) is not None:
        return mesh
    best = min(self.meshes, key=lambda mesh: mesh.peak)
    raise ValueError(
        f'--config.mesh.auto: no mesh of {self.devices} devices holds the run;'
        f' {best} needs {best.peak / 2**30:.1f} GiB of each, and'
        f' {by_memory[-1].name} has'
        f' {by_memory[-1].memory_bytes / 2**30:.1f}. Plan that mesh for what'
        ' makes the run smaller, or name more devices by --config.mesh.data'
    )

  def lines(self) -> list[str]:
    """Return a line for each known device, and the flags of what is chosen."""
    found = [f'--config.mesh.auto, {self.devices} devices, 5 % of each left']
    for device in self.known:
      needs = 'no mesh fits'
      if mesh := self.of(device):
        axes = ' '.join(f'{axis}={size}' for axis, size in mesh.sizes.items())
        needs = f'{mesh.peak / 2**20:11,.1f} MiB with {axes}'
      found.append(f'  {device.name:10} {needs}')
    return [*found, f'planned: {self.chosen}']


def find(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    devices: Sequence[Any],
) -> Meshes:
  """Return the meshes of as many devices as the config's mesh has.

  Args:
    config: Of the run, which may be wrong in its mesh alone.
    policy: That of the config.
    devices: Those that are here.

  Raises:
    ValueError: If the config is wrong, or describes a run on no such mesh.
  """
  sizes = [config.mesh[axis] for axis in sharding.MESH_AXES]
  count = len(devices) if -1 in sizes else math.prod(sizes)
  if count < 1:
    raise ValueError(
        f'config.mesh={config.mesh.to_dict()} names no number of devices: pass'
        ' --config.mesh.data=16 for a mesh of 16'
    )
  slices = max(config.mesh.slice, 1)  # They are what the machines are.
  count //= slices
  mesh = jax.sharding.AbstractMesh((slices, count, 1, 1), sharding.MESH_AXES)
  run, found = plan_memory.Run(config, policy, mesh), []
  shapes = plan_remedies.meshes(count)
  for data, fsdp, tensor in sorted(shapes, key=lambda s: (s[2], s[1])):
    axes = dict(data=data, fsdp=fsdp, tensor=tensor)
    fields = {f'mesh.{axis}': size for axis, size in axes.items()}
    if other := plan_remedies.changed(run, fields):
      found.append(Mesh(axes, plan_memory.peak(other)))
  if not found:  # Why not, of the mesh that splits the batch least.
    alone = with_mesh(config, Mesh(dict(data=1, fsdp=1, tensor=count), 0))
    config_checks.validate(alone)
    policy_lib.check_shards(policy.path, policy.cfg, 1, count)
  return Meshes(slices * count, found, plan_devices.known(config.mesh, devices))


def with_mesh(
    config: ml_collections.ConfigDict, mesh: Mesh
) -> ml_collections.ConfigDict:
  """Return the config with another mesh."""
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.mesh.update(dict(mesh.sizes))
  return config
