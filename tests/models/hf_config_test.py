"""Tests of reading config.json, and of refusing unsupported models."""

import contextlib
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.models import decoder
from evojax.models import hf_config
from evojax.models import rope

CONFIG = {  # As transformers 4 wrote it for Llama 3.
    'model_type': 'llama',
    'vocab_size': 11,
    'hidden_size': 8,
    'intermediate_size': 6,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'max_position_embeddings': 64,
    'rms_norm_eps': 1e-5,
    'hidden_act': 'silu',
    'rope_theta': 5e5,
    'tie_word_embeddings': True,
    'rope_scaling': {
        'rope_type': 'llama3',
        'factor': 8.0,
        'low_freq_factor': 1.0,
        'high_freq_factor': 4.0,
        'original_max_position_embeddings': 16,
    },
}
LLAMA = decoder.DecoderConfig(
    family='llama',
    vocab_size=11,
    hidden_size=8,
    intermediate_size=6,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    rope_theta=5e5,
    rope_scaling=rope.Llama3(8.0, 1.0, 4.0, 16),
    rms_norm_eps=1e-5,
    max_positions=64,
)


class LoadTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    scratch = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(scratch) / 'model'

  def write_config(self, **changes):
    self.path.mkdir(exist_ok=True)
    (self.path / 'config.json').write_text(json.dumps(CONFIG | changes))

  def test_llama3_with_old_keys(self):
    self.write_config()
    self.assertEqual(hf_config.load(self.path), LLAMA)

  def test_llama3_with_the_keys_of_transformers_5(self):
    keys = {'rope_theta': 5e5, **CONFIG['rope_scaling']}
    self.write_config(rope_parameters=keys, rope_scaling=None, rope_theta=None)
    self.assertEqual(hf_config.load(self.path), LLAMA)

  def test_defaults_of_absent_keys(self):
    self.write_config(
        rope_scaling=None, rope_theta=10_000.0, num_key_value_heads=None
    )
    cfg = hf_config.load(self.path)
    self.assertEqual(cfg.num_kv_heads, 4)
    self.assertEqual(cfg.head_dim, 2)  # hidden_size / num_attention_heads.
    self.assertIsNone(cfg.rope_scaling)
    self.write_config(model_type='qwen3')
    self.assertEqual(hf_config.load(self.path).head_dim, 128)

  @parameterized.named_parameters(
      ('family', {'model_type': 'gemma'}, "model_type='gemma'.*'qwen2'"),
      ('no_family', {'model_type': None}, 'model_type=None'),
      (
          'images',
          {'model_type': 'gemma3', 'text_config': {'hidden_size': 8}},
          "model_type='gemma3'.*Save its text model alone, with text_config",
      ),
      (
          'experts',
          {'model_type': 'qwen3_moe', 'num_experts': 8},
          "model_type='qwen3_moe'.*Use a dense text model",
      ),
      (
          'layer_types',
          {'layer_types': ['full_attention', 'sliding_attention']},
          "layer_types='sliding_attention' .supported: 'full_attention'",
      ),
      (
          'layer_types_of_no_window',
          {'model_type': 'qwen2', 'layer_types': ['sliding_attention'] * 2},
          'use_sliding_window=False',
      ),
      (
          'too_few_layer_types',
          {'model_type': 'gemma3_text', 'layer_types': ['full_attention']},
          r"layer_types=\['full_attention'\].*num_hidden_layers=2",
      ),
      (
          'layer_types_that_are_not_read',
          {'model_type': 'mistral', 'layer_types': ['full_attention'] * 2},
          'sliding_window=4096',
      ),
      (
          'window',
          {'model_type': 'mistral', 'sliding_window': -1},
          "'sliding_window': -1",
      ),
      (
          'pattern',
          {'model_type': 'gemma3_text', 'sliding_window_pattern': 0},
          "'sliding_window_pattern': 0",
      ),
      (
          'no_rope_layers',
          {'model_type': 'smollm3', 'no_rope_layers': [1]},
          r'no_rope_layers=\[1\].*num_hidden_layers=2',
      ),
      (
          'softcap',
          {'model_type': 'gemma3_text', 'final_logit_softcapping': 30.0},
          'final_logit_softcapping=30.0 .supported: None',
      ),
      (
          'scaled_windows',
          {
              'model_type': 'gemma3_text',
              'rope_parameters': {
                  'sliding_attention': {'rope_type': 'linear', 'factor': 2.0}
              },
          },
          "rope type of sliding_attention='linear'",
      ),
      ('mlp_bias', {'mlp_bias': True}, 'mlp_bias=True'),
      ('activation', {'hidden_act': 'gelu'}, "hidden_act='gelu'"),
      (
          'longrope',
          {'rope_scaling': {'type': 'longrope', 'factor': 4}},
          "rope type='longrope'.*'yarn'",
      ),
      (
          'yarn_without_factor',
          {'rope_parameters': {'rope_type': 'yarn'}, 'rope_scaling': None},
          "rope type yarn needs 'factor'",
      ),
      (
          'yarn_of_text',
          {'rope_scaling': {'rope_type': 'yarn', 'factor': '4'}},
          "rope type yarn has factor='4'",
      ),
      (
          'partial_rotary',
          {'rope_parameters': {'partial_rotary_factor': 0.5}},
          'partial_rotary_factor=0.5',
      ),
      (
          'quantized',
          {'quantization_config': {'bits': 4}},
          'quantization_config',
      ),
      ('negative', {'num_hidden_layers': -1}, "'num_hidden_layers': -1"),
      ('text', {'hidden_size': '8'}, "'hidden_size': '8'"),
      ('absent', {'vocab_size': None}, "'vocab_size': None"),
      (
          'groups',
          {'num_key_value_heads': 3},
          'num_attention_heads=4 must be a multiple of num_key_value_heads=3',
      ),
      (
          'llama3_incomplete',
          {'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0}},
          "needs 'low_freq_factor'",
      ),
  )
  def test_refused(self, changes, message):
    self.write_config(**changes)
    with self.assertRaisesRegex(hf_config.ModelDirectoryError, message):
      hf_config.load(self.path)

  def test_deepseek_r1_0528_qwen3(self):
    """Its rope_scaling, whose attn_factor transformers ignores."""
    yarn = {
        'rope_type': 'yarn',
        'factor': 4.0,
        'original_max_position_embeddings': 16,
        'attn_factor': 0.8782488562869419,
    }
    self.write_config(model_type='qwen3', head_dim=2, rope_scaling=yarn)
    cfg = hf_config.load(self.path)
    self.assertEqual(cfg.rope_scaling, rope.Yarn(4.0, 16))
    self.assertAlmostEqual(cfg.rope_scaling.attention, 1.1386294)

  @parameterized.parameters(
      ({}, None),
      ({'attn_factor': 0.878248856}, 'attn_factor, here 0.878.*factor=1 .*=1 '),
      ({'attention_factor': 1.0}, 'here 1, .*means 0.878249'),
      ({'attention_factor': 1.0, 'attn_factor': 0.878248856}, None),
  )
  def test_servers_read_another_factor_of_yarn(self, changes, warning):
    # 1.1386294 * 0.878248856 = 1; 1.1386294 = 1 + 0.1 log(4).
    yarn = {
        'rope_type': 'yarn',
        'factor': 4.0,
        'original_max_position_embeddings': 16,
    }
    self.write_config(rope_scaling=yarn | changes)
    with contextlib.ExitStack() as stack:
      if warning is None:
        stack.enter_context(self.assertNoLogs('absl'))
      else:
        logs = stack.enter_context(self.assertLogs('absl'))
      cfg = hf_config.load(self.path)
    if warning is not None:
      self.assertRegex(logs.output[0], warning)
    # The written config means the same for both readers.
    written = hf_config.dump(cfg, 'float32', {})
    self.write_config(**written)
    with self.assertNoLogs('absl'):
      self.assertEqual(hf_config.load(self.path), cfg)

  def test_gemma3_of_the_hub(self):
    """It has old keys, and defaults that differ from other families'."""
    rope_keys = dict(rope_theta=1e6, rope_local_base_freq=10_000)
    self.write_config(
        model_type='gemma3_text',
        num_hidden_layers=7,
        hidden_activation='gelu_pytorch_tanh',
        sliding_window=512,
        sliding_window_pattern=3,
        rope_scaling=None,
        **rope_keys,
    )
    cfg = hf_config.load(self.path)
    self.assertEqual(cfg.sliding, (True, True, False) * 2 + (True,))
    self.assertEqual(cfg.sliding_window, 512)
    self.assertEqual(cfg.sliding_rope_theta, 1e4)
    self.assertEqual(cfg.head_dim, 256)
    self.assertEqual(cfg.query_scalar, 256)
    config = dict(CONFIG, model_type='gemma3_text', rope_scaling=None)
    del config['tie_word_embeddings'], config['rope_theta']
    (self.path / 'config.json').write_text(json.dumps(config))
    cfg = hf_config.load(self.path)
    self.assertTrue(cfg.tie_embeddings)
    self.assertEqual(cfg.rope_theta, 1e6)
    self.assertEqual(cfg.activation, 'gelu_pytorch_tanh')

  @parameterized.parameters(
      ({}, (False, True)),
      ({'max_window_layers': 0}, (True, True)),
      ({'max_window_layers': 2}, ()),
      ({'use_sliding_window': False}, ()),
      ({'sliding_window': None}, ()),
  )
  def test_windows_of_qwen(self, changes, sliding):
    usual = dict(
        model_type='qwen2',
        use_sliding_window=True,
        sliding_window=5,
        max_window_layers=1,
    )
    self.write_config(**usual | changes)
    cfg = hf_config.load(self.path)
    self.assertEqual(cfg.sliding, sliding)
    self.assertEqual(cfg.sliding_window, 5 if sliding else 0)

  def test_two_problems_are_one_error(self):
    self.write_config(mlp_bias=True, hidden_act='gelu')
    with self.assertRaisesRegex(
        hf_config.ModelDirectoryError, 'gelu.*mlp_bias'
    ):
      hf_config.load(self.path)

  @parameterized.parameters('{"model_type": ', '[]', '')
  def test_broken_json(self, text):
    self.path.mkdir()
    (self.path / 'config.json').write_text(text)
    with self.assertRaisesRegex(
        hf_config.ModelDirectoryError, 'config.json.*JSON'
    ):
      hf_config.load(self.path)

  def test_no_directory(self):
    with self.assertRaisesRegex(
        hf_config.ModelDirectoryError,
        'Qwen/Qwen3-8B has no config.json.*hf download',
    ):
      hf_config.load('Qwen/Qwen3-8B')


if __name__ == '__main__':
  absltest.main()
