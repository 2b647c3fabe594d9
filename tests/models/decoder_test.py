"""One layer serves four uses, which must agree."""

import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import cache as cache_lib
from evojax.models import decoder
from evojax.models import rope
from tests import forward

# Float32 sums in a different order; hidden states are of order 1.
ATOL = 1e-5

CFG = dataclasses.replace(forward.CFG, vocab_size=61)
# All features of a family: a window of 3 tokens in the first layer, which has
# its own theta, and no positions in the last.
GEMMA3 = dataclasses.replace(
    CFG,
    family='gemma3_text',
    num_layers=3,
    qkv_bias=True,
    out_bias=True,
    post_norms=True,
    norm_plus_one=True,
    scale_embeddings=True,
    activation='gelu_pytorch_tanh',
    query_scalar=20,
    sliding_window=3,
    sliding=(True, False, False),
    sliding_rope_theta=100.0,
    unrotated=(False, False, True),
    rope_scaling=rope.Yarn(4.0, 64),
)


forward = jax.jit(decoder.forward, static_argnums=0)
forward_shared = jax.jit(decoder.forward_shared, static_argnums=0)
extend = jax.jit(decoder.extend, static_argnums=0)
decode = jax.jit(decoder.decode, static_argnums=0)


def example(cfg):
  """Return (params, prompts [3, 7], lengths, completions [3, 2, 5])."""
  rng = np.random.default_rng(0)

  def random(leaf):  # In NumPy, since compiling `init` takes longer.
    scale = leaf.ndim == 1 and not cfg.norm_plus_one  # Norms.
    return np.float32(0.15 * rng.standard_normal(leaf.shape) + scale)

  unrolled = dataclasses.replace(cfg, scan_layers=False)
  params = jax.tree.map(random, decoder.shapes(unrolled))
  if cfg.scan_layers:
    params['layers'] = decoder.stack_layers(params['layers'])
  return (
      params,
      jnp.asarray(rng.integers(0, cfg.vocab_size, (3, 7))),
      jnp.asarray([4, 7, 1]),
      jnp.asarray(rng.integers(0, cfg.vocab_size, (3, 2, 5))),
  )


def one_by_one(cfg, params, prompts, lengths, completions):
  """Return hidden states that predict each token, computed separately."""
  p, g, t = completions.shape
  tokens = np.zeros((p, g, prompts.shape[1] + t), int)
  segments = np.zeros_like(tokens)
  for row, n in enumerate(lengths):
    tokens[row, :, :n] = prompts[row, :n]
    tokens[row, :, n : n + t] = completions[row]
    segments[row, :, : n + t] = 1
  flat = lambda x: x.reshape(p * g, -1)
  positions = np.broadcast_to(np.arange(tokens.shape[-1]), tokens.shape)
  hidden = forward(cfg, params, *map(flat, (tokens, positions, segments)))
  hidden = np.asarray(hidden).reshape(*tokens.shape, -1)
  return np.stack([h[:, n - 1 : n - 1 + t] for h, n in zip(hidden, lengths)])


class DecoderTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('unrolled', {}),
      ('scanned', dict(scan_layers=True)),
      ('remat', dict(remat='full')),
      ('remat_dots_scanned', dict(remat='dots', scan_layers=True)),
      ('qwen2', dict(family='qwen2', qkv_bias=True, qk_norm=False)),
      ('untied', dict(tie_embeddings=False)),
      ('one_kv_head', dict(num_kv_heads=1)),
      ('windows', vars(GEMMA3)),
      ('windows_scanned', vars(GEMMA3) | dict(scan_layers=True, remat='full')),
  )
  def test_shared_prefix_equals_separate_sequences(self, changes):
    cfg = dataclasses.replace(CFG, **changes)
    args = example(cfg)
    shared = forward_shared(cfg, *args)
    np.testing.assert_allclose(shared, one_by_one(cfg, *args), atol=ATOL)

  @parameterized.parameters(
      (CFG, dict(MOST_QUERIES=4, QUERY_BLOCK=2)),
      (GEMMA3, dict(MOST_QUERIES=4, QUERY_BLOCK=3)),
      (CFG, dict(CAUSAL_BLOCK=3)),
      (GEMMA3, dict(CAUSAL_BLOCK=2)),
  )
  def test_blocks_of_queries_change_nothing(self, cfg, sizes):
    """For prompts of 7 and completions of 5, the last blocks are not full."""
    params, *texts = example(cfg)

    def results(params):
      shared = decoder.forward_shared(cfg, params, *texts)
      tokens = texts[0]
      at = jnp.broadcast_to(jnp.arange(7), tokens.shape)
      segments = jnp.array([[1, 1, 1, 2, 2, 2, 0]] * 3)
      packed = decoder.forward(cfg, params, tokens, at, segments)
      return shared, packed[:, :6]

    def both(params):
      return results(params), jax.grad(
          lambda p: sum(jnp.sin(x).sum() for x in results(p))
      )(params)

    want = jax.jit(both)(params)
    with mock.patch.multiple(decoder, **sizes):
      got = jax.jit(lambda p: both(p))(params)
    # Sums over 100 tokens.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4),
        got,
        want,
    )

  def test_prompt_padding_is_never_read(self):
    params, prompts, lengths, completions = example(CFG)
    dirty = prompts.at[0, 4:].set(13).at[2, 1:].set(7)
    same = forward_shared(CFG, params, prompts, lengths, completions)
    also = forward_shared(CFG, params, dirty, lengths, completions)
    np.testing.assert_array_equal(same, also)

  def test_a_completion_sees_neither_its_siblings_nor_its_future(self):
    params, prompts, lengths, completions = example(CFG)
    base = forward_shared(CFG, params, prompts, lengths, completions)
    changed = completions.at[1, 0, 3].set((completions[1, 0, 3] + 1) % 61)
    other = forward_shared(CFG, params, prompts, lengths, changed)
    # Only position 4 of that completion reads token 3.
    different = np.abs(np.asarray(base - other)).max(-1) > 1e-6
    self.assertEqual(np.argwhere(different).tolist(), [[1, 0, 4]])

  # The prompt fills the whole cache or a part of it.
  @parameterized.parameters(
      (CFG, False, 12),
      (CFG, True, 7),
      (GEMMA3, False, 7),
      (GEMMA3, True, 12),
      (GEMMA3, True, 7, True),
  )
  def test_cached_decode_equals_full_forward(
      self, base, scan_layers, slots, as_on_gpus=False
  ):
    if as_on_gpus:
      on_gpu = lambda *args, cuda, **others: cuda(*args)
      self.enter_context(
          mock.patch.object(jax.lax, 'platform_dependent', on_gpu)
      )
      jax.clear_caches()  # Traced anew, and once more after this test.
      self.addCleanup(jax.clear_caches)
    cfg = dataclasses.replace(base, scan_layers=scan_layers)
    params, prompts, lengths, completions = example(cfg)
    want = one_by_one(cfg, params, prompts, lengths, completions)[:, 0]
    cache = cache_lib.empty(cfg, 3, slots)
    start = jnp.zeros(3, jnp.int32)
    hidden, cache = extend(cfg, params, prompts, start, cache)
    cache = jax.tree.map(
        lambda c: jnp.pad(
            c, [(0, 0)] * (c.ndim - 2) + [(0, 12 - slots), (0, 0)]
        ),
        cache,
    )
    last = hidden[jnp.arange(3), lengths - 1]
    np.testing.assert_allclose(last, want[:, 0], atol=ATOL)
    for t in range(4):
      at = lengths + t
      hidden, cache = decode(
          cfg, params, completions[:, 0, t], at, cache, at.max() + 1
      )
      np.testing.assert_allclose(hidden, want[:, t + 1], atol=ATOL)

  @parameterized.parameters(
      (CFG, 'float32'), (GEMMA3, 'float32'), (CFG, 'bfloat16')
  )
  def test_a_long_cache_is_read_in_blocks(self, base, dtype):
    """Rows at 5, 300 and 598 of 601 slots; blocks of 128, the last overlaps."""
    cfg = dataclasses.replace(base, compute_dtype=dtype)
    params, *_ = example(cfg)
    rng = np.random.default_rng(1)
    cache = cache_lib.empty(cfg, 3, 601)
    random = lambda c: jnp.asarray(rng.standard_normal(c.shape), c.dtype)
    cache = jax.tree.map(random, cache)
    self.assertEqual(cache_lib.key_block(601), 128)
    tokens = jnp.asarray(rng.integers(0, cfg.vocab_size, (3, 3)))
    start = jnp.asarray([5, 300, 598])

    def results(rows):  # The other rows write nothing and are not read.
      at = jnp.where(jnp.isin(jnp.arange(3), jnp.asarray(rows)), start, 601)
      hidden, kept = both[0](params, tokens, at, cache)
      last = start + 2
      used = last[jnp.asarray(rows)].max() + 1
      one, _ = both[1](params, tokens[:, 0], last, kept, used)
      return [np.asarray(x, np.float32)[rows] for x in (hidden, one)]

    def compile_both():
      functions = decoder.extend, decoder.decode
      return [jax.jit(functools.partial(f, cfg)) for f in functions]

    both = compile_both()
    with mock.patch.object(cache_lib, 'MOST_SLOTS', 1000):
      want = results([0, 1, 2])
    both = compile_both()
    got = results([0, 1, 2])
    # Activations are about 1. In bfloat16 the largest difference is 0.06 with
    # jax 0.10.2, and 0.11 with 0.11.2.
    tolerance = ATOL if dtype == 'float32' else 0.2
    for x, y in zip(got, want, strict=True):
      np.testing.assert_allclose(x, y, atol=tolerance)
    # To the bit, a row's results do not depend on the others' places.
    for row in range(3):
      for x, y in zip(results([row]), got, strict=True):
        np.testing.assert_array_equal(x[0], y[row])

  @parameterized.parameters(CFG, GEMMA3)
  def test_packed_segments_equal_separate_rows(self, cfg):
    params, prompts, _, _ = example(cfg)
    a, b = prompts[0, :3], prompts[1, :4]
    packed = forward(
        cfg,
        params,
        jnp.concatenate([a, b, jnp.zeros(2, a.dtype)])[None],
        jnp.asarray([[0, 1, 2, 0, 1, 2, 3, 0, 1]]),
        jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0, 0]]),
    )
    for row, part in ((a, packed[0, :3]), (b, packed[0, 3:7])):
      n = row.shape[0]
      alone = forward(
          cfg,
          params,
          jnp.pad(row, (0, 9 - n))[None],
          jnp.arange(9)[None],
          (jnp.arange(9) < n)[None].astype(int),
      )
      np.testing.assert_allclose(part, alone[0, :n], atol=ATOL)

  def test_scanned_and_unrolled_layers_agree(self):
    cfg = GEMMA3
    params, *args = example(cfg)
    scanned = dataclasses.replace(cfg, scan_layers=True)
    stacked = dict(params, layers=decoder.stack_layers(params['layers']))
    np.testing.assert_allclose(
        forward_shared(cfg, params, *args),
        forward_shared(scanned, stacked, *args),
        atol=ATOL,
    )

  def test_rope_depends_on_distance_alone(self):
    # Shifting all positions leaves every score, and so the output, unchanged.
    params, prompts, _, _ = example(CFG)
    run = lambda shift: forward(
        CFG,
        params,
        prompts,
        jnp.broadcast_to(jnp.arange(7) + shift, prompts.shape),
        jnp.ones_like(prompts),
    )
    np.testing.assert_allclose(run(0), run(100), atol=5e-5)
    swapped = forward(
        CFG,
        params,
        prompts,
        jnp.broadcast_to(jnp.arange(7)[::-1], (3, 7)),
        jnp.ones_like(prompts),
    )
    self.assertGreater(float(jnp.abs(run(0) - swapped).max()), 1e-2)

  def test_llama3_frequencies_by_hand(self):
    # H = 4, theta = 100: frequencies 1 and 0.1, wavelengths 6.28 and 62.8.
    # original 62.8 positions, low 1, high 4: ratio 10 -> unchanged; ratio 1 ->
    # smooth (1 - 1) / 3 = 0 -> divided by factor 8.
    scaling = rope.Llama3(8.0, 1.0, 4.0, 20 * np.pi)
    np.testing.assert_allclose(
        rope.frequencies(4, 100.0, scaling), [1.0, 0.1 / 8], rtol=1e-6
    )

  def test_yarn_by_hand(self):
    # H = 8, theta = 16: frequencies 1, 1/2, 1/4, 1/8. A wave of frequency f
    # makes 64 pi f / (2 pi) = 32 f turns within the original: 32, 16, 8, 4. All
    # of 16 turns or more are kept, those of 4 or fewer slowed by 4; half way in
    # between is half of both.
    scaling = rope.Yarn(
        4.0, 64 * np.pi, beta_fast=16.0, beta_slow=4.0, truncate=False
    )
    np.testing.assert_allclose(
        rope.frequencies(8, 16.0, scaling),
        [1.0, 1 / 2, 1 / 4 * (1 / 2 + 1 / 8), 1 / 32],
        rtol=1e-6,
    )
    self.assertAlmostEqual(scaling.attention, 1 + 0.1 * np.log(4))
    cos, sin = rope.table(jnp.arange(2), 8, 16.0, scaling)
    np.testing.assert_allclose(cos[0], 1 + 0.1 * np.log(4), rtol=1e-6)
    np.testing.assert_allclose(cos**2 + sin**2, cos[0, 0] ** 2, rtol=1e-6)
    scaled = dataclasses.replace(scaling, mscale=2.0, mscale_all_dim=1.0)
    self.assertAlmostEqual(
        scaled.attention, (1 + 0.2 * np.log(4)) / (1 + 0.1 * np.log(4))
    )

  def test_a_window_ends_where_it_ends(self):
    """With windows in one layer, token t + 3 is the first not to see token
    t."""
    cfg = dataclasses.replace(
        CFG,
        num_layers=1,
        sliding_window=3,
        sliding=(True,),
    )
    params, tokens, _, _ = example(cfg)
    other = tokens.at[:, 2].set((tokens[:, 2] + 1) % 61)
    run = lambda tokens: forward(
        cfg,
        params,
        tokens,
        jnp.broadcast_to(jnp.arange(7), (3, 7)),
        jnp.ones_like(tokens),
    )
    different = np.abs(np.asarray(run(tokens) - run(other))).max((0, 2)) > 1e-6
    self.assertEqual(np.flatnonzero(different).tolist(), [2, 3, 4])

  def test_parameter_count_by_hand(self):
    # Layer: norms 2 * 32, qkv 32 * 2 * 4 * 16 = 4096, q/k norm 2 * 16,
    # out 64 * 32 = 2048, gate_up 32 * 2 * 48 = 3072, down 48 * 32 = 1536:
    # 10,848. Two of them, embeddings 61 * 32 = 1952, final norm 32.
    self.assertEqual(decoder.count_params(CFG), 2 * 10_848 + 1952 + 32)

  def test_every_parameter_has_axes_of_its_rank(self):
    for changes in (
        dict(lora_rank=2, qkv_bias=True, tie_embeddings=False),
        dict(lora_rank=2, scan_layers=True),
        vars(GEMMA3),
    ):
      cfg = dataclasses.replace(CFG, **changes)
      key = jax.eval_shape(lambda: jax.random.key(0))
      shapes = jax.eval_shape(functools.partial(decoder.init, cfg), key)
      axes = decoder.logical_axes(cfg)
      jax.tree.map(
          lambda shape, names: self.assertLen(names, shape.ndim), shapes, axes
      )

  def test_bfloat16_computes_in_bfloat16(self):
    cfg = dataclasses.replace(CFG, compute_dtype='bfloat16')
    params, *args = example(cfg)
    hidden = forward_shared(cfg, params, *args)
    self.assertEqual(hidden.dtype, jnp.bfloat16)
    exact = forward_shared(CFG, params, *args)
    # Eight bits of mantissa through two layers.
    self.assertLess(float(jnp.abs(hidden - exact).max()), 0.1)


class LogitsTest(absltest.TestCase):

  def test_logits_of_bfloat16_are_not_rounded(self):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.standard_normal((4, CFG.hidden_size)), 'bfloat16')
    table = rng.standard_normal((CFG.vocab_size, CFG.hidden_size))
    params = {'embed': jnp.asarray(3 * table, 'bfloat16')}
    cfg = dataclasses.replace(CFG, tie_embeddings=True)
    # By default XLA may leave out a rounding that the program asks for.
    exact = {'xla_allow_excess_precision': False}
    found = jax.jit(decoder.logits, static_argnums=0).lower(cfg, params, hidden)
    found = found.compile(compiler_options=exact)(params, hidden)
    wanted = np.float64(hidden) @ np.float64(params['embed']).T
    self.assertGreater(np.abs(wanted).max(), 16)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


if __name__ == '__main__':
  absltest.main()
