"""The devices of a plan, and the shares of their peak that it assumes."""

from collections.abc import Mapping, Sequence
import dataclasses
import enum
import math
import os
from typing import Any

import ml_collections

from evojax.models import flops
from evojax.runtime import devices as devices_lib

# Assumed shares of the peak FLOP/s in updates and prefills ('update') and in
# decode steps ('decode'), and of the memory bandwidth in decode steps that
# memory bounds. benchmarks/grpo_step.py measured those for CPUs. With 0.6B
# parameters, an H100 reached 0.28 in updates and half of its bandwidth in
# decode steps (BUILD_NOTES.md). The others are guesses.
UTILISATION = {
    'cpu': dict(update=0.65, decode=0.35, bandwidth=0.5),
    'gpu': dict(update=0.28, decode=0.30, bandwidth=0.5),
    'tpu': dict(update=0.40, decode=0.30, bandwidth=0.5),
}


def assumed(devices: Sequence[devices_lib.Device]) -> str:
  """Return the shares of UTILISATION for some devices as a part of a sentence.

  Args:
    devices: At least one device; each platform is named if there are several.
  """
  platforms = list(dict.fromkeys(device.platform for device in devices))
  found = []
  for platform in platforms:
    share = UTILISATION[platform]
    found.append(
        f'on {platform.upper()}s ' * (len(platforms) > 1)
        + f'at {share["update"]:.0%} of the peak in updates and prefills,'
        f' {share["decode"]:.0%} in decoding, and {share["bandwidth"]:.0%} of'
        ' the bandwidth where that bounds decoding'
    )
  return '; '.join(found)


# Share of a device's memory above which a run is called tight: bounds do not
# cover everything. Of the runs that were compiled, the largest needs 94 % by
# the compiler, and 98 % by its bound.
_ROOMY = 0.95


class Fit(enum.IntEnum):
  """Whether a run fits on a device, the best first."""

  ROOMY = 0
  TIGHT = 1
  NO = 2

  @property
  def words(self) -> str:
    """The words between the bytes of a run and those of a device."""
    return (
        'fits in',
        'fits tightly, with less than 5 % left, in',
        'DOES NOT FIT into',
    )[self]

  @property
  def note(self) -> str:
    """The words after the bytes of a run on a device; '' if it does not fit."""
    return (', fits', ', fits tightly', '')[self]


def fit(peak: int, device: devices_lib.Device) -> Fit:
  """Return whether a run fits on a device.

  Args:
    peak: Bytes per device that the run needs.
    device: The device.
  """
  if peak <= _ROOMY * device.memory_bytes:
    return Fit.ROOMY
  return Fit.TIGHT if peak <= device.memory_bytes else Fit.NO


@dataclasses.dataclass(frozen=True)
class Estimate:
  """The time of a run on one kind of device, and whether it fits."""

  device: devices_lib.Device
  seconds: Mapping[str, float]  # At most, by phase; all devices together.
  expected: Mapping[str, float]  # The same for completions of mean length.
  peak: int  # Bytes per device while the largest program runs.

  @property
  def fit(self) -> Fit:
    """How the run fits into the memory of the device."""
    return fit(self.peak, self.device)


def known(
    mesh: ml_collections.ConfigDict, devices: Sequence[Any]
) -> list[devices_lib.Device]:
  """Return the kinds of device that a mesh may consist of.

  Args:
    mesh: Sizes of all axes. If one is -1, or if they multiply to the number of
      devices here, the result is this machine's kind; else every known kind.
    devices: The devices of this machine.
  """
  sizes = list(mesh.values())
  if -1 in sizes or math.prod(sizes) == len(devices):
    return [local(devices)]
  return list(devices_lib.DEVICES.values())


def local(devices: Sequence[Any]) -> devices_lib.Device:
  """Return the peak numbers of each device of this machine.

  Raises:
    ValueError: If the kind of device is unknown.
  """
  kind, platform = devices[0].device_kind, devices[0].platform
  if platform == 'cpu':
    # Virtual devices share the cores and the memory of the machine.
    name = f'{os.cpu_count()} CPU cores'
    if len(devices) > 1:
      name += f', shared by {len(devices)} devices'
    each = flops.measure(devices[0]) / len(devices)
    return devices_lib.Device(
        name, each, math.inf, devices_lib.memory_bytes(devices), platform
    )
  device = devices_lib.peaks(kind)
  if device is None:
    raise ValueError(
        f'device_kind={kind!r} is not in evojax.runtime.devices.DEVICES; add'
        ' its peak FLOP/s, bandwidth and memory. Known:'
        f' {sorted(devices_lib.DEVICES)}'
    )
  memory = devices_lib.memory_bytes(devices)
  return dataclasses.replace(device, name=kind, memory_bytes=memory)
