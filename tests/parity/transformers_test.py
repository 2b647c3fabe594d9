"""Logits compared with transformers' PyTorch models, in both directions.

Needs torch (CPU build) in the test environment; otherwise skipped.
"""

import dataclasses
import functools
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from evojax import records
from evojax.models import decoder
from evojax.models import hf
from evojax.models import hf_config
from evojax.rollout import engine
from evojax.rollout import slots

torch = pytest.importorskip('torch', reason='parity tests need torch')
pytestmark = pytest.mark.torch

# Float32 through 4 layers, on logits of standard deviation ~1.
TOLERANCE = 2e-5

VOCABULARY = 97
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
FOUR = SHAPE | dict(num_hidden_layers=4)
LLAMA3 = dict(
    # H = 8: wavelengths 6, 63, 628, 6283 with thresholds 40 and 160: one is
    # kept, one blended, two are scaled.
    rope_type='llama3',
    rope_theta=10_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=160,
)
# The sequences of 40 tokens are longer than the original of 16.
YARN = dict(
    rope_type='yarn',
    rope_theta=10_000.0,
    factor=4.0,
    original_max_position_embeddings=16,
)
WINDOW = dict(use_sliding_window=True, sliding_window=7, max_window_layers=1)
LAYER_TYPES = ['sliding_attention', 'full_attention', 'sliding_attention']


def gemma3(**changes):
  options = SHAPE | dict(head_dim=12, query_pre_attn_scalar=20, pad_token_id=0)
  return transformers.Gemma3TextConfig(**options | changes)


CASES = {
    'qwen2_tied': transformers.Qwen2Config(
        **SHAPE,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'qwen2_untied': transformers.Qwen2Config(**SHAPE),
    'qwen2_windows': transformers.Qwen2Config(**SHAPE, **WINDOW),
    'qwen3_tied_head_dim_16': transformers.Qwen3Config(
        **SHAPE,
        tie_word_embeddings=True,
        head_dim=16,
        rope_parameters=dict(rope_type='default', rope_theta=1e6),
    ),
    'qwen3_untied_head_dim_4': transformers.Qwen3Config(
        **SHAPE, head_dim=4, rms_norm_eps=1e-5
    ),
    # As in DeepSeek-R1-0528-Qwen3-8B, whose attn_factor transformers ignores.
    'qwen3_deepseek': transformers.Qwen3Config(
        **SHAPE,
        head_dim=16,
        rope_parameters=YARN | dict(rope_theta=1e6, attn_factor=0.87),
    ),
    'qwen3_biases_windows': transformers.Qwen3Config(
        **SHAPE,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=5,
        layer_types=LAYER_TYPES,
        rope_parameters=YARN | dict(attention_factor=1.3, beta_fast=4.0),
    ),
    'llama3_tied': transformers.LlamaConfig(
        **SHAPE, tie_word_embeddings=True, rope_parameters=LLAMA3
    ),
    'llama_untied': transformers.LlamaConfig(
        **SHAPE | dict(num_key_value_heads=6), rms_norm_eps=1e-5
    ),
    'llama_biases_linear': transformers.LlamaConfig(
        **SHAPE,
        attention_bias=True,
        rope_parameters=dict(
            rope_type='linear', rope_theta=10_000.0, factor=3.0
        ),
    ),
    # A scaling that begins only beyond the length of the longest sequence.
    'llama_dynamic': transformers.LlamaConfig(
        **SHAPE | dict(max_position_embeddings=40),
        rope_parameters=dict(
            rope_type='dynamic', rope_theta=10_000.0, factor=2.0
        ),
    ),
    'llama_yarn_mscale': transformers.LlamaConfig(
        **SHAPE,
        rope_parameters=YARN
        | dict(mscale=1.0, mscale_all_dim=0.5, truncate=False, beta_slow=2.0),
    ),
    'mistral_windows': transformers.MistralConfig(
        **SHAPE, head_dim=12, sliding_window=9
    ),
    'mistral': transformers.MistralConfig(**SHAPE, sliding_window=None),
    'gemma3': gemma3(
        num_hidden_layers=4, sliding_window=6, sliding_window_pattern=3
    ),
    'gemma3_biases_linear': gemma3(
        attention_bias=True,
        tie_word_embeddings=False,
        sliding_window=11,
        layer_types=LAYER_TYPES,
        rope_parameters={
            'full_attention': dict(
                rope_type='linear', rope_theta=1e6, factor=8.0
            ),
            'sliding_attention': dict(rope_type='default', rope_theta=1e3),
        },
    ),
    'smollm3': transformers.SmolLM3Config(
        **FOUR, no_rope_layer_interval=2, pad_token_id=0
    ),
    'smollm3_windows': transformers.SmolLM3Config(
        **FOUR,
        no_rope_layers=[1, 0, 0, 1],
        use_sliding_window=True,
        sliding_window=8,
        attention_bias=True,
        pad_token_id=0,
    ),
}
named_cases = parameterized.named_parameters(*CASES.items())
some_cases = lambda *names: parameterized.named_parameters(
    (name, CASES[name]) for name in names
)
# One model per family, with all features that it can have.
SAMPLED = (
    'qwen2_windows',
    'qwen3_biases_windows',
    'llama_yarn_mscale',
    'mistral_windows',
    'gemma3',
    'smollm3_windows',
)


def random_model(config, seed=0):
  """Return a model with random parameters, including norms and biases."""
  model = transformers.AutoModelForCausalLM.from_config(
      config, dtype=torch.float32, attn_implementation='eager'
  )
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for name, p in model.named_parameters():
      p.normal_(0, 0.5 if p.ndim == 1 else 0.15, generator=generator)
      if 'norm' in name and config.model_type != 'gemma3_text':
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
    self.tokens = rng.integers(0, VOCABULARY, (3, 40))
    self.positions = np.broadcast_to(np.arange(40), (3, 40))

  def assert_close(self, ours, theirs):
    # Otherwise the tolerance proves nothing.
    self.assertGreater(np.std(theirs), 0.5)
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)

  def load(self, config, seed=0):
    """Return their checkpoint through the disk: (their model, cfg, params)."""
    model = random_model(config, seed)
    model.save_pretrained(self.path, max_shard_size='50KB')
    cfg = hf_config.load(self.path)
    return model, cfg, hf.load_params(self.path, cfg)

  @named_cases
  def test_logits_of_their_checkpoint(self, config):
    ones = np.ones_like(self.tokens)
    for seed in range(3):
      model, cfg, params = self.load(config, seed)
      theirs = their_logits(model, self.tokens)
      ours = our_logits(cfg, params, self.tokens, self.positions, ones)
      self.assert_close(ours, theirs)
    scanned = dataclasses.replace(cfg, scan_layers=True)
    params = hf.load_params(self.path, scanned)
    ours = our_logits(scanned, params, self.tokens, self.positions, ones)
    self.assert_close(ours, theirs)

  @some_cases('qwen2_tied', 'llama3_tied', *SAMPLED)
  def test_padded_and_packed_rows(self, config):
    model, cfg, params = self.load(config)
    lengths = (40, 17, 1)
    mask = (np.arange(40) < np.array(lengths)[:, None]).astype(np.int64)
    theirs = their_logits(model, self.tokens, mask)
    ours = our_logits(cfg, params, self.tokens, self.positions, mask)
    for b, n in enumerate(lengths):
      self.assert_close(ours[b, :n], theirs[b, :n])
    # The same three sequences, cut to 20, 17 and 1 tokens, packed into one row
    # of 40. The row is repeated, since our program has three rows.
    lengths = (20, 17, 1)
    rows = [self.tokens[b, :n] for b, n in enumerate(lengths)]
    pad = 40 - sum(lengths)
    packed = np.concatenate([*rows, np.zeros(pad, int)])
    positions = np.concatenate([np.arange(n) for n in (*lengths, pad)])
    segments = np.repeat([1, 2, 3, 0], [*lengths, pad])
    thrice = [np.tile(x, (3, 1)) for x in (packed, positions, segments)]
    ours = our_logits(cfg, params, *thrice)[0]
    start = 0
    for b, n in enumerate(lengths):
      self.assert_close(ours[start : start + n], theirs[b, :n])
      start += n

  @some_cases(*SAMPLED)
  def test_the_sampler(self, config):
    """Prefill in chunks, decode, and a second turn from the prefix cache."""
    model, cfg, params = self.load(config)
    sampler = engine.Engine(
        cfg,
        slots.Shapes(
            max_prompt_tokens=32,
            max_tokens=10,
            decode_slots=2,
            prefill_rows=2,
            prefill_chunk=8,
            prefix_chunks=8,
        ),
        eos_ids=(0,),
        decode_text=str,
        refill_every=4,
    )
    sampler.update_weights(params, 0)

    def check(prompts):
      requests = [
          records.Request(
              tuple(prompt),
              0,
              number,
              0,
              records.SamplingParams(
                  max_tokens=10, temperature=1.0 * number, ignore_eos=True
              ),
          )
          for number, prompt in enumerate(prompts)
      ]
      answers = sampler.generate(requests)
      pairs = zip(prompts, answers, strict=True)
      rows = [[*prompt, *answer.tokens.tolist()] for prompt, answer in pairs]
      for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        theirs = their_logits(model, [row])[0, len(prompt) - 1 : -1]
        tokens = answers[number].tokens
        if not number:  # The first sample is greedy.
          np.testing.assert_array_equal(tokens, theirs.argmax(-1))
        logprobs = torch.tensor(theirs).log_softmax(-1).numpy()
        found = logprobs[np.arange(10), tokens]
        np.testing.assert_allclose(
            answers[number].logprobs, found, atol=TOLERANCE
        )
      return rows

    first = check([self.tokens[0, :19].tolist(), self.tokens[1, :12].tolist()])
    assigned = []
    assign = sampler.slots.assign
    with mock.patch.object(
        sampler.slots, 'assign', lambda *a: (assigned.append(a[1]), assign(*a))
    ):
      check([[*row[:29], 5, 6] for row in first])
    self.assertTrue(any(map(len, assigned[0].values())))

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
    np.testing.assert_array_equal(their_logits(loaded, self.tokens), theirs)
    self.assertEqual(hf_config.load(copy), cfg)
    again = hf.load_params(copy, cfg)
    jax.tree.map(np.testing.assert_array_equal, again, params)

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
