"""Weights on their way to servers: how quickly a host writes a version.

    python -m benchmarks.exports [--layers=8] [--folder=DIR]

A random policy with the layers of Qwen3-0.6B is exported into a folder of
versions, as after every update, in each dtype: bytes of the version per second
and per CPU-second of the process. Medians of --rounds, the first of which, not
counted, compiles.
"""

import os
import shutil
import statistics
import tempfile
import time

from absl import app
from absl import flags
import jax

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


def _cpu_seconds() -> float:
  used = os.times()
  return used.user + used.system


def main(argv: list[str]) -> None:
  del argv
  cfg, params = _policy()
  numbers = sum(x.size for x in jax.tree.leaves(params))
  print(f'{numbers / 1e6:.0f} M parameters', flush=True)
  target = _FOLDER.value or tempfile.mkdtemp()
  folder = weights_lib.WeightFolder(target)
  try:
    for dtype, width in (('float32', 4), ('bfloat16', 2)):
      rows = []
      for i in range(_ROUNDS.value + 1):
        folder.prepare()
        begun, used = time.perf_counter(), _cpu_seconds()
        hf.save(folder.unfinished(str(i)), cfg, params, dtype=dtype)
        folder.commit(str(i))
        rows.append((time.perf_counter() - begun, _cpu_seconds() - used))
        folder.remove_old((), keep=1)
      columns = zip(*rows[1:], strict=True)
      wall, cpu = map(statistics.median, columns)
      size = numbers * width / 1e9
      print(
          f'{dtype:9} {size:.2f} GB in {wall:.2f} s, {cpu:.2f} CPU-s:'
          f' {size / wall:.2f} GB/s, {size / cpu:.2f} GB per CPU-s,'
          f' {numbers / 1e6 / cpu:.0f} M parameters per CPU-s',
          flush=True,
      )
  finally:
    folder.clear()
    if not _FOLDER.value:
      shutil.rmtree(target, ignore_errors=True)


if __name__ == '__main__':
  app.run(main)
