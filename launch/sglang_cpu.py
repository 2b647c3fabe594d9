"""Serve a policy with mainline SGLang on a CPU, for experiments.

launch/sglang_cpu.sh runs this script in its own environment. It takes the flags
of sglang.launch_server. On PyPI, SGLang 0.5.23 is for GPUs. Here it runs
unchanged except for parts that are missing on a CPU:

  sgl_kernel   SGLang always imports it. A module without content replaces it.
               With the flags below SGLang calls only its hash for seeds, which
               is defined here; a call of anything else raises.
  torchvision  On import it registers two operators of its binary library with
               torch. This fails if the library does not match the version of
               torch, so the operators are declared here first.
  seeds        SGLang uses the seeds of requests only in deterministic mode,
               which replaces torch's kernels with GPU kernels. Here torch's
               kernels are kept.

The changes are made inside SGLang's processes; no file of a package is changed.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import types

import torch

_KERNELS = 'sgl_kernel'
_ATTENTION = 'torch_native'
_FLAGS = (
    '--device=cpu',
    f'--attention-backend={_ATTENTION}',
    '--sampling-backend=pytorch',
    '--grammar-backend=none',
    '--enable-deterministic-inference',
    '--disable-overlap-schedule',
    '--disable-radix-cache',
    '--mem-fraction-static=0.1',  # The server uses all memory it may have.
)
_UINT32 = 0xFFFFFFFF


class _Absent:
  """A placeholder for an attribute of a missing package; a call raises."""

  def __init__(self, name: str):
    self._name = name

  def __getattr__(self, name: str) -> '_Absent':
    if name.startswith('__'):
      raise AttributeError(f'{self._name} has no {name}')
    return _Absent(f'{self._name}.{name}')

  def __call__(self, *args, **kwargs):
    del args, kwargs
    raise NotImplementedError(
        f'{self._name} is not there on a CPU: serve a model without'
        ' quantization and experts, and leave the flags of backends'
    )


class _AbsentModule(types.ModuleType):
  """A module of a missing package."""

  def __getattr__(self, name: str) -> _Absent:
    return getattr(_Absent(self.__name__), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """An importer of sgl_kernel and its submodules as placeholders."""

  def find_spec(self, fullname, path=None, target=None):
    del path, target
    if fullname.partition('.')[0] != _KERNELS:
      return None
    return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

  def create_module(self, spec):
    return _AbsentModule(spec.name)

  def exec_module(self, module):
    del module


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
  """Return MurmurHash3 of seed, position and column, as SGLang's GPU kernel.

  See sglang/kernels/ops/sampling/murmur_hash.py.

  Args:
    seed: [n], 64 bits.
    positions: [n], 32 bits.
    col_indices: [m], 32 bits.

  Returns:
    [n, m], uint32.
  """
  # Products of int64 may overflow, but their low 32 bits are correct.
  rotate = lambda x, r: (x << r | x >> 32 - r) & _UINT32
  seed, positions = seed.to(torch.int64)[:, None], positions.long()[:, None]
  h = torch.zeros_like(seed)
  for k in (seed, seed >> 32, positions, col_indices.long()[None]):
    k = rotate((k & _UINT32) * 0xCC9E2D51 & _UINT32, 15)
    h = rotate(h ^ k * 0x1B873593 & _UINT32, 13) * 5 + 0xE6546B64 & _UINT32
  h = h ^ 16  # Length of the hashed input in bytes.
  h = (h ^ h >> 16) * 0x85EBCA6B & _UINT32
  h = (h ^ h >> 13) * 0xC2B2AE35 & _UINT32
  return (h ^ h >> 16).to(torch.uint32)


def _declare(library: str, **operators: str) -> torch.library.Library:
  """Declare operators by signature; they exist as long as the result does."""
  fragment = torch.library.Library(library, 'FRAGMENT')
  for name, signature in operators.items():
    fragment.define(name + signature)
  return fragment


def _import_torchvision() -> torch.library.Library | None:
  """Import torchvision even if its library does not fit this torch."""
  try:
    importlib.import_module('torchvision')
    return None
  except RuntimeError:
    signature = '(Tensor a, Tensor b, float c) -> Tensor'
    library = _declare('torchvision', nms=signature, qnms=signature)
    importlib.import_module('torchvision')
    return library


def _heed_seeds() -> torch.library.Library:
  """Make deterministic inference work without GPU kernels."""
  library = _declare(
      _KERNELS, murmur_hash32_cpu='(Tensor seed, Tensor p, Tensor c) -> Tensor'
  )
  library.impl('murmur_hash32_cpu', murmur_hash32, 'CPU')
  ops = importlib.import_module('sglang.srt.batch_invariant_ops')
  ops.enable_batch_invariant_mode = lambda: None
  choices = importlib.import_module('sglang.srt.arg_groups.choices')
  choices.add_deterministic_attention_backend_choices([_ATTENTION])
  return library


# The processes that SGLang starts also import this file, before anything else.
os.environ |= {
    'SGLANG_USE_CPU_ENGINE': '1',
    # Compiling the sampler takes half a minute and needs a C++ compiler.
    'TORCHDYNAMO_DISABLE': '1',
}
sys.meta_path.insert(0, _Finder())
_libraries = (_import_torchvision(), _heed_seeds())

if __name__ == '__main__':
  sys.argv[1:1] = _FLAGS
  runpy.run_module('sglang.launch_server', run_name='__main__')
