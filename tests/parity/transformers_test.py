"""Logits against transformers' own PyTorch models, both ways through disk.

Needs torch (CPU build) in the test environment; skipped where it is absent.
"""

import dataclasses
import functools
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from evojax.models import decoder
from evojax.models import hf
from evojax.models import hf_config

torch = pytest.importorskip('torch', reason='parity tests need torch')
pytestmark = pytest.mark.torch

# Float32 through 3 layers on logits of standard deviation ~1.
TOLERANCE = 1e-4

SHAPE = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
LLAMA3 = dict(
    # H = 8: wavelengths 6, 63, 628, 6283 over thresholds 40 and 160: a band
    # that is kept, one that is blended, two that are slowed.
    rope_type='llama3',
    rope_theta=10_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=160,
)
CASES = {
    'qwen2_tied': transformers.Qwen2Config(
        **SHAPE,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'qwen2_untied': transformers.Qwen2Config(**SHAPE),
    'qwen3_tied_head_dim_16': transformers.Qwen3Config(
        **SHAPE,
        tie_word_embeddings=True,
        head_dim=16,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'qwen3_untied_head_dim_4': transformers.Qwen3Config(
        **SHAPE, head_dim=4, rms_norm_eps=1e-5
    ),
    'llama3_tied': transformers.LlamaConfig(
        **SHAPE, tie_word_embeddings=True, rope_parameters=LLAMA3
    ),
    'llama_untied': transformers.LlamaConfig(
        **SHAPE | dict(num_key_value_heads=6), rms_norm_eps=1e-5
    ),
}
named_cases = parameterized.named_parameters(*CASES.items())


def random_model(config):
  """A model whose every parameter is random, norms and biases included."""
  model = transformers.AutoModelForCausalLM.from_config(
      config, dtype=torch.float32, attn_implementation='eager'
  )
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, p in model.named_parameters():
      p.normal_(0, 0.5 if p.ndim == 1 else 0.2, generator=generator)
      if 'norm' in name:
        p.add_(1)
  return model.eval()


def their_logits(model, tokens, mask=None, positions=None):
  as_tensor = lambda x: None if x is None else torch.tensor(np.asarray(x))
  with torch.no_grad():
    return model(
        as_tensor(tokens),
        attention_mask=as_tensor(mask),
        position_ids=as_tensor(positions),
    ).logits.numpy()


@functools.partial(jax.jit, static_argnums=0)
def our_logits(cfg, params, tokens, positions, segment_ids):
  hidden = decoder.forward(cfg, params, tokens, positions, segment_ids)
  return decoder.logits(cfg, params, hidden)


class TransformersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    scratch = tempfile.TemporaryDirectory()
    self.addCleanup(scratch.cleanup)
    self.path = pathlib.Path(scratch.name) / 'model'
    rng = np.random.default_rng(0)
    self.tokens = rng.integers(0, 97, (3, 40))
    self.positions = np.broadcast_to(np.arange(40), (3, 40))

  def assert_close(self, ours, theirs):
    self.assertGreater(np.std(theirs), 0.5)  # Or the tolerance says nothing.
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)

  def load(self, config):
    """Their checkpoint through the disk: (their model, our cfg, our params)."""
    model = random_model(config)
    model.save_pretrained(self.path, max_shard_size='50KB')
    cfg = hf_config.load(self.path)
    return model, cfg, hf.load_params(self.path, cfg)

  @named_cases
  def test_logits_of_their_checkpoint(self, config):
    model, cfg, params = self.load(config)
    ones = np.ones_like(self.tokens)
    ours = our_logits(cfg, params, self.tokens, self.positions, ones)
    self.assert_close(ours, their_logits(model, self.tokens))
    scanned = dataclasses.replace(cfg, scan_layers=True)
    params = hf.load_params(self.path, scanned)
    ours = our_logits(scanned, params, self.tokens, self.positions, ones)
    self.assert_close(ours, their_logits(model, self.tokens))

  @parameterized.named_parameters(
      (name, CASES[name]) for name in ('qwen2_tied', 'llama3_tied')
  )
  def test_padded_and_packed_rows(self, config):
    model, cfg, params = self.load(config)
    lengths = (40, 17, 1)
    mask = (np.arange(40) < np.array(lengths)[:, None]).astype(np.int64)
    theirs = their_logits(model, self.tokens, mask)
    ours = our_logits(cfg, params, self.tokens, self.positions, mask)
    for b, n in enumerate(lengths):
      self.assert_close(ours[b, :n], theirs[b, :n])
    # The same three sequences, cut to 20, 17 and 1 tokens, in one row of 40.
    lengths = (20, 17, 1)
    rows = [self.tokens[b, :n] for b, n in enumerate(lengths)]
    pad = 40 - sum(lengths)
    packed = np.concatenate([*rows, np.zeros(pad, int)])[None]
    positions = np.concatenate([np.arange(n) for n in (*lengths, pad)])[None]
    segments = np.repeat([1, 2, 3, 0], [*lengths, pad])[None]
    ours = our_logits(cfg, params, packed, positions, segments)[0]
    start = 0
    for b, n in enumerate(lengths):
      self.assert_close(ours[start : start + n], theirs[b, :n])
      start += n

  @named_cases
  def test_their_logits_of_our_directory(self, config):
    model, cfg, params = self.load(config)
    theirs = their_logits(model, self.tokens)
    copy = self.path.with_name('copy')
    hf.save(copy, cfg, params, dtype='float32', max_shard_bytes=50_000)
    self.assertGreater(len(list(copy.glob('*.safetensors'))), 1)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        copy, attn_implementation='eager', output_loading_info=True
    )
    self.assertEqual({k: list(v) for k, v in info.items() if v}, {})
    self.assertEqual(type(loaded), type(model))
    self.assertEqual(loaded.dtype, torch.float32)
    self.assert_close(their_logits(loaded, self.tokens), theirs)

  def test_bfloat16_directory(self):
    model, cfg, params = self.load(CASES['qwen3_tied_head_dim_16'])
    copy = self.path.with_name('copy')
    hf.save(copy, cfg, params, dtype='bfloat16')
    loaded = transformers.AutoModelForCausalLM.from_pretrained(copy)
    self.assertEqual(loaded.dtype, torch.bfloat16)
    # Rounding to bfloat16 is the same in both libraries.
    expected = model.model.embed_tokens.weight.bfloat16()
    self.assertTrue(torch.equal(loaded.model.embed_tokens.weight, expected))
    params = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params
    )
    ours = our_logits(
        cfg, params, self.tokens, self.positions, np.ones_like(self.tokens)
    )
    self.assert_close(ours, their_logits(loaded.float(), self.tokens))


if __name__ == '__main__':
  absltest.main()
