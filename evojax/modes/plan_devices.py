"""Peak numbers of devices, and what share of them a plan assumes."""

from collections.abc import Sequence
import dataclasses
import math
import os
from typing import Any

import ml_collections

from evojax.models import flops

# Shares of the peak that are assumed for matrix products in updates and
# prefills, and in decode steps; and of the bandwidth in decode steps that
# memory bounds. On CPU they are what benchmarks/grpo_step.py measures,
# elsewhere modest estimates.
UTILISATION = {
    'cpu': dict(update=0.65, decode=0.35, bandwidth=0.5),
    'accelerator': dict(update=0.40, decode=0.30, bandwidth=0.5),
}


@dataclasses.dataclass(frozen=True)
class Device:
  """Peak numbers of one device."""

  name: str
  flops: float  # Peak of dense bfloat16 products, FLOP/s; CPU: float32.
  bandwidth: float  # Bytes/s from its memory.
  memory_bytes: int  # Bytes that programs may use.
  platform: str = 'accelerator'  # Key of UTILISATION.


_GIB = 2**30
# Keys are beginnings of jax's device_kind; the longest that fits counts. The
# numbers of TPUs are from cloud.google.com/tpu/docs/v4, v5e, v5p, v6e (XLA
# gives programs 15.75 of a v5e's 16 GiB); those of GPUs (SXM) from NVIDIA's
# data sheets.
DEVICES = {
    'TPU v4': Device('TPU v4', 275e12, 1.228e12, 32 * _GIB),
    'TPU v5 lite': Device('TPU v5e', 197e12, 0.819e12, int(15.75 * _GIB)),
    'TPU v5': Device('TPU v5p', 459e12, 2.765e12, 95 * _GIB),
    'TPU v6 lite': Device('TPU v6e', 918e12, 1.640e12, 32 * _GIB),
    'NVIDIA A100': Device('A100 80 GB', 312e12, 2.039e12, 80 * 10**9),
    'NVIDIA H100': Device('H100', 989e12, 3.35e12, 80 * 10**9),
    'NVIDIA H200': Device('H200', 989e12, 4.8e12, 141 * 10**9),
}


def known(
    mesh: ml_collections.ConfigDict, devices: Sequence[Any]
) -> list[Device]:
  """Return the devices that are here, or all that a mesh may be made of.

  Args:
    mesh: Sizes of all axes; -1 takes the devices that are here.
    devices: Those that are here.
  """
  sizes = list(mesh.values())
  if -1 in sizes or math.prod(sizes) == len(devices):
    return [local(devices)]
  return list(DEVICES.values())


def local(devices: Sequence[Any]) -> Device:
  """Return the peak numbers of the devices that are here."""
  kind, platform = devices[0].device_kind, devices[0].platform
  if platform == 'cpu':
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    # Virtual devices share the cores and the memory of the machine.
    name = f'{os.cpu_count()} CPU cores'
    if len(devices) > 1:
      name += f', shared by {len(devices)} devices'
    each = flops.measure(devices[0]) / len(devices)
    return Device(name, each, math.inf, memory // len(devices), platform)
  known = [prefix for prefix in DEVICES if kind.startswith(prefix)]
  if not known:
    raise ValueError(
        f'device_kind={kind!r} is not in evojax.modes.plan_devices.DEVICES; add'
        f' its peak FLOP/s, bandwidth and memory. Known: {sorted(DEVICES)}'
    )
  device = DEVICES[max(known, key=len)]
  usable = (devices[0].memory_stats() or {}).get('bytes_limit')
  return dataclasses.replace(
      device, name=kind, memory_bytes=usable or device.memory_bytes
  )
