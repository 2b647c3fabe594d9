import dataclasses
import errno
import json
import os
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from evojax.models import decoder
from evojax.models import hf
from evojax.models import hf_config
from evojax.models import layout
from evojax.models import rope
from evojax.models import tensor_files

QWEN2 = decoder.DecoderConfig(
    family='qwen2',
    vocab_size=11,
    hidden_size=8,
    intermediate_size=6,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    qkv_bias=True,
    rope_theta=1e6,
    max_positions=64,
)
QWEN3 = dataclasses.replace(
    QWEN2,
    family='qwen3',
    qkv_bias=False,
    qk_norm=True,
    head_dim=6,
    tie_embeddings=False,
)
LLAMA = dataclasses.replace(
    QWEN2,
    family='llama',
    qkv_bias=False,
    rms_norm_eps=1e-5,
    rope_scaling=rope.Llama3(8.0, 1.0, 4.0, 16),
)
MISTRAL = dataclasses.replace(
    QWEN2,
    family='mistral',
    qkv_bias=False,
    sliding_window=5,
    sliding=(True, True),
    rope_scaling=rope.Yarn(4.0, 16, attention_factor=1.5, truncate=False),
)
GEMMA3 = dataclasses.replace(
    QWEN2,
    family='gemma3_text',
    out_bias=True,
    qk_norm=True,
    post_norms=True,
    norm_plus_one=True,
    scale_embeddings=True,
    activation='gelu_pytorch_tanh',
    query_scalar=3,
    sliding_window=5,
    sliding=(True, False),
    sliding_rope_theta=100.0,
    rope_scaling=rope.Linear(8.0),
)
SMOLLM3 = dataclasses.replace(
    QWEN2,
    family='smollm3',
    qkv_bias=False,
    unrotated=(True, False),
    rope_scaling=rope.Dynamic(2.0),
)
CASES = (QWEN2, QWEN3, LLAMA, MISTRAL, GEMMA3, SMOLLM3)


def random_params(cfg):
  """Return parameters with random leaves, including norms and biases."""
  shapes = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda s: jnp.asarray(rng.standard_normal(s.shape), jnp.float32), shapes
  )


class HfTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    scratch = tempfile.TemporaryDirectory()
    self.addCleanup(scratch.cleanup)
    self.path = pathlib.Path(scratch.name) / 'model'

  def save(self, cfg=QWEN3, **kwargs):
    """Write a directory with an (empty) tokenizer; return the params."""
    source = self.path.with_name('source')
    source.mkdir(exist_ok=True)
    (source / 'tokenizer.json').write_text('{}')
    params = random_params(cfg)
    hf.save(
        self.path,
        cfg,
        params,
        **{'dtype': 'float32', 'tokenizer_dir': source} | kwargs,
    )
    return params

  def edit(self, changes, *, remove=()):
    file = self.path / 'model.safetensors'
    tensors = safetensors.numpy.load_file(file)
    tensors |= changes
    for name in remove:
      del tensors[name]
    safetensors.numpy.save_file(tensors, file)


class LoadParamsTest(HfTestCase):

  @parameterized.parameters(*CASES)
  def test_save_then_load_config(self, cfg):
    self.save(cfg)
    self.assertEqual(hf_config.load(self.path), cfg)

  @parameterized.product(
      cfg=CASES, scan=[False, True], shard_bytes=[10**9, 500]
  )
  def test_round_trip_is_exact(self, cfg, scan, shard_bytes):
    cfg = dataclasses.replace(cfg, scan_layers=scan)
    params = self.save(cfg, max_shard_bytes=shard_bytes)
    loaded = hf.load_params(self.path, cfg)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    files = sorted(self.path.glob('*.safetensors'))
    self.assertEqual(len(files) > 1, shard_bytes == 500)
    self.assertEqual(
        (self.path / 'model.safetensors.index.json').exists(), len(files) > 1
    )

  def test_bfloat16_in_file_and_in_memory(self):
    params = self.save(dtype='bfloat16')
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    loaded = hf.load_params(self.path, QWEN3, dtype='bfloat16')
    self.assertEqual(loaded['layers'][0]['qkv'].dtype, jnp.bfloat16)
    jax.tree.map(np.testing.assert_array_equal, loaded, rounded)
    loaded = hf.load_params(self.path, QWEN3, dtype='float32')
    jax.tree.map(np.testing.assert_array_equal, loaded, rounded)
    config = json.loads((self.path / 'config.json').read_text())
    self.assertEqual(config['torch_dtype'], 'bfloat16')

  def test_element_for_element(self):
    """In transformers, head n = k * R + r of q_proj has the rows n * H ..."""
    params = self.save(QWEN2)  # K = 2, R = 2, H = 2.
    file = safetensors.numpy.load_file(self.path / 'model.safetensors')
    layer, prefix = params['layers'][1], 'model.layers.1.self_attn.'
    # Width 5, kv head 1, its query 0, dimension 1: head 2, row 2 * 2 + 1.
    self.assertEqual(
        file[prefix + 'q_proj.weight'][5, 3], layer['qkv'][3, 1, 0, 1]
    )
    # Key of kv head 1, dimension 0: row 1 * 2 + 0; the same for its value.
    self.assertEqual(
        file[prefix + 'k_proj.weight'][2, 3], layer['qkv'][3, 1, 2, 0]
    )
    self.assertEqual(
        file[prefix + 'v_proj.weight'][2, 3], layer['qkv'][3, 1, 3, 0]
    )
    self.assertEqual(
        file[prefix + 'q_proj.bias'][5], layer['qkv_bias'][1, 0, 1]
    )
    self.assertEqual(
        file[prefix + 'v_proj.bias'][2], layer['qkv_bias'][1, 3, 0]
    )
    self.assertEqual(
        file[prefix + 'o_proj.weight'][3, 5], layer['out'][1, 0, 1, 3]
    )
    mlp = 'model.layers.1.mlp.'
    self.assertEqual(
        file[mlp + 'gate_proj.weight'][4, 3], layer['gate_up'][3, 0, 4]
    )
    self.assertEqual(
        file[mlp + 'up_proj.weight'][4, 3], layer['gate_up'][3, 1, 4]
    )
    self.assertEqual(file[mlp + 'down_proj.weight'][3, 4], layer['down'][4, 3])
    self.assertNotIn('lm_head.weight', file)  # Tied.

  @parameterized.product(cfg=[QWEN2, QWEN3], name=['qkv', 'out', 'gate_up'])
  def test_any_slice_of_a_leaf(self, cfg, name):
    """Shards read sub-ranges of every axis, across the parts."""
    params = self.save(cfg)
    expected = np.asarray(params['layers'][0][name])
    file = safetensors.numpy.load_file(self.path / 'model.safetensors')
    leaf = layout.layer_leaves(cfg, 0)[name]
    rng = np.random.default_rng(0)
    for _ in range(30):
      index = []
      for size in expected.shape:
        start = rng.integers(size)
        index.append(slice(int(start), int(rng.integers(start, size)) + 1))
      np.testing.assert_array_equal(
          leaf.read(file.__getitem__, tuple(index)), expected[tuple(index)]
      )

  def test_shards_of_a_padded_table(self):
    # The last of 8 shards lies beyond the rows of the file.
    file = {'embed': np.arange(56.0).reshape(14, 4)}
    part = layout.Part('embed', ((14,), (4,)), (0, 1))
    table = layout.Padded(layout.Leaf((part,), 0), 2)
    whole = np.concatenate([file['embed'], np.zeros((2, 4))])
    for start in range(0, 16, 2):
      found = table.read(
          file.__getitem__, (slice(start, start + 2), slice(1, 3))
      )
      np.testing.assert_array_equal(found, whole[start : start + 2, 1:3])

  def test_reads_only_the_slices_of_a_shard(self):
    self.save(QWEN2)
    read = []

    class Spy:

      def __init__(self, tensor):
        self.tensor = tensor

      def __getitem__(self, index):
        read.append(self.tensor[index].size)
        return self.tensor[index]

    file = safetensors.numpy.load_file(self.path / 'model.safetensors')
    # A quarter of D (fsdp) and one of two kv heads (tensor).
    index = (slice(0, 2), slice(1, 2), slice(None), slice(None))
    layout.layer_leaves(QWEN2, 0)['qkv'].read(lambda n: Spy(file[n]), index)
    self.assertEqual(read, [2 * 2 * 2, 2 * 2, 2 * 2])

  @parameterized.parameters(
      QWEN2, QWEN3, dataclasses.replace(LLAMA, scan_layers=True)
  )
  def test_tree_has_the_structure_of_init(self, cfg):
    self.save(cfg)
    shapes = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
    loaded = hf.load_params(self.path, cfg)
    self.assertEqual(
        jax.tree.map(lambda x: x.shape, loaded),
        jax.tree.map(lambda x: x.shape, shapes),
    )

  def test_tied_checkpoint_that_stores_its_head_again(self):
    params = self.save(QWEN2)
    self.edit({'lm_head.weight': np.zeros((11, 8), np.float32)})
    loaded = hf.load_params(self.path, hf.check_directory(self.path))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


class CheckDirectoryTest(HfTestCase):

  def assert_refused(self, pattern):
    with self.assertRaisesRegex(hf_config.ModelDirectoryError, pattern):
      hf.check_directory(self.path)
    if 'tokenizer' not in pattern:
      with self.assertRaisesRegex(hf_config.ModelDirectoryError, pattern):
        hf.load_params(self.path, QWEN3)

  def test_good(self):
    self.save()
    self.assertEqual(hf.check_directory(self.path), QWEN3)

  def test_touches_no_device(self):
    self.save()
    with mock.patch.object(jax, 'local_devices', side_effect=AssertionError):
      with mock.patch.object(jax, 'devices', side_effect=AssertionError):
        hf.check_directory(self.path)

  def test_all_tensor_problems_in_one_error(self):
    self.save()
    self.edit(
        {
            'model.norm.weight': np.zeros(7, np.float32),
            'model.layers.2.input_layernorm.weight': np.zeros(8, np.float32),
            'model.layers.0.mlp.up_proj.weight': np.zeros((6, 8), np.int8),
        },
        remove=['model.layers.1.self_attn.q_proj.weight', 'lm_head.weight'],
    )
    self.assert_refused(
        'in 5 places: missing model.layers.1.self_attn.q_proj.weight; missing'
        ' lm_head.weight; unexpected model.layers.2.input_layernorm.weight;'
        ' .*up_proj.weight has dtype I8.*; \\.\\.\\.'
    )

  def test_transposed_tensor(self):
    self.save()
    name = 'model.layers.0.mlp.up_proj.weight'
    self.edit({name: np.zeros((8, 6), np.float32)})
    self.assert_refused(rf'{name} has shape \(8, 6\), expected \(6, 8\)')

  @parameterized.parameters(4, 100, -1)
  def test_truncated_file(self, size):
    self.save()
    file = self.path / 'model.safetensors'
    data = file.read_bytes()
    file.write_bytes(data[:size])
    self.assert_refused('model.safetensors is missing or incomplete')

  def test_missing_and_truncated_shard(self):
    self.save(max_shard_bytes=500)
    second = sorted(self.path.glob('*.safetensors'))[1]
    second.write_bytes(second.read_bytes()[:-1])
    self.assert_refused(f'{second.name} is missing or incomplete')
    second.unlink()
    self.assert_refused(f'{second.name} is missing or incomplete')

  def test_broken_index(self):
    self.save(max_shard_bytes=500)
    index = self.path / 'model.safetensors.index.json'
    index.write_text('{"weight_map": {}}')
    self.assert_refused('index.json has no weight_map')
    index.write_text('{')
    self.assert_refused('index.json cannot be read as JSON')

  def test_no_weights(self):
    self.save()
    (self.path / 'model.safetensors').unlink()
    (self.path / 'pytorch_model.bin').touch()
    self.assert_refused('neither model.safetensors nor.*save_pretrained')

  def test_no_tokenizer(self):
    self.save(tokenizer_dir=None)
    self.assert_refused('no tokenizer.json')


class SaveTest(HfTestCase):

  def test_tokenizer_and_token_ids_are_carried_over(self):
    source = self.path.with_name('source')
    source.mkdir()
    (source / 'tokenizer.json').write_text('{}')
    (source / 'chat_template.jinja').write_text('template')
    (source / 'notes.txt').write_text('not ours')
    (source / 'config.json').write_text('{"eos_token_id": [3, 4]}')
    self.save(tokenizer_dir=source)
    self.assertEqual(
        sorted(p.name for p in self.path.iterdir()),
        [
            'chat_template.jinja',
            'config.json',
            'model.safetensors',
            'tokenizer.json',
        ],
    )
    config = json.loads((self.path / 'config.json').read_text())
    self.assertEqual(config['eos_token_id'], [3, 4])

  def test_tokenizer_dir_without_tokenizer(self):
    source = self.path.with_name('empty')
    source.mkdir()
    with self.assertRaisesRegex(
        hf_config.ModelDirectoryError, 'no tokenizer.json'
    ):
      self.save(tokenizer_dir=source)
    self.assertFalse(self.path.exists())

  def test_replaces_a_directory_and_may_read_from_it(self):
    self.save(QWEN2)
    params = self.save(QWEN3, tokenizer_dir=self.path)
    loaded = hf.load_params(self.path, hf.check_directory(self.path))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    left = sorted(p.name for p in self.path.parent.iterdir())
    self.assertEqual(left, ['model', 'source'])

  @parameterized.parameters((True, 1), (False, 0))
  def test_all_is_on_disk_before_it_has_its_name(self, durably, times):
    def sync(folder):
      self.assertFalse(self.path.exists())
      names = {file.name for file in folder.iterdir()}
      self.assertContainsSubset({'config.json', 'model.safetensors'}, names)

    with mock.patch.object(hf.durable, 'sync_tree', side_effect=sync) as synced:
      self.save(durably=durably)
    self.assertEqual(synced.call_count, times)
    self.assertTrue(self.path.exists())

  def test_failure_half_way_keeps_what_was_there(self):
    params = self.save(max_shard_bytes=500)
    real, calls = os.pwrite, []

    def full_disk(fd, data, at):
      calls.append(at)
      if len(calls) >= 7:
        raise OSError(errno.ENOSPC, 'No space left on device')
      return real(fd, data[: len(data) // 2 + 1], at)  # In two parts.

    with mock.patch.object(os, 'pwrite', full_disk):
      with self.assertRaisesRegex(OSError, 'No space left.*Free some space'):
        self.save(max_shard_bytes=500)
    loaded = hf.load_params(self.path, QWEN3)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    left = sorted(p.name for p in self.path.parent.iterdir())
    self.assertEqual(left, ['model', 'source'])

  @parameterized.product(cfg=CASES, scan=[False, True])
  def test_accelerators_bring_tensors_into_order(self, cfg, scan):
    """A program does on them what the host does for a CPU."""
    cfg = dataclasses.replace(cfg, scan_layers=scan)
    self.save(cfg)
    expected = (self.path / 'model.safetensors').read_bytes()
    with mock.patch.object(hf, '_platform', return_value='gpu') as asked:
      self.save(cfg)
    asked.assert_called()
    self.assertEqual((self.path / 'model.safetensors').read_bytes(), expected)

  def test_pieces_of_large_tensors(self):
    with mock.patch.object(tensor_files, '_PIECE_BYTES', 64):
      params = self.save()
    loaded = hf.load_params(self.path, QWEN3)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)

  def test_disk_too_small_is_found_first(self):
    usage = shutil.disk_usage('/')._replace(free=100)
    with mock.patch.object(shutil, 'disk_usage', return_value=usage):
      with self.assertRaisesRegex(OSError, 'needs .* bytes.* has 100 left'):
        self.save()
    self.assertFalse(self.path.exists())

  def test_leftovers_of_a_kill_do_no_harm(self):
    (self.path.parent / '.model.tmp').mkdir()
    (self.path.parent / '.model.tmp' / 'half.safetensors').touch()
    self.save()
    self.assertNotIn('half.safetensors', os.listdir(self.path))

  def test_unmerged_adapters_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'lora_rank=2.*lora.merge'):
      self.save(dataclasses.replace(QWEN3, lora_rank=2))


if __name__ == '__main__':
  absltest.main()
