"""Times the export of weights to the folder from which servers read them.

    python -m benchmarks.exports [--layers=8] [--folder=DIR]

A random policy with the layers of Qwen3-0.6B is exported in each dtype, as
after every update. It prints the bytes per second and per CPU-second of the
process, and for comparison those of a plain write of as many bytes, which no
export can beat. The numbers are medians of --rounds, after a first round that
compiles and is not counted.
"""

from collections.abc import Callable
import functools
import os
import pathlib
import shutil
import statistics
import tempfile
import time

from absl import app
from absl import flags
import jax
import numpy as np

from evojax.models import decoder
from evojax.models import hf
from evojax.rollout import weights as weights_lib

_LAYERS = flags.DEFINE_integer('layers', 8, 'Layers.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds.', lower_bound=1)
_FOLDER = flags.DEFINE_string('folder', '', 'Where to; default: temporary.')


def _policy() -> tuple[decoder.DecoderConfig, decoder.Params]:
  cfg = decoder.DecoderConfig(
      family='qwen3',
      vocab_size=32_768,
      hidden_size=1024,
      intermediate_size=3072,
      num_layers=_LAYERS.value,
      num_heads=16,
      num_kv_heads=8,
      head_dim=128,
      qk_norm=True,
  )
  init = jax.jit(lambda: decoder.init(cfg, jax.random.key(0)))
  return cfg, jax.block_until_ready(init())


def _timed(work: Callable[[], None]) -> tuple[float, float, float]:
  """Return seconds, CPU-seconds of the process and those of the kernel."""
  begun, before = time.perf_counter(), os.times()
  work()
  used = os.times()
  kernel = used.system - before.system
  return (
      time.perf_counter() - begun,
      used.user - before.user + kernel,
      kernel,
  )


def _show(name: str, size: float, rows: list[tuple[float, ...]]) -> None:
  """Print the medians of all rows but the first."""
  columns = zip(*rows[1:], strict=True)
  wall, cpu, kernel = map(statistics.median, columns)
  print(
      f'{name:9} {size:.2f} GB in {wall:.2f} s and {cpu:.2f} CPU-s'
      f' ({kernel:.2f} in the kernel): {size / wall:.2f} GB/s,'
      f' {size / cpu:.2f} GB per CPU-s',
      flush=True,
  )


def main(argv: list[str]) -> None:
  del argv
  cfg, params = _policy()
  numbers = sum(x.size for x in jax.tree.leaves(params))
  print(f'{numbers / 1e6:.0f} M parameters', flush=True)
  target = pathlib.Path(_FOLDER.value or tempfile.mkdtemp())
  folder = weights_lib.WeightFolder(target / 'versions')
  rounds = range(_ROUNDS.value + 1)
  try:
    for dtype, width in (('float32', 4), ('bfloat16', 2)):

      def export(version: str, dtype: str = dtype) -> None:
        hf.save(folder.unfinished(version), cfg, params, dtype=dtype)
        folder.commit(version)

      rows = []
      for i in rounds:
        folder.prepare()
        rows.append(_timed(functools.partial(export, str(i))))
        folder.remove_old((), keep=1)
      _show(dtype, numbers * width / 1e9, rows)
    folder.clear()
    data, rows = np.ones(numbers, np.float32), []
    for i in rounds:
      path = target / f'plain-{i}'
      rows.append(_timed(lambda path=path: data.tofile(path)))
      if i:
        # One older file stays, as one older version does.
        (target / f'plain-{i - 1}').unlink()
    _show('a write', data.nbytes / 1e9, rows)
    path.unlink()
  finally:
    folder.clear()
    if not _FOLDER.value:
      shutil.rmtree(target, ignore_errors=True)


if __name__ == '__main__':
  app.run(main)
