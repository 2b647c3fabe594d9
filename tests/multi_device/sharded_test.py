"""Sharded = unsharded: one device, meshes of eight, two processes of four."""

import dataclasses
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
from tests import pairs
from tests import tiny

# All that a family may have but tied embeddings.
CONFIG = decoder.DecoderConfig(
    family='gemma3_text',
    vocab_size=61,  # No mesh of several devices splits it: it is padded.
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qkv_bias=True,
    out_bias=True,
    qk_norm=True,
    post_norms=True,
    norm_plus_one=True,
    scale_embeddings=True,
    activation='gelu_pytorch_tanh',
    query_scalar=16,
    sliding_window=3,
    sliding=(True, False),
    sliding_rope_theta=100.0,
    tie_embeddings=False,
)
WORKER = pathlib.Path(__file__).with_name('worker.py')
# Float32 sums in another order; the arrays are of order 1.
TOLERANCE = 1e-5
# Runs of one process with several devices.
ALONE = ('mesh', 'replicas', 'slices')


def start(devices, *args):
  """Starts a worker that has so many virtual devices."""
  return subprocess.Popen(
      [sys.executable, WORKER, *map(str, args)],
      env=tiny.environment(
          XLA_FLAGS=f'--xla_force_host_platform_device_count={devices}'
      ),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
  )


class ShardedTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    scratch = tempfile.TemporaryDirectory()
    cls.addClassCleanup(scratch.cleanup)
    path = cls.path = pathlib.Path(scratch.name)
    shapes = jax.eval_shape(lambda: decoder.init(CONFIG, jax.random.key(0)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda s: jnp.asarray(rng.normal(0, 0.2, s.shape), jnp.float32), shapes
    )
    hf.save(path / 'model', CONFIG, params, dtype='float32')
    port = pairs.free_port()
    runs = {
        'one': [(1, path / 'model', path / 'one.npz', 1, 1)],
        'mesh': [(8, path / 'model', path / 'mesh.npz', 4, 2)],
        'replicas': [(8, path / 'model', path / 'replicas.npz', 2, 2)],
        'slices': [(8, path / 'model', path / 'slices.npz', 2, 2, 2)],
        'two': [
            (4, path / 'model', path / 'two.npz', 4, 2, 1, process, port)
            for process in (0, 1)
        ],
    }
    cls.results = {}
    for name, commands in runs.items():
      workers = [start(*command) for command in commands]
      for worker in workers:
        cls.addClassCleanup(worker.kill)
      for worker in workers:
        log, _ = worker.communicate(timeout=600)
        if worker.returncode:
          raise AssertionError(f'worker of {name!r} failed:\n{log}')
      with np.load(path / f'{name}.npz') as f:
        cls.results[name] = dict(f)

  def assert_equal_to_one_device(self, prefix, runs=(*ALONE, 'two')):
    expected = {
        k: v for k, v in self.results['one'].items() if k.startswith(prefix)
    }
    self.assertNotEmpty(expected)
    for name in runs:
      for key, value in expected.items():
        np.testing.assert_allclose(
            self.results[name][key],
            value,
            atol=TOLERANCE,
            rtol=TOLERANCE,
            err_msg=f'{name} {key}',
        )

  def test_logits(self):
    self.assert_equal_to_one_device("['forward']['forward']", ALONE)

  def test_prefill_and_decode(self):
    self.assert_equal_to_one_device("['forward']['stepwise']", ALONE)
    for run in (self.results[name] for name in ('one', *ALONE)):
      np.testing.assert_allclose(
          run["['forward']['stepwise']"],
          run["['forward']['forward']"][:, 4:],  # From the prompt's last token.
          atol=TOLERANCE,
          rtol=TOLERANCE,
      )

  def test_the_kernel_that_reads_the_cache(self):
    self.assert_equal_to_one_device("['kernel']", ALONE)

  def test_engine_samples_the_same_tokens(self):
    self.assert_equal_to_one_device("['engine']")

  def test_episodes_of_several_turns(self):
    self.assert_equal_to_one_device("['episodes']")
    turns = self.results['one']["['episodes']['turns']"]
    self.assertGreater(turns.max(), 2)  # Or equality says little.

  def test_update_with_shared_prompts(self):
    self.assert_equal_to_one_device("['shared']")
    norm = self.results['one']["['shared']['metrics']['grad_norm']"]
    self.assertGreater(norm, 0.1)  # Or equality says nothing.
    for name in ('rejected_tokens', 'tis_truncated'):
      share = self.results['one'][f"['shared']['metrics']['{name}']"]
      self.assertBetween(share, 0.05, 0.95, name)

  def test_update_with_packed_rows_scanned_rematerialised(self):
    self.assert_equal_to_one_device("['packed']", ALONE)

  def test_no_device_gathers_the_gradients_or_the_update(self):
    matrix = 4 * 32 * 32  # The smallest.
    for name in ALONE:
      gathered = self.results[name]["['gathered']"]
      self.assertLess(gathered, matrix / 4, name)

  def test_layouts_agree(self):
    run = self.results['one']
    for name in ('loss', 'grad_norm', 'entropy', 'tokens'):
      np.testing.assert_allclose(
          run[f"['shared']['metrics']['{name}']"],
          run[f"['packed']['metrics']['{name}']"],
          rtol=1e-4,
      )

  def test_exported_directories(self):
    """A directory written by several processes holds the weights they share."""
    for name, layout in (
        ('one', 'shared'),
        ('mesh', 'packed'),
        ('two', 'shared'),
    ):
      exported = hf.load_params(
          self.path / f'{name}.npz-{layout}',
          dataclasses.replace(CONFIG, scan_layers=layout == 'packed'),
      )
      for key, value in jax.tree_util.tree_leaves_with_path(exported):
        held = f"['{layout}']['state']['params']{jax.tree_util.keystr(key)}"
        np.testing.assert_array_equal(
            value, self.results[name][held], err_msg=f'{name} {held}'
        )

  def test_every_device_holds_its_share(self):
    """Bytes per leaf and local device, right after loading."""
    one, mesh = (self.results[n]["['held']"] for n in ('one', 'mesh'))
    two = self.results['two']["['held']"]
    self.assertEqual(one.shape[1], 1)
    self.assertEqual(mesh.shape[1], 8)
    self.assertEqual(two.shape[1], 4)
    # Norms and the other bias (up to 32 floats) are everywhere; the bias of qkv
    # (64) is split by heads, every matrix 8 ways.
    sizes, layers = one[:, 0], CONFIG.num_layers
    matrices, biases = sizes > 4 * 64, sizes == 4 * 64
    self.assertEqual(matrices.sum(), 2 + 4 * layers)
    self.assertEqual(biases.sum(), layers)
    shares = np.where(matrices, 8, np.where(biases, 2, 1))
    sizes = sizes.copy()
    # A table of 61 rows is held as one of 64.
    sizes[sizes == 4 * 61 * 32] = 4 * 64 * 32
    for held in (mesh, two):
      for device in held.T:
        np.testing.assert_array_equal(device * shares, sizes)

  def test_the_sampler_holds_weights_whole_along_fsdp(self):
    one, mesh = (self.results[n]["['sampler_held']"] for n in ('one', 'mesh'))
    tables = [0, -1]  # embed and lm_head: the first and the last by name.
    self.assertTrue(np.all(mesh[tables] * 8 * 61 == one[tables] * 64))
    matrices = one[:, 0] > 4 * 32
    matrices[tables] = False
    self.assertTrue(np.all(mesh[matrices] * 2 == one[matrices]))


if __name__ == '__main__':
  absltest.main()
