"""Devices: their peak performance, compilations, and memory after these."""

import collections
from collections.abc import Sequence
import contextlib
import ctypes
import dataclasses
import functools
import os
import threading
from typing import Any

import jax

from evojax.runtime import accelerators
from evojax.runtime import waits

# jax reports it at the start of a compilation as a scalar, at its end as a
# duration.
_COMPILED = '/jax/core/compile/backend_compile_duration'


@dataclasses.dataclass(frozen=True)
class Device:
  """Peak performance and memory of one device."""

  name: str
  flops: float  # Peak FLOP/s of dense bfloat16 products; CPU: float32.
  bandwidth: float  # Memory bandwidth, bytes/s.
  memory_bytes: int  # Bytes that programs may use.
  platform: str  # cpu | gpu | tpu.


# The share of a GPU's memory that jax takes, see launch/environment.sh.
_GPU_SHARE = 0.92


def _gpu(name: str, flops: float, bandwidth: float, mebibytes: int) -> Device:
  """Return a GPU with the memory that nvidia-smi shows."""
  usable = int(_GPU_SHARE * mebibytes * 2**20)
  return Device(name, flops, bandwidth, usable, 'gpu')


def _tpu(
    name: str, flops: float, bandwidth: float, gib: int | float
) -> Device:
  """Return a TPU with the memory that XLA gives to programs."""
  return Device(name, flops, bandwidth, int(gib * 2**30), 'tpu')


# Keys are prefixes of jax's device_kind; the longest match is used. The numbers
# of TPUs are from cloud.google.com/tpu/docs/v4, v5e, v5p, v6e (XLA gives
# programs 15.75 of a v5e's 16 GiB). The numbers of GPUs are from NVIDIA's data
# sheets, without sparsity, for the SXM form unless the name says otherwise.
DEVICES = {
    'TPU v4': _tpu('TPU v4', 275e12, 1.228e12, 32),
    'TPU v5 lite': _tpu('TPU v5e', 197e12, 0.819e12, 15.75),
    'TPU v5': _tpu('TPU v5p', 459e12, 2.765e12, 95),
    'TPU v6 lite': _tpu('TPU v6e', 918e12, 1.640e12, 32),
    'NVIDIA A100': _gpu('A100 80 GB', 312e12, 2.039e12, 81_920),
    'NVIDIA H100': _gpu('H100', 989e12, 3.35e12, 81_559),
    'NVIDIA H100 PCIe': _gpu('H100 PCIe', 756e12, 2.0e12, 81_559),
    'NVIDIA H100 NVL': _gpu('H100 NVL', 835e12, 3.9e12, 95_830),
    'NVIDIA H200': _gpu('H200', 989e12, 4.8e12, 143_771),
}


def peaks(kind: str) -> Device | None:
  """Return the device with a jax device_kind; None if it is unknown."""
  known = [prefix for prefix in DEVICES if kind.startswith(prefix)]
  return DEVICES[max(known, key=len)] if known else None


def memory_bytes(devices: Sequence[Any]) -> int | None:
  """Return the bytes that programs may use on each device of this machine.

  Virtual devices of a CPU share the memory of the machine.

  Args:
    devices: jax devices, all of one kind.

  Returns:
    The number of bytes; None for an unknown kind that does not report it.
  """
  if devices[0].platform == 'cpu':
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    return memory // len(devices)
  usable = (devices[0].memory_stats() or {}).get('bytes_limit')
  known = peaks(devices[0].device_kind)
  return usable or (known.memory_bytes if known else None)


def open_all() -> list[Any]:
  """Return the devices of all processes; the first call opens them.

  Raises:
    ValueError: If jax cannot open the requested devices, or would compute on
      the CPU although this machine has an accelerator and JAX_PLATFORMS does
      not ask for the CPU.
  """
  remedy = 'JAX_PLATFORMS=cpu uses the CPU'
  try:
    devices = jax.devices()
  except RuntimeError as error:
    # With several processes, the cause may be the end of another one.
    if jax.distributed.is_initialized():
      raise
    raise ValueError(f'{_one_line(error)}; {_needed()}; {remedy}') from error
  unused = accelerators.find()
  if unused is None or devices[0].platform != 'cpu':
    return devices
  try:
    jax.devices({accelerators.GPU: 'cuda'}.get(unused.kind, 'tpu'))
    why = ''
  except RuntimeError as error:
    why = f' ({_one_line(error)})'
  raise ValueError(
      f'this machine has {unused.text}, and jax finds only the CPU{why}:'
      f' {_needed()}; {remedy} all the same'
  )


def _one_line(error: Exception) -> str:
  return ' '.join(str(error).split()).rstrip('.')


def _needed() -> str:
  """Return what jax needs to open the accelerators of this machine."""
  found = accelerators.find()
  if found is None:
    return 'see that it has the devices that JAX_PLATFORMS names'
  if found.kind == accelerators.TPU:
    return (
        'see that no other process holds the TPU, and start with `bash'
        ' launch/local.sh`, which installs libtpu'
    )
  loaded = accelerators.driver()
  return (
      'see that `nvidia-smi` works and shows driver 525 or newer'
      f'{f" (loaded is {loaded})" if loaded else ""}, and start with `bash'
      ' launch/local.sh`, which installs jax for it'
  )


def describe() -> str:
  """Return one line about devices, host cores and jax's version."""
  kinds = collections.Counter(
      f'{device.platform} ({device.device_kind})' for device in open_all()
  )
  listed = ', '.join(f'{count} x {name}' for name, count in kinds.items())
  return (
      f'devices: {listed}; {os.cpu_count()} host cores, jax {jax.__version__}'
  )


@functools.cache  # Registers one listener per process.
def trim_memory_after_compiling() -> None:
  """Return the compiler's freed memory to the system after each compilation.

  glibc keeps memory that XLA has freed: a few hundred megabytes after the train
  step was compiled. Without glibc this does nothing.
  """
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
  if trim is None:
    return

  def listen(event: str, duration: float, **_) -> None:
    # Small programs leave little memory; trimming after each would cost more.
    if event == _COMPILED and duration > 0.1:
      trim(0)

  jax.monitoring.register_event_duration_secs_listener(listen)


@functools.cache  # Registers its listeners once per process.
def report_compilations() -> None:
  """Report every compilation of a program to `waits`, until it ends."""
  of_thread = threading.local()

  def begin(event: str, value: float | int, **_) -> None:
    del value
    if event == _COMPILED:
      of_thread.blocks = getattr(of_thread, 'blocks', [])
      block = contextlib.ExitStack()
      block.enter_context(waits.at(waits.COMPILATION))
      of_thread.blocks.append(block)

  def end(event: str, duration: float, **_) -> None:
    del duration
    # A compilation may have begun before this function was called.
    if event == _COMPILED and getattr(of_thread, 'blocks', None):
      of_thread.blocks.pop().close()

  jax.monitoring.register_scalar_listener(begin)
  jax.monitoring.register_event_duration_secs_listener(end)
