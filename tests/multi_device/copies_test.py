"""Checkpoints and exports of two processes that share only an object store."""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import decoder
from evojax.models import hf
from evojax.runtime import listing
from evojax.runtime import mirror
from evojax.runtime import storage
from tests import objects
from tests import pairs
from tests import tiny
from tests.multi_device import copies_worker
from tests.multi_device import sharded_test


class CopiesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    cls.enterClassContext(absltest.mock.patch.dict(os.environ, variables))
    cls.root, cls.store = root, storage.Store(copies_worker.RUN)
    cls.params = jax.tree.map(
        lambda x: jnp.asarray(
            np.random.default_rng(0).normal(0, 0.2, x.shape), jnp.float32
        ),
        jax.eval_shape(
            lambda: decoder.init(sharded_test.CONFIG, jax.random.key(0))
        ),
    )
    hf.save(root / 'policy', sharded_test.CONFIG, cls.params, dtype='float32')
    with (
        mirror.opened(copies_worker.ALONE) as path,
        copies_worker.open_(path) as alone,
    ):
      alone.keep()
      saving = copies_worker.checkpointer(path)
      saving.save(5, copies_worker.state(5), {})
      saving.wait()
    port = pairs.free_port()
    workers = [
        subprocess.Popen(
            [
                *(sys.executable, '-m', 'tests.multi_device.copies_worker'),
                *(str(process), str(port)),
            ],
            cwd=tiny.ROOT,
            env=tiny.environment(
                XLA_FLAGS='--xla_force_host_platform_device_count=2',
                XDG_CACHE_HOME=str(root / f'disk{process}'),
                POLICY=str(root / 'policy'),
                OBJECTS_FAILING='0.03',
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]
    for worker in workers:
      cls.addClassCleanup(worker.kill)
    cls.out = [worker.communicate(timeout=300)[0] for worker in workers]

  def chunks(self, process):
    lines = self.out[process].splitlines()
    return set(next(s for s in lines if s.startswith('chunks')).split()[1:])

  def test_the_processes_restore_what_they_have_saved(self):
    for out in self.out:
      self.assertIn('passed', out, '\n'.join(self.out))
      self.assertNotIn('OCDBT', out)
      self.assertNotIn('primary_host', out)

  def test_each_process_downloads_its_shards(self):
    first, second = self.chunks(0), self.chunks(1)
    w = [{n for n in mine if '/w/' in n} for mine in (first, second)]
    self.assertEqual(w[0], {'state/params/w/c/0/0', 'state/params/w/c/0/1'})
    self.assertEqual(w[1], {'state/params/w/c/1/0', 'state/params/w/c/1/1'})
    self.assertIn('state/params/alike/c/0', first & second)

  def test_no_object_is_left_that_nothing_names(self):
    names = listing.read(self.store).files
    found = [n for n in self.store.list() if not n.startswith('.')]
    self.assertEqual(set(found), set(names))
    steps = {n.split('/')[1] for n in names if n.startswith('checkpoints/')}
    self.assertEqual(steps, {'step_000002', 'step_000003'})

  def test_a_process_alone_restores_it_here_and_from_the_store(self):
    like = jax.eval_shape(lambda: copies_worker.init(0))
    like |= {'cursor': np.int64(0)}
    with mirror.opened(copies_worker.RUN) as path:
      with self.assertLogs('absl', 'WARNING') as logs:
        state, _ = copies_worker.checkpointer(path).restore_latest(like)
      copies_worker.assert_equal(state, copies_worker.state(2))
      copy = self.root / 'copy'
      os.rename(path, copy)  # A plain directory.
    self.assertIn('params/w/c/1/1 is not what was written', logs.output[0])
    with self.assertLogs('absl', 'WARNING'):
      state, _ = copies_worker.checkpointer(copy).restore_latest(like)
    copies_worker.assert_equal(state, copies_worker.state(2))

  def test_a_policy_is_exported_by_both(self):
    with mirror.opened(copies_worker.RUN) as path:
      mirror.fetch(pathlib.Path(path))
      found = hf.load_params(f'{path}/policy', sharded_test.CONFIG)
      files = [n for n in os.listdir(f'{path}/policy') if 'of-' in n]
    self.assertGreater(len(files), 3)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(
            a, b.astype(jnp.bfloat16).astype(a.dtype)
        ),
        found,
        self.params,
    )


if __name__ == '__main__':
  absltest.main()
