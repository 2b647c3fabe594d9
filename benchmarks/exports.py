"""Times the export of weights to the folder from which servers read them.

    python -m benchmarks.exports [--layers=8] [--folder=DIR]

A policy with the layers of Qwen3-0.6B is exported in each dtype, as after every
update. It prints the bytes per second and per CPU-second of the process, and
for comparison those of a plain write of as many bytes, which no export can
beat. The numbers are medians of --rounds, after a first round that compiles and
is not counted.

If the policy is on an accelerator, a program there casts and transposes it. The
line 'cast' shows the work that is then left for the host, apart from the copies
from the device: the tensors are cast and transposed once, and then exported.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from typing import Any
from unittest import mock

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import decoder
from evojax.models import hf
from evojax.models import layout
from evojax.rollout import weights as weights_lib

_LAYERS = flags.DEFINE_integer('layers', 8, 'Layers.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds.', lower_bound=1)
_FOLDER = flags.DEFINE_string('folder', '', 'Where to; default: temporary.')


@dataclasses.dataclass(frozen=True)
class Round:
  """The size and the times of one export or one write."""

  gigabytes: float
  seconds: float
  cpu_seconds: float  # Spent by the process.
  kernel_seconds: float  # The part of these spent in the kernel.


def make_policy(layers: int) -> tuple[decoder.DecoderConfig, decoder.Params]:
  """Return a policy of ones with some layers of Qwen3-0.6B."""
  cfg = decoder.DecoderConfig(
      family='qwen3',
      vocab_size=32_768,
      hidden_size=1024,
      intermediate_size=3072,
      num_layers=layers,
      num_heads=16,
      num_kv_heads=8,
      head_dim=128,
      qk_norm=True,
  )
  # The time depends on no value, and random ones take long.
  ones = jax.tree.map(
      lambda x: jnp.ones(x.shape, x.dtype), decoder.shapes(cfg)
  )
  return cfg, jax.block_until_ready(ones)


def exports(
    target: pathlib.Path,
    cfg: decoder.DecoderConfig,
    params: decoder.Params,
    dtype: str,
    rounds: int,
) -> list[Round]:
  """Export a policy several times, after one time that compiles.

  Args:
    target: An existing directory, in which nothing stays.
    cfg: Config of the policy.
    params: Its parameters.
    dtype: 'float32' or 'bfloat16'.
    rounds: How often it is exported and timed.
  """
  folder = weights_lib.WeightFolder(target / 'versions')
  size = _numbers(params) * jnp.dtype(dtype).itemsize

  def export(version: str) -> None:
    hf.save(
        folder.unfinished(version), cfg, params, dtype=dtype, durably=False
    )
    folder.commit(version)

  found = []
  try:
    for i in range(rounds + 1):
      folder.prepare()
      found.append(_timed(functools.partial(export, str(i)), size))
      folder.remove_old((), keep=1)
  finally:
    folder.clear()
  return found[1:]


@contextlib.contextmanager
def cast_before() -> Iterator[None]:
  """Let exports take the tensors that an accelerator's program has made.

  The program runs for the first export only.
  """
  read, made = hf._read_leaf, {}

  def read_once(leaf: layout.Leaf, *args: Any) -> list[np.ndarray]:
    name = leaf.parts[0].name
    if name not in made:
      made[name] = list(map(np.asarray, read(leaf, *args)))
    return made[name]

  with (
      mock.patch.object(hf, '_platform', lambda place: 'accelerator'),
      mock.patch.object(hf, '_read_leaf', read_once),
  ):
    yield


def _writes(
    target: pathlib.Path, params: decoder.Params, rounds: int
) -> list[Round]:
  """Write as many bytes as a policy in float32 has, after one time."""
  data, found = np.ones(_numbers(params), np.float32), []
  for i in range(rounds + 1):
    path = target / f'plain-{i}'
    found.append(_timed(lambda path=path: data.tofile(path), data.nbytes))
    if i:
      # One older file stays, as one older version does.
      (target / f'plain-{i - 1}').unlink()
  path.unlink()
  return found[1:]


def _numbers(params: decoder.Params) -> int:
  return sum(x.size for x in jax.tree.leaves(params))


def _timed(work: Callable[[], None], nbytes: int) -> Round:
  begun, before = time.perf_counter(), os.times()
  work()
  used = os.times()
  kernel = used.system - before.system
  return Round(
      nbytes / 1e9,
      time.perf_counter() - begun,
      used.user - before.user + kernel,
      kernel,
  )


def _show(name: str, rounds: list[Round]) -> None:
  """Print medians."""
  size, wall, cpu, kernel = map(
      statistics.median, zip(*map(dataclasses.astuple, rounds), strict=True)
  )
  print(
      f'{name:9} {size:.2f} GB in {wall:.2f} s and {cpu:.2f} CPU-s'
      f' ({kernel:.2f} in the kernel): {size / wall:.2f} GB/s,'
      f' {size / cpu:.2f} GB per CPU-s',
      flush=True,
  )


def main(argv: list[str]) -> None:
  del argv
  cfg, params = make_policy(_LAYERS.value)
  print(f'{_numbers(params) / 1e6:.0f} M parameters', flush=True)
  target = pathlib.Path(_FOLDER.value or tempfile.mkdtemp())
  try:
    for dtype in ('float32', 'bfloat16'):
      _show(dtype, exports(target, cfg, params, dtype, _ROUNDS.value))
    with cast_before():
      _show('cast', exports(target, cfg, params, 'bfloat16', _ROUNDS.value))
    _show('a write', _writes(target, params, _ROUNDS.value))
  finally:
    if not _FOLDER.value:
      shutil.rmtree(target, ignore_errors=True)


if __name__ == '__main__':
  app.run(main)
