"""Accelerators of this machine, counted without opening them.

    shares = divide(4, [config.mesh], beside=False)

jax reserves most of a GPU's memory when it opens the GPU, and only one process
can hold a TPU chip. Therefore processes that run side by side get different
devices, by environment variables that CUDA and libtpu read before they open
any. GPUs are shared only if the user has limited the memory that jax reserves.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math
import os
import pathlib
import re

import jax

GPU, TPU = 'GPU', 'TPU'
# jax's names of the platforms with such devices.
_PLATFORMS = {GPU: {'cuda', 'gpu'}, TPU: {'tpu'}}
# Variables with the devices that a process may open, as a list of ids.
_VISIBLE = {GPU: 'CUDA_VISIBLE_DEVICES', TPU: 'TPU_VISIBLE_CHIPS'}
# Number of chips of a process that does not have all -> their arrangement; Ray
# and jax's own tests use the same values.
_BOUNDS = {1: '1,1,1', 2: '1,2,1'}
_GOOGLE = '0x1ae0'  # PCI vendor.
_MEMORY = 'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'
_ROOT = pathlib.Path('/')


@dataclasses.dataclass(frozen=True)
class Found:
  """The accelerators that jax should find."""

  kind: str  # GPU | TPU.
  ids: tuple[str, ...]  # As in the variables of _VISIBLE.

  @property
  def text(self) -> str:
    """'1 GPU' or '4 TPU chips'."""
    return _text(self.kind, len(self.ids))


@dataclasses.dataclass(frozen=True)
class Share:
  """Devices of one process among several."""

  name: str  # 'GPU 0,1', for messages.
  devices: int
  variables: Mapping[str, str]  # Environment variables of the process.


def _text(kind: str, count: int) -> str:
  what = {GPU: 'GPU', TPU: 'TPU chip'}[kind]
  return f'{count} {what}{"s" * (count != 1)}'


def find() -> Found | None:
  """Return the accelerators that a process may open; None: only the CPU.

  Device files are counted, so that no device is opened. JAX_PLATFORMS and the
  variables that hide devices are respected.
  """
  wanted = jax.config.jax_platforms or ''
  for kind, count in ((TPU, _count_tpus), (GPU, _count_gpus)):
    if wanted and not _PLATFORMS[kind] & set(wanted.split(',')):
      continue
    ids = tuple(map(str, range(count())))
    given = os.environ.get(_VISIBLE[kind])
    if ids and given is not None:
      listed = [name.strip() for name in given.split(',')]
      # CUDA ignores what follows an id that does not exist.
      end = next((i for i, n in enumerate(listed) if n in ('', '-1')), None)
      ids = tuple(listed[:end])
    if ids:
      return Found(kind, ids)
  return None


def _count_gpus() -> int:
  """Return the number of NVIDIA GPUs; under WSL 2, 1 for all of them."""
  # WSL 2 has one file for the GPUs of all vendors; NVIDIA's driver for Windows
  # provides this library.
  wsl = _ROOT / 'usr' / 'lib' / 'wsl' / 'lib' / 'libcuda.so.1'
  there = (_ROOT / 'dev' / 'dxg').exists() and wsl.exists()
  return len(_numbered('nvidia')) or int(there)


def _count_tpus() -> int:
  """Return the number of TPU chips, from the files of their old or new driver.

  The new driver is VFIO, whose groups may also be other vendors' devices.
  """
  groups = _ROOT / 'sys' / 'kernel' / 'iommu_groups'
  vendors = [
      {x.read_text().strip() for x in groups.glob(f'{n}/devices/*/vendor')}
      for n in _numbered('vfio/')
  ]
  return len(_numbered('accel')) or sum(_GOOGLE in each for each in vendors)


def _numbered(name: str) -> list[str]:
  """Return the numbers n of the device files /dev/<name><n>."""
  files = (_ROOT / 'dev').glob(f'{name}[0-9]*')
  numbers = (re.fullmatch(r'.*?(\d+)', file.name) for file in files)
  return [match[1] for match in numbers if match]


def driver() -> str:
  """Return the version of the loaded NVIDIA driver; '' if it is unknown."""
  file = _ROOT / 'proc' / 'driver' / 'nvidia' / 'version'
  text = file.read_text() if file.exists() else ''
  version = re.search(r'\b\d{3}\.\d+(\.\d+)*\b', text)
  return version[0] if version else ''


def divide(
    workers: int, meshes: Iterable[Mapping[str, int]], *, beside: bool
) -> list[Share]:
  """Divide the devices of this machine among processes; open none.

  Args:
    workers: Processes that run side by side.
    meshes: Axis -> size, from config.mesh, for each config that they train.
    beside: Whether this process opens devices, too.

  Returns:
    The share of this process, if `beside`, and those of the workers. Empty if
    devices need not be divided: on a CPU, without other processes, or if their
    memory limits allow them to share all devices.

  Raises:
    ValueError: If there are too few devices.
  """
  found, processes = find(), workers + beside
  if found is None or processes < 2 or (found.kind == GPU and _fit(processes)):
    return []
  fixed, step = _needed(meshes)
  each = _largest(found, len(found.ids) // processes, fixed, step)
  if not each:
    raise ValueError(_refusal(found, workers, beside, fixed or step))
  parts = [found.ids[i * each : (i + 1) * each] for i in range(processes)]
  return [_share(found, part) for part in parts]


def _needed(meshes: Iterable[Mapping[str, int]]) -> tuple[int, int]:
  """Return how many devices a process needs.

  Returns:
    (exact number, or 0 if none is fixed; what the number is a multiple of).
  """
  fixed, step = 0, 1
  for mesh in meshes:
    size = abs(math.prod(mesh.values()))
    if -1 in mesh.values():
      step = max(step, size)
    elif size > 1:  # A mesh of one device is the default, and takes any.
      fixed = max(fixed, size)
  return fixed, step


def _largest(found: Found, limit: int, fixed: int, step: int) -> int:
  """Return the devices of each process, at most `limit`; 0 if too few."""
  if found.kind == TPU:
    limit = min(limit, max(_BOUNDS))
  if fixed or limit < step:
    return fixed if fixed <= limit else 0
  # Batches can be split by powers of two.
  return step * 2 ** int(math.log2(limit // step))


def _share(found: Found, ids: tuple[str, ...]) -> Share:
  listed = ','.join(ids)
  variables = {_VISIBLE[found.kind]: listed}
  if found.kind == TPU:
    variables |= {
        'TPU_CHIPS_PER_PROCESS_BOUNDS': _BOUNDS[len(ids)],
        'TPU_PROCESS_BOUNDS': '1,1,1',
        'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    }
  return Share(f'{found.kind} {listed}', len(ids), variables)


def _memory_share() -> float:
  """Return the share of a GPU's memory that jax takes at its start."""
  if os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE', '').lower() in (
      'false',
      '0',
  ):
    return 0.0
  # 0.75 is jax's own default.
  return next((float(x) for x in map(os.environ.get, _MEMORY) if x), 0.75)


def _fit(processes: int) -> bool:
  """Return whether processes can share the memory of a GPU."""
  return _memory_share() * processes <= 1


def _refusal(found: Found, workers: int, beside: bool, needed: int) -> str:
  """Return why there are too few devices, with a remedy."""
  processes, fewer = workers + beside, len(found.ids) // needed - beside
  if found.kind == TPU and needed > max(_BOUNDS):
    fewer = 0
  remedies = [f'use --workers={fewer}'] * (fewer > 0)
  why = 'beside others, one can hold 1 or 2 whole chips'
  if found.kind == GPU:
    why = f'it takes {_memory_share():.0%} of their memory'
    remedies.append(
        f'set {_MEMORY[0]}={math.floor(100 / processes) / 100:g} so that they'
        ' share all GPUs'
    )
  this = ' (with this one)' * beside
  return (
      f'--executor=local --workers={workers}: each of {processes} processes'
      f'{this} needs {_text(found.kind, needed)} of its own, since {why}, and'
      f' this machine has {found.text}: '
      + ', or '.join([*remedies, 'use --executor=inprocess or ray'])
  )


def take(share: Share) -> None:
  """Let this process open only the devices of a share; it has opened none."""
  os.environ.update(share.variables)
