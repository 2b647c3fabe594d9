"""One of two processes that share no directory; see copies_test.py.

    python copies_worker.py PROCESS PORT

In objects://bucket/run the processes save three steps and export a policy. They
restore the last step, an older one after damage, and one that a process alone
has saved at objects://bucket/alone.
"""

import asyncio
import os
import pathlib
import sys

from absl import logging
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from orbax.checkpoint._src.path import atomicity

from evojax.models import hf
from evojax.runtime import checkpoint
from evojax.runtime import messages
from evojax.runtime import mirror
from evojax.runtime import orbax_noise
from evojax.runtime import sharding
from evojax.runtime import storage
from evojax.runtime import workdir
from tests import objects  # noqa: F401, which registers the scheme.
from tests.multi_device import sharded_test

RUN, ALONE = 'objects://bucket/run', 'objects://bucket/alone'


def init(seed):
  key = jax.random.key(seed)
  return dict(
      params=dict(
          w=jax.random.normal(key, (16, 8)),
          half=jax.random.normal(key, (8, 3)).astype(jnp.bfloat16),
          alike=jax.random.normal(key, (7,)),
      ),
      zeros=jnp.zeros((4, 4)),
      key=key,
      keys=jax.random.split(key, 8),
      count=jnp.asarray(seed, jnp.int32),
  )


def state(step, shardings=None):
  """The state of a step; None: its shapes."""
  if step is None:
    shapes = jax.eval_shape(lambda: init(0))
    return sharding.placed(shapes, shardings) | {'cursor': np.int64(0)}
  made = jax.jit(lambda: init(step), out_shardings=shardings)()
  return made | {'cursor': np.int64(step)}


def data(x):
  is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
  return jax.random.key_data(x) if is_key else x


def assert_equal(got, want):
  """Equal bit for bit, in the shards of this process."""

  def check(a, b):
    assert a.dtype == b.dtype
    if isinstance(a, np.ndarray):
      np.testing.assert_array_equal(a, b)
      return
    assert a.sharding == b.sharding, (a.sharding, b.sharding)
    a, b = data(a), data(b)
    for x, y in zip(a.addressable_shards, b.addressable_shards, strict=True):
      assert np.asarray(x.data).tobytes() == np.asarray(y.data).tobytes()

  jax.tree.map(check, got, want)


def open_(path, primary=True):
  config = ml_collections.ConfigDict({'name': 'run'})
  return workdir.open_workdir(path, config, mode='train', primary=primary)


def checkpointer(path):
  return checkpoint.Checkpointer(f'{path}/checkpoints', every=1, keep=2)


def chunks_in(path):
  """Chunks in the local copy of a checkpoint, and of it."""
  root = pathlib.Path(path)
  here = [p.relative_to(root).as_posix() for p in root.glob('state/**/c/**/*')]
  sums = (root / 'SHA256SUMS').read_text().splitlines()
  names = [line[66:] for line in sums if '/c/' in line]
  return {name for name in here if name in names}, set(names)


def be_late():
  """Creates directories of checkpoints late; no process may write before."""
  create = atomicity.AtomicRenameTemporaryPath.create

  async def late(path):
    await asyncio.sleep(0.5)
    return await create(path)

  atomicity.AtomicRenameTemporaryPath.create = late


def main(process, port):
  process = int(process)
  logging.use_absl_handler()
  orbax_noise.hush(lambda: False)
  jax.distributed.initialize(f'localhost:{port}', 2, process)
  mesh = jax.make_mesh(
      (2, 2), ('x', 'y'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  at = lambda *axes: jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(*axes)
  )
  shardings = dict(
      params=dict(w=at('x', 'y'), half=at('y'), alike=at()),
      zeros=at('x'),
      key=at(),
      keys=at('x'),
      count=at(),
  )
  like, primary = state(None, shardings), process == 0
  if primary:
    be_late()
  meet = lambda: sharding.in_any_process(False)

  with mirror.opened(RUN) as path, open_(path, primary) as run:
    saving = checkpointer(path)
    assert saving.restore_latest(like) is None
    run.keep()
    meet()
    for step in (1, 2, 3):
      saving.save(step, state(step, shardings), {'step': step})
    saving.wait()
    # Process 1 keeps no local copy of the files that it has uploaded.
    assert primary or not os.listdir(f'{path}/checkpoints')
    cfg = sharded_test.CONFIG
    params = hf.load_params(os.environ['POLICY'], cfg)
    hf.save(f'{path}/policy', cfg, params, max_shard_bytes=10_000)
  meet()
  with mirror.opened(RUN) as path, open_(path, primary):
    restored, meta = checkpointer(path).restore_latest(like)
    assert_equal(restored, state(3, shardings))
    assert meta == {'step': 3, 'metadata': {'step': 3}}, meta
    here, every = chunks_in(f'{path}/checkpoints/step_000003')
    print('chunks', *sorted(here), flush=True)
    assert here < every, every - here
  meet()
  if primary:  # Of a shard that only process 1 has.
    name = 'checkpoints/step_000003/state/params/w/c/1/1'
    store = storage.Store(RUN)
    store.write(name, bytes(len(store.read(name))))
  meet()
  with mirror.opened(RUN) as path, open_(path, primary):
    restored, _ = checkpointer(path).restore_latest(like)
    assert_equal(restored, state(2, shardings))
  meet()
  with mirror.opened(ALONE) as path, open_(path, primary):
    restored, _ = checkpointer(path).restore_latest(like)
    assert_equal(restored, state(5, shardings))
  if primary:
    try:
      messages.receive('nothing', 1, seconds=0.2)
    except TimeoutError as error:
      assert "process 1 has not sent 'nothing' within 0.2 s" in str(error)
    else:
      raise AssertionError('a message that nobody has sent')
  print('passed', flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
