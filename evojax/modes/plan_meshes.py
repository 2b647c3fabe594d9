"""The search for a mesh on which a run fits: `--config.mesh.auto`.

The number of devices is that of the config's mesh. The memory of the run is
bounded on every mesh of that many devices. Of the meshes that leave 5 % of a
device's memory free, the least split one is chosen: first the fewest parts
along `tensor`, because every layer waits for the sums over that axis, then the
fewest along `fsdp`. If no mesh leaves so much, the least split one on which the
run fits is chosen, and called tight. `plan_devices.fit` holds the limits.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import jax
import ml_collections

from evojax import config as config_lib
from evojax.models import policy as policy_lib
from evojax.modes import plan_devices
from evojax.modes import plan_remedies
from evojax.runtime import config_checks
from evojax.runtime import devices as devices_lib
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from evojax.training import meshes as meshes_lib


@dataclasses.dataclass(frozen=True)
class Mesh:
  """A mesh that is valid for a run, and the memory that the run needs on it."""

  sizes: Mapping[str, int]  # By axis.
  # Upper bounds on the bytes per device, by platform.
  peaks: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    return ' '.join(f'--config.mesh.{k}={v}' for k, v in self.sizes.items())

  def peak(self, device: devices_lib.Device) -> int:
    """Return the upper bound on the bytes of each device of this kind."""
    return self.peaks[device.platform]

  def fit(self, device: devices_lib.Device) -> plan_devices.Fit:
    """Return whether the run fits on devices of this kind."""
    return plan_devices.fit(self.peak(device), device)


@dataclasses.dataclass(frozen=True)
class Meshes:
  """All valid meshes of a number of devices for a run, least split first."""

  devices: int
  meshes: Sequence[Mesh]
  known: Sequence[devices_lib.Device]  # Kinds of device they may consist of.

  def of(self, device: devices_lib.Device) -> Mesh | None:
    """Return the mesh to use on a kind of device, None if the run fits none."""
    # The first of the best; `min` keeps the order.
    best = min(self.meshes, key=lambda mesh: mesh.fit(device))
    return None if best.fit(device) is plan_devices.Fit.NO else best

  @property
  def chosen(self) -> Mesh:
    """The mesh for the kind of device with the least memory that holds the run.

    A device on which the run is tight is taken only if it is so on all.

    Raises:
      ValueError: If the run fits on no known kind of device.
    """
    by_memory = sorted(self.known, key=lambda device: device.memory_bytes)
    found = [(mesh, d) for d in by_memory if (mesh := self.of(d)) is not None]
    if found:
      return min(found, key=lambda pair: pair[0].fit(pair[1]))[0]
    largest = by_memory[-1]
    best = min(self.meshes, key=lambda mesh: mesh.peak(largest))
    raise ValueError(
        f'--config.mesh.auto: no mesh of {self.devices} devices holds the run;'
        f' {best} needs {best.peak(largest) / 2**30:.1f} GiB of each, and'
        f' {largest.name} has {largest.memory_bytes / 2**30:.1f}. Run'
        ' --mode=plan on that mesh to see what makes the run smaller, or name'
        ' more devices by --config.mesh.data'
    )

  def lines(self) -> list[str]:
    """Return a line per known kind of device, and the flags of the choice."""
    found = [
        f'--config.mesh.auto, {self.devices} devices; tight: less than 5 % of'
        ' each left'
    ]
    for device in self.known:
      needs = 'no mesh fits'
      if mesh := self.of(device):
        axes = ' '.join(f'{axis}={size}' for axis, size in mesh.sizes.items())
        needs = f'{mesh.peak(device) / 2**20:11,.1f} MiB with {axes}'
        needs += ', tight' * (mesh.fit(device) is plan_devices.Fit.TIGHT)
      found.append(f'  {device.name:10} {needs}')
    return [*found, f'planned: {self.chosen}']


def check(config: ml_collections.ConfigDict) -> None:
  """Check all of a config but its mesh.

  Raises:
    config.ConfigError: Naming each field, its value and the remedy.
  """
  one = dict.fromkeys(sharding.MESH_AXES, 1)
  config_checks.validate(with_mesh(config, Mesh(one)))


def find(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    devices: Sequence[Any],
) -> Meshes:
  """Return the meshes with as many devices as the config's mesh.

  Args:
    config: Config of the run, valid apart from its mesh.
    policy: The policy of the config.
    devices: The devices of this machine.

  Raises:
    ValueError: If the config is wrong, or valid on no mesh of that size.
  """
  sizes = [config.mesh[axis] for axis in sharding.MESH_AXES]
  count = len(devices) if -1 in sizes else math.prod(sizes)
  if count < 1:
    raise ValueError(
        f'config.mesh={config.mesh.to_dict()} names no number of devices: pass'
        ' --config.mesh.data=16 for a mesh of 16'
    )
  # The number of slices is given by the machines, so it is not searched.
  slices = max(config.mesh.slice, 1)
  count //= slices
  mesh = jax.sharding.AbstractMesh((slices, count, 1, 1), sharding.MESH_AXES)
  run, found = memory_lib.Run(config, policy, mesh), []
  shapes = meshes_lib.all_sizes(count)
  known = plan_devices.known(config.mesh, devices)
  platforms = {device.platform for device in known}
  for data, fsdp, tensor in sorted(shapes, key=lambda s: (s[2], s[1])):
    axes = dict(data=data, fsdp=fsdp, tensor=tensor)
    fields = {f'mesh.{axis}': size for axis, size in axes.items()}
    if other := plan_remedies.changed(run, fields):
      peaks = {each: memory_lib.peak(other.on(each)) for each in platforms}
      found.append(Mesh(axes, peaks))
  if not found:  # Raise the reason, for an unsplit batch.
    alone = with_mesh(config, Mesh(dict(data=1, fsdp=1, tensor=count)))
    config_checks.validate(alone)
    policy_lib.check_shards(policy.path, policy.cfg, 1, count)
  return Meshes(slices * count, found, known)


def with_mesh(
    config: ml_collections.ConfigDict, mesh: Mesh
) -> ml_collections.ConfigDict:
  """Return the config with another mesh."""
  sizes = {f'mesh.{axis}': size for axis, size in mesh.sizes.items()}
  return config_lib.with_fields(config, sizes)
