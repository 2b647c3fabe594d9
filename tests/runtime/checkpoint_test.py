"""Tests for checkpoints: equal bits, damage, kills, full disks, shards."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from evojax.runtime import checkpoint


def make_state(seed=0):
  """A small state of every kind of leaf a run has."""
  key = jax.random.key(seed)
  params = {
      'embed': jax.random.normal(key, (64, 32)),
      'layers': [
          {'qkv': jax.random.normal(key, (32, 8)).astype(jnp.bfloat16)}
          for _ in range(2)
      ],
  }
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
  return {
      'params': params,
      'optimizer': optimizer.init(params),
      'key': key,
      'cursor': np.int64(2**40 + seed),  # A NumPy scalar, beyond int32.
      'policy_version': seed,
      'window': np.arange(3, dtype=np.float64),
  }


def abstract(state):
  """The structure of a state, without its values."""
  return jax.tree.map(
      lambda x: (
          jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
          if isinstance(x, jax.Array)
          else np.zeros_like(x)
      ),
      state,
  )


def bits(state):
  """Path -> (dtype, shape, bytes)."""
  found = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    dtype = str(getattr(leaf, 'dtype', 'int64'))
    if dtype.startswith('key'):
      leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    found[jax.tree_util.keystr(path)] = dtype, array.shape, array.tobytes()
  return found


def largest_file(folder):
  files = [p for p in pathlib.Path(folder).rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


class CheckpointTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.directory = pathlib.Path(root, 'checkpoints')
    self.state = make_state()

  def open(self, every=1, keep=2, **options):
    opened = checkpoint.Checkpointer(
        self.directory, every=every, keep=keep, **options
    )
    self.addCleanup(opened.wait)
    return opened

  def save(self, *steps, keep=2):
    checkpointer = self.open(keep=keep)
    for step in steps:
      checkpointer.save(step, make_state(step), {'hash': f'h{step}'})
    checkpointer.wait()
    return checkpointer

  def restore(self):
    return self.open().restore_latest(abstract(self.state))


class EstimateTest(CheckpointTestCase):

  def test_by_size_and_by_the_speed_of_the_last_save(self):
    checkpointer = self.open()
    # A number is saved as an array.
    leaves = jax.tree.leaves(self.state)
    size = sum(getattr(x, 'nbytes', 8) for x in leaves)
    # 100 MB/s before the first one.
    self.assertEqual(checkpointer.estimate(self.state), (size, size / 100e6))
    began = time.monotonic()
    checkpointer.save(1, self.state, {})
    checkpointer.wait()
    took = time.monotonic() - began
    same, seconds = checkpointer.estimate(self.state)
    self.assertEqual(same, size)
    self.assertBetween(seconds, 0.2 * took, took)
    twice, longer = checkpointer.estimate([self.state, self.state])
    self.assertEqual(twice, 2 * size)
    self.assertAlmostEqual(longer, 2 * seconds)

  def test_a_later_process_knows_the_speed_of_an_earlier_one(self):
    # The first save of a run cannot know its own speed.
    self.save(1)
    size, seconds = self.later_estimate()
    self.assertEqual(seconds, size / 100e6)
    checkpointer = self.save(2, 3)
    meta = json.loads((checkpointer.path_of(3) / 'meta.json').read_text())
    size, seconds = self.later_estimate()
    self.assertAlmostEqual(seconds, size / meta['bytes_per_second'])
    self.assertNotEqual(seconds, size / 100e6)
    # It is handed on, until this process has measured a save of its own.
    checkpointer = self.open()
    restored = checkpointer.restore_latest(abstract(self.state))
    self.assertEqual([*restored[1]], ['step', 'metadata'])
    checkpointer._measured = 5.0, 1.0
    checkpointer.save(4, self.state, {})
    checkpointer.wait()
    self.assertGreater(checkpointer._measured[0], 5.0)
    meta = json.loads((checkpointer.path_of(4) / 'meta.json').read_text())
    self.assertEqual(meta['bytes_per_second'], 5.0)

  def later_estimate(self):
    """As in a process that has restored the newest checkpoint."""
    checkpointer = self.open()
    checkpointer.restore_latest(abstract(self.state))
    return checkpointer.estimate(self.state)

  def test_one_that_is_not_complete_comes_first(self):
    checkpointer, go = self.open(), threading.Event()
    checkpointer.save(1, self.state, {})
    checkpointer.wait()
    checkpointer._measured = checkpointer._measured[0], 40.0
    sums = checkpoint._sums
    late = lambda *given: go.wait(60) and sums(*given)
    with absltest.mock.patch.object(checkpoint, '_sums', late):
      checkpointer.save(2, self.state, {})
      _, seconds = checkpointer.estimate(self.state)
      go.set()
      checkpointer.wait()
    self.assertBetween(seconds, 60, 80)


class RoundTripTest(CheckpointTestCase):

  def test_every_bit_and_type(self):
    checkpointer = self.save(3)
    del checkpointer
    state, meta = self.restore()
    self.assertEqual(meta, {'step': 3, 'metadata': {'hash': 'h3'}})
    want = make_state(3)
    self.assertEqual(bits(state), bits(want))
    self.assertEqual(jax.tree.structure(state), jax.tree.structure(want))
    self.assertIsInstance(state['params']['embed'], jax.Array)
    self.assertIsInstance(state['window'], np.ndarray)
    self.assertEqual(state['cursor'].dtype, np.int64)
    self.assertEqual(int(state['policy_version']), 3)
    # The key goes on where it was.
    np.testing.assert_array_equal(
        jax.random.uniform(state['key'], (4,)),
        jax.random.uniform(want['key'], (4,)),
    )

  def test_nothing_there_is_none_and_touches_nothing(self):
    self.assertIsNone(self.restore())
    self.assertFalse(self.directory.exists())

  def test_donating_the_state_after_save_is_safe(self):
    double = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = jnp.arange(1 << 18, dtype=jnp.float32)
    checkpointer = self.open()
    for step in range(3):
      want = np.array(x)
      checkpointer.save(step, {'x': x}, {})
      for _ in range(5):  # While the file is written.
        x = double(x)
      restored, _ = checkpointer.restore_latest(
          {'x': jax.ShapeDtypeStruct(x.shape, x.dtype)}
      )
      np.testing.assert_array_equal(restored['x'], want)

  def test_sums_are_readable_by_coreutils(self):
    self.save(1)
    subprocess.run(
        ['sha256sum', '--check', '--strict', '--quiet', 'SHA256SUMS'],
        cwd=self.directory / 'step_000001',
        check=True,
    )

  def test_due(self):
    checkpointer = self.open(every=10)
    self.assertEqual(
        [s for s in range(1, 31) if checkpointer.due(s)], [10, 20, 30]
    )

  @parameterized.parameters((0, 1), (1, 0))
  def test_refuses(self, every, keep):
    with self.assertRaisesRegex(ValueError, f'every={every}.*keep={keep}'):
      self.open(every=every, keep=keep)


class RetentionTest(CheckpointTestCase):

  def test_newest_stay(self):
    checkpointer = self.open(keep=2)
    seen = []
    for step in (10, 20, 30, 40):
      checkpointer.save(step, self.state, {})
      checkpointer.wait()
      seen.append(checkpointer.steps())
    self.assertEqual(seen, [[10], [10, 20], [20, 30], [30, 40]])
    self.assertLen(os.listdir(self.directory), 2)

  def test_retained_steps_stay_beside_the_newest(self):
    checkpointer = self.open(keep=1, retained=(20, 50))
    for step in (10, 20, 30, 40):
      checkpointer.save(step, self.state, {})
      checkpointer.wait()
    self.assertEqual(checkpointer.steps(), [20, 40])

  def test_old_ones_stay_until_the_new_one_is_durable(self):
    checkpointer = self.save(10, 20)
    rename = os.rename

    def fail(source, target):
      if pathlib.Path(target).name == 'step_000030':
        raise OSError(28, 'No space left on device')
      rename(source, target)

    with absltest.mock.patch.object(os, 'rename', fail):
      checkpointer.save(30, self.state, {})
      with self.assertRaisesRegex(
          checkpoint.CheckpointError,
          r'step_000030 could not be written: .*No space left[^$]*resumes',
      ):
        checkpointer.wait()
    self.assertCountEqual(
        os.listdir(self.directory), ['step_000010', 'step_000020']
    )
    checkpointer.save(30, self.state, {})  # The error is told once.
    checkpointer.wait()
    self.assertEqual(checkpointer.steps(), [20, 30])

  def test_a_step_saved_again_is_replaced(self):
    checkpointer = self.save(5)
    checkpointer.save(5, make_state(7), {'hash': 'again'})
    state, meta = checkpointer.restore_latest(abstract(self.state))
    self.assertEqual(meta['metadata'], {'hash': 'again'})
    self.assertEqual(bits(state), bits(make_state(7)))


def truncate(folder):
  file = largest_file(folder)
  os.truncate(file, file.stat().st_size - 1)


def flip_a_bit(folder):
  file = largest_file(folder)
  data = bytearray(file.read_bytes())
  data[len(data) // 2] ^= 1
  file.write_bytes(data)


def empty(folder):
  os.truncate(largest_file(folder), 0)


def delete_data(folder):
  largest_file(folder).unlink()


def delete_meta(folder):
  (folder / 'meta.json').unlink()


def delete_sums(folder):
  (folder / 'SHA256SUMS').unlink()


def empty_sums(folder):
  (folder / 'SHA256SUMS').write_text('')


def delete_everything(folder):
  shutil.rmtree(folder)
  folder.mkdir()


DAMAGES = (
    truncate,
    flip_a_bit,
    empty,
    delete_data,
    delete_meta,
    delete_sums,
    empty_sums,
    delete_everything,
)


class DamageTest(CheckpointTestCase):

  @parameterized.parameters(*DAMAGES)
  def test_newest_intact_is_used_and_the_damaged_named(self, damage):
    self.save(10, 20)
    damage(self.directory / 'step_000020')
    checkpointer = self.open()
    with self.assertLogs('absl', 'WARNING') as logs:
      state, meta = checkpointer.restore_latest(abstract(self.state))
    self.assertEqual(meta['step'], 10)
    self.assertEqual(bits(state), bits(make_state(10)))
    self.assertLen(logs.output, 1)
    self.assertIn(f'{self.directory}/step_000020 is damaged', logs.output[0])
    # The run executes step 20 again and replaces it; 10 stays until then.
    checkpointer.save(20, make_state(20), {})
    checkpointer.wait()
    self.assertEqual(checkpointer.steps(), [10, 20])
    self.assertEqual(self.restore()[1]['step'], 20)

  def test_damaged_ones_do_not_push_out_intact_ones(self):
    self.save(10, 20)
    truncate(self.directory / 'step_000020')
    checkpointer = self.open(keep=2)
    with self.assertLogs('absl', 'WARNING'):
      checkpointer.restore_latest(abstract(self.state))
    checkpointer.save(15, self.state, {})
    checkpointer.wait()
    self.assertEqual(checkpointer.steps(), [10, 15, 20])

  def test_never_from_scratch_when_all_are_damaged(self):
    self.save(10, 20)
    truncate(self.directory / 'step_000010')
    delete_sums(self.directory / 'step_000020')
    with self.assertLogs('absl', 'WARNING'):
      with self.assertRaises(checkpoint.CheckpointError) as caught:
        self.restore()
    message = str(caught.exception)
    self.assertIn(f'no checkpoint in {self.directory} is intact', message)
    self.assertIn('step_000010: state/', message)
    self.assertIn('step_000020: SHA256SUMS cannot be read', message)
    self.assertIn('Restore one from a copy', message)

  def test_cut_off_save_is_named_ignored_and_cleared(self):
    self.save(10)
    whole = self.directory / 'step_000010'
    cut_off = self.directory / 'step_000020.tmp'
    shutil.copytree(whole, cut_off)
    with self.assertLogs('absl', 'WARNING') as logs:
      _, meta = self.restore()
    self.assertEqual(meta['step'], 10)
    self.assertIn(f'{cut_off} was cut off', logs.output[0])
    self.save(20)
    self.assertCountEqual(
        os.listdir(self.directory), ['step_000010', 'step_000020']
    )

  def test_killed_in_the_first_save_starts_again(self):
    (self.directory / 'step_000010.tmp').mkdir(parents=True)
    with self.assertLogs('absl', 'WARNING'):
      self.assertIsNone(self.restore())


class StructureTest(CheckpointTestCase):

  def test_differing_paths_and_only_those_are_listed(self):
    self.save(1)
    other = abstract(self.state)
    other['params']['embed'] = jax.ShapeDtypeStruct((64, 48), jnp.float32)
    other['params']['layers'][0]['qkv'] = jax.ShapeDtypeStruct(
        (32, 8), jnp.float32
    )
    other['params']['norm'] = jax.ShapeDtypeStruct((32,), jnp.float32)
    del other['window']
    with self.assertRaises(checkpoint.CheckpointError) as caught:
      self.open().restore_latest(other)
    self.assertEqual(
        [line for line in str(caught.exception).splitlines() if '  ' in line],
        [
            '  params/embed: saved float32[64, 32], wanted float32[64, 48]',
            '  params/layers/0/qkv: saved bfloat16[32, 8], wanted'
            ' float32[32, 8]',
            '  params/norm: saved (absent), wanted float32[32]',
            '  window: saved float64[3], wanted (absent)',
        ],
    )

  def test_key_of_another_kind(self):
    self.save(1)
    other = abstract(self.state)
    rbg = jax.random.key(0, impl='rbg')
    other['key'] = jax.ShapeDtypeStruct((), rbg.dtype)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, r'key: saved key<fry>\[\], wanted key<rbg>'
    ):
      self.open().restore_latest(other)


class DiskTest(CheckpointTestCase):

  def test_too_little_room_is_found_before_writing(self):
    checkpointer = self.save(1)
    usage = absltest.mock.Mock(free=1000)
    with absltest.mock.patch.object(shutil, 'disk_usage', return_value=usage):
      with self.assertRaisesRegex(
          checkpoint.CheckpointError,
          rf'{self.directory} needs 2\d,\d\d\d bytes, 1,000 are free.*keep',
      ):
        checkpointer.save(2, self.state, {})
    self.assertEqual(checkpointer.steps(), [1])

  def test_directory_that_cannot_be_written(self):
    self.directory.write_text('')
    with self.assertRaisesRegex(
        checkpoint.CheckpointError, f'{self.directory}/.* could not be written'
    ):
      self.open().save(1, self.state, {})


# Runs in a process of its own. Each case is a child that is forked before jax
# starts its threads: it saves step 1, then meets its end in step 2.
KILLS = """
import os, pathlib, resource, shutil, signal, sys
sys.path[:0] = {path!r}
import jax.numpy as jnp
import numpy as np
from evojax.runtime import checkpoint, durable

def die(*_):
  os.kill(os.getpid(), signal.SIGKILL)

def before(module, name, matches):
  original = getattr(module, name)
  def wrapper(*args, **kwargs):
    if matches(str(args[0])):
      die()
    return original(*args, **kwargs)
  setattr(module, name, wrapper)

def no_room():
  resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

POINTS = dict(
    orbax=lambda: before(checkpoint.Checkpointer, '_commit', lambda _: True),
    meta=lambda: before(durable, 'write_atomic', lambda p: 'meta' in p),
    sums=lambda: before(durable, 'write_atomic', lambda p: 'SHA' in p),
    rename=lambda: before(os, 'rename', lambda p: p.endswith('2.tmp')),
    renamed=lambda: before(
        durable, 'sync_directory', lambda p: p.endswith('checkpoints')),
    old=lambda: before(os, 'rename', lambda p: p.endswith('000001')),
    trash=lambda: before(shutil, 'rmtree', lambda p: '.old' in p),
    full=no_room,
)
for point, arm in POINTS.items():
  if os.fork() == 0:
    directory = pathlib.Path({root!r}, point, 'checkpoints')
    c = checkpoint.Checkpointer(directory, every=1, keep=1)
    rng = np.random.default_rng(0)
    c.save(1, dict(x=jnp.asarray(rng.random(9999)), step=1), dict())
    c.wait()
    arm()
    try:
      c.save(2, dict(x=jnp.asarray(rng.random(9999)), step=2), dict())
      c.wait()
    except checkpoint.CheckpointError as error:
      print(point, str(error).replace(chr(10), ' '), flush=True)
    os._exit(0)
  print(point, 'ended by', os.wait()[1], flush=True)
"""


class KillTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = cls.enterClassContext(tempfile.TemporaryDirectory())
    done = subprocess.run(
        [sys.executable, '-c', KILLS.format(path=sys.path, root=cls.root)],
        capture_output=True,
        text=True,
        check=True,
    )
    cls.printed = done.stdout

  @parameterized.parameters(
      ('orbax', 1),
      ('meta', 1),
      ('sums', 1),
      ('rename', 1),
      ('renamed', 2),
      ('old', 2),
      ('trash', 2),
      ('full', 1),
  )
  def test_one_whole_checkpoint_is_left(self, point, step):
    end = 0 if point == 'full' else int(signal.SIGKILL)
    self.assertIn(f'{point} ended by {end}\n', self.printed)
    directory = pathlib.Path(self.root, point, 'checkpoints')
    checkpointer = checkpoint.Checkpointer(directory, every=1, keep=1)
    like = {'x': jax.ShapeDtypeStruct((9999,), jnp.float32), 'step': 0}
    state, meta = checkpointer.restore_latest(like)
    rng = np.random.default_rng(0)
    for _ in range(step):
      want = rng.random(9999).astype(np.float32)
    np.testing.assert_array_equal(state['x'], want)
    self.assertEqual((meta['step'], int(state['step'])), (step, step))
    # The run goes on, and what the kill left behind is cleared.
    checkpointer.save(3, {'x': state['x'], 'step': 3}, {})
    checkpointer.wait()
    self.assertEqual(os.listdir(directory), ['step_000003'])

  def test_full_disk_is_one_clear_error(self):
    self.assertRegex(
        self.printed,
        r'(?m)^full checkpoint \S*/step_000002 could not be written: .*Older'
        r' checkpoints are intact\. Make sure that the disk has room',
    )


# One of `processes` that together save and restore arrays over 8 devices.
SHARDED = """
import os, sys
index, processes, port = map(int, sys.argv[1:4])
os.environ['XLA_FLAGS'] = (
    f'--xla_force_host_platform_device_count={{8 // processes}}')
os.environ['JAX_PLATFORMS'] = 'cpu'
sys.path[:0] = {path!r}
import jax, jax.numpy as jnp, numpy as np, optax
jax.distributed.initialize(f'localhost:{{port}}', processes, index)
from evojax.runtime import checkpoint
auto = (jax.sharding.AxisType.Auto,) * 2
mesh = jax.make_mesh((4, 2), ('fsdp', 'tensor'), axis_types=auto)
shard = lambda *axes: jax.sharding.NamedSharding(
    mesh, jax.sharding.PartitionSpec(*axes))

shardings = dict(
    params=dict(w=shard('fsdp', 'tensor'), half=shard('tensor')),
    key=shard(), keys=shard('fsdp'), count=shard())
def init(seed):
  key = jax.random.key(seed)
  return dict(
      params=dict(
          w=jax.random.normal(key, (16, 8)),
          half=jax.random.normal(key, (8, 3)).astype(jnp.bfloat16)),
      key=key, keys=jax.random.split(key, 8),
      count=jnp.asarray(seed, jnp.int32))
make = jax.jit(init, out_shardings=shardings)

like = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    jax.eval_shape(lambda: init(0)), shardings)
like['cursor'] = np.int64(0)
c = checkpoint.Checkpointer({root!r} + '/checkpoints', every=1, keep=2)
assert c.restore_latest(like) is None
read, digest = [], checkpoint._digest
# The arrays w and keys are split between both, process 0 saves all others:
# 512 / 2 + 64 / 2, and 48 of half, 8 of the key, 4 of count, 8 of the cursor.
whole, seconds = c.estimate(make(1) | dict(cursor=np.int64(1)))
assert (whole, seconds) == (644, 356 / 100e6), (whole, seconds)
checkpoint._digest = lambda path: read.append(str(path)) or digest(path)
for step in (1, 2, 3):
  c.save(step, make(step) | dict(cursor=np.int64(step)), dict(step=step))
c.wait()
of = lambda i: [path for path in read if f'ocdbt.process_{{i}}/' in path]
assert of(index) and not of(1 - index), read  # Each reads its own shards.
jax.experimental.multihost_utils.sync_global_devices('saved')
if index == 0:
  hidden = [n for n in os.listdir(c.path_of(3)) if n.startswith('.')]
  sums = (c.path_of(3) / 'SHA256SUMS').read_text()
  assert not hidden and sums.count('ocdbt.process_1/') >= 1, (hidden, sums)
def check(step):
  state, meta = c.restore_latest(like)
  assert meta == dict(step=step, metadata=dict(step=step)), meta
  assert int(state.pop('cursor')) == step
  def same(got, want, sharding):
    assert got.sharding == sharding, (got.sharding, sharding)
    assert got.dtype == want.dtype
    if jax.dtypes.issubdtype(got.dtype, jax.dtypes.prng_key):
      got, want = jax.random.key_data(got), jax.random.key_data(want)
    for a, b in zip(got.addressable_shards, want.addressable_shards):
      assert a.index == b.index
      assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes()
  jax.tree.map(same, state, make(step), shardings)
check(3)
if index == 0:
  os.remove(c.path_of(3) / 'meta.json')
jax.experimental.multihost_utils.sync_global_devices('damaged')
check(2)  # All processes agree on the older one.
c.wait()
print('passed', flush=True)
"""


class ShardedTest(absltest.TestCase):

  def test_two_processes_with_four_devices_each(self):
    processes = 2
    root = self.enterContext(tempfile.TemporaryDirectory())
    with socket.socket() as free:
      free.bind(('localhost', 0))
      port = free.getsockname()[1]
    script = textwrap.dedent(SHARDED.format(path=sys.path, root=root))
    running = [
        subprocess.Popen(
            [sys.executable, '-c', script, str(i), str(processes), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    try:
      for process in running:
        out, errors = process.communicate(timeout=120)
        self.assertIn('passed', out, errors[-3000:])
    finally:
      for process in running:
        process.kill()


if __name__ == '__main__':
  absltest.main()
