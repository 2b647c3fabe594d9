import functools
import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import logprobs

# Float32 sums over V = 11 or D = 8 terms of size ~1, in a different order.
TOL = dict(rtol=2e-6, atol=2e-6)


def _random(shape, seed, scale=1.0, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return jnp.asarray(scale * rng.normal(size=shape), dtype)


def _reference(hidden, unembedding, targets, temperature):
  """Return log-prob and entropy in float64 NumPy, from the definition."""
  hidden, unembedding = (
      np.asarray(x.astype(jnp.float32), np.float64)
      for x in (hidden, unembedding)
  )
  logits = hidden @ unembedding.T / temperature
  logits -= logits.max(-1, keepdims=True)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  picked = np.take_along_axis(log_p, np.asarray(targets)[..., None], -1)
  return picked[..., 0], -(np.exp(log_p) * log_p).sum(-1)


class TokenLogprobsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_rank_promotion('raise'))

  def test_by_hand(self):
    # D = V = 3 with the identity: logits = hidden / T = (log 4, log 2, log 2)
    # at T = 0.5 from hidden = (log 2, log 2 / 2, log 2 / 2).
    # p = (1/2, 1/4, 1/4); entropy = log(2)/2 + 2 log(4)/4 = 1.5 log 2.
    log2 = np.log(2)
    hidden = jnp.asarray([[log2, log2 / 2, log2 / 2]] * 2, jnp.float32)
    out, entropy = logprobs.token_logprobs(
        hidden, jnp.eye(3), jnp.asarray([0, 2]), 0.5, with_entropy=True
    )
    np.testing.assert_allclose(out, [-log2, -2 * log2], rtol=1e-6)
    np.testing.assert_allclose(entropy, [1.5 * log2] * 2, rtol=1e-6)

  @parameterized.parameters(
      (0, 1.0, True),
      (0, 0.7, False),
      (1, 0.7, True),
      (4, 0.7, True),  # 15 tokens: the last chunk is padded.
      (4, 0.7, False),
      (5, 1.3, True),
      (99, 0.7, True),
  )
  def test_matches_definition(self, chunk, temperature, jit):
    hidden, unembedding = _random((3, 5, 8), 0), _random((11, 8), 1)
    targets = jnp.arange(15).reshape(3, 5) % 11
    fn = functools.partial(
        logprobs.token_logprobs, chunk=chunk, with_entropy=True
    )
    fn = jax.jit(fn) if jit else fn
    out = fn(hidden, unembedding, targets, jnp.float32(temperature))
    expected = _reference(hidden, unembedding, targets, temperature)
    for ours, theirs in zip(out, expected):
      self.assertEqual(ours.dtype, jnp.float32)
      np.testing.assert_allclose(ours, theirs, **TOL)

  def test_large_logits_do_not_overflow(self):
    # Logits of +-1e3: exp overflows without the shift by the maximum.
    out, entropy = logprobs.token_logprobs(
        jnp.full((1, 1), 1e3),
        jnp.asarray([[1.0], [-1.0]]),
        jnp.asarray([0]),
        1.0,
        with_entropy=True,
    )
    np.testing.assert_array_equal(out, [0])
    np.testing.assert_array_equal(entropy, [0])

  @parameterized.parameters(4, 5)
  def test_chunked_equals_unchunked_with_gradients(self, chunk):
    hidden, unembedding = _random((3, 5, 8), 0), _random((11, 8), 1)
    targets = jnp.arange(15).reshape(3, 5) % 11
    # With distinct weights, a chunk in the wrong place would be noticed.
    weights = _random((3, 5), 2)

    def loss(hidden, unembedding, chunk):
      out, _ = logprobs.token_logprobs(
          hidden, unembedding, targets, 0.8, chunk=chunk
      )
      return jnp.sum(out * weights)

    grads = jax.grad(loss, (0, 1))
    for ours, theirs in zip(
        grads(hidden, unembedding, chunk), grads(hidden, unembedding, 0)
    ):
      np.testing.assert_allclose(ours, theirs, **TOL)

  @parameterized.parameters(0, 4)
  def test_gradient_by_formula(self, chunk):
    # d log p[y] / d hidden = (W[y] - sum_v p_v W[v]) / T.
    hidden, unembedding = _random((6, 8), 0), _random((11, 8), 1)
    targets = jnp.arange(6)
    grad = jax.grad(
        lambda h: logprobs.token_logprobs(
            h, unembedding, targets, 0.5, chunk=chunk
        )[0].sum()
    )(hidden)
    p = jax.nn.softmax(hidden @ unembedding.T / 0.5)
    expected = (unembedding[targets] - p @ unembedding) / 0.5
    np.testing.assert_allclose(grad, expected, rtol=1e-5, atol=1e-5)

  @parameterized.product(chunk=(0, 4), differentiable=(False, True))
  def test_gradient_of_the_entropy_by_formula(self, chunk, differentiable):
    # dH / d logit_v = -p_v (log p_v + H); the last 3 of 11 rows are padding.
    hidden, unembedding = _random((6, 8), 0), _random((11, 8), 1)
    grads = jax.grad(
        lambda h, w: logprobs.token_logprobs(
            h,
            w,
            jnp.arange(6),
            0.5,
            chunk=chunk,
            with_entropy=True,
            entropy_gradient=differentiable,
            vocab_size=8,
        )[1].sum(),
        (0, 1),
    )(hidden, unembedding)
    log_p = jax.nn.log_softmax(hidden @ unembedding[:8].T / 0.5)
    p = jnp.exp(log_p)
    slope = -p * (log_p - jnp.sum(p * log_p, -1, keepdims=True)) / 0.5
    slope = jnp.pad(slope, ((0, 0), (0, 3))) * differentiable
    expected = slope @ unembedding, slope.T @ hidden
    for grad, want in zip(grads, expected):
      np.testing.assert_allclose(grad, want, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(0, 4)
  def test_bfloat16_is_rounded_only_on_input(self, chunk):
    # With float32 logits the result is exact up to float32 rounding: dividing
    # the bfloat16 hidden by T would cost 3 digits.
    hidden = _random((6, 32), 0, dtype=jnp.bfloat16)
    unembedding = _random((11, 32), 1, dtype=jnp.bfloat16)
    targets = jnp.arange(6)
    out, _ = logprobs.token_logprobs(
        hidden, unembedding, targets, jnp.float32(0.7), chunk=chunk
    )
    expected, _ = _reference(hidden, unembedding, targets, np.float32(0.7))
    np.testing.assert_allclose(out, expected, rtol=5e-6, atol=5e-6)
    grad = jax.grad(
        lambda h: logprobs.token_logprobs(
            h, unembedding, targets, 0.7, chunk=chunk
        )[0].sum()
    )(hidden)
    self.assertEqual(grad.dtype, jnp.bfloat16)
    self.assertTrue(jnp.isfinite(grad).all())

  def test_temperature_is_traced(self):
    traces = []

    @jax.jit
    def fn(temperature):
      traces.append(temperature)
      return logprobs.token_logprobs(
          jnp.ones((2, 8)), _random((11, 8), 1), jnp.arange(2), temperature
      )[0]

    self.assertFalse(np.allclose(fn(jnp.float32(1.0)), fn(jnp.float32(0.5))))
    self.assertLen(traces, 1)

  def test_vmap(self):
    hidden, unembedding = _random((3, 5, 8), 0), _random((11, 8), 1)
    targets = jnp.arange(15).reshape(3, 5) % 11
    fn = lambda h, t: logprobs.token_logprobs(h, unembedding, t, 0.9, chunk=2)[
        0
    ]
    np.testing.assert_allclose(
        jax.vmap(fn)(hidden, targets), fn(hidden, targets), **TOL
    )

  def test_chunk_bounds_memory(self):
    # All logits: 512 x 4096 float32 = 8 MiB; a chunk of 32 holds 0.5 MiB.
    hidden, unembedding = _random((512, 4), 0), _random((4096, 4), 1)
    targets = jnp.zeros(512, jnp.int32)

    def temporary(chunk):
      loss = lambda h, w: logprobs.token_logprobs(
          h, w, targets, 1.0, chunk=chunk, with_entropy=True
      )[0].sum()
      compiled = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, unembedding)
      return compiled.compile().memory_analysis().temp_size_in_bytes

    self.assertGreater(temporary(0), 8 * 2**20)
    self.assertLess(temporary(32), 2 * 2**20)

  def test_rejects_negative_chunk(self):
    with self.assertRaisesRegex(ValueError, 'chunk=-1'):
      logprobs.token_logprobs(
          jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.zeros(2, int), 1.0, chunk=-1
      )


class SequenceLogprobsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_rank_promotion('raise'))

  def test_shift_targets(self):
    targets, predicts = logprobs.shift_targets(
        jnp.asarray([[5, 6, 7, 8, 9, 0]]), jnp.asarray([[1, 1, 1, 2, 2, 0]])
    )
    # 5 -> 6 -> 7 | 8 -> 9 | padding: 7 does not predict 8, 9 not the padding.
    np.testing.assert_array_equal(
        predicts, [[True, True, False, True, False, False]]
    )
    np.testing.assert_array_equal(np.asarray(targets)[predicts], [6, 7, 9])

  def test_the_last_token_does_not_predict_the_first(self):
    _, predicts = logprobs.shift_targets(
        jnp.asarray([[5, 6]]), jnp.asarray([[1, 1]])
    )
    np.testing.assert_array_equal(predicts, [[True, False]])

  @parameterized.product(chunk=(0, 3), with_entropy=(False, True))
  def test_aligned_to_tokens(self, chunk, with_entropy):
    tokens = jnp.asarray([[5, 6, 7, 8, 9, 0], [1, 2, 3, 4, 5, 6]])
    segment_ids = jnp.asarray([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    hidden, unembedding = _random((2, 6, 8), 0), _random((11, 8), 1)
    out, entropy = logprobs.sequence_logprobs(
        hidden,
        unembedding,
        tokens,
        segment_ids,
        0.9,
        chunk=chunk,
        with_entropy=with_entropy,
    )
    expected = np.zeros((2, 6))
    expected_entropy = np.zeros((2, 6))
    for b, t in [(0, 1), (0, 2), (0, 4)] + [(1, t) for t in range(1, 6)]:
      # The hidden vector before a token predicts it.
      expected[b, t], expected_entropy[b, t] = _reference(
          hidden[b, t - 1], unembedding, tokens[b, t], 0.9
      )
    np.testing.assert_allclose(out, expected, **TOL)
    np.testing.assert_array_equal(out[expected == 0], np.zeros(4))
    if with_entropy:
      np.testing.assert_allclose(entropy, expected_entropy, **TOL)
    else:
      self.assertIsNone(entropy)

  def test_packed_equals_unpacked(self):
    hidden, unembedding = _random((1, 7, 8), 0), _random((11, 8), 1)
    tokens = jnp.arange(7)[None]
    packed, _ = logprobs.sequence_logprobs(
        hidden, unembedding, tokens, jnp.asarray([[1, 1, 1, 2, 2, 2, 2]]), 1.0
    )
    for part in (slice(0, 3), slice(3, 7)):
      alone, _ = logprobs.sequence_logprobs(
          hidden[:, part],
          unembedding,
          tokens[:, part],
          jnp.ones((1, part.stop - part.start), jnp.int32),
          1.0,
      )
      np.testing.assert_allclose(packed[:, part], alone, **TOL)

  @parameterized.parameters(0, 2)
  def test_no_gradient_through_unused_positions(self, chunk):
    segment_ids = jnp.asarray([[1, 1, 1, 2, 2, 0, 0]])
    grad = jax.grad(
        lambda h: logprobs.sequence_logprobs(
            h,
            _random((11, 8), 1),
            jnp.arange(7)[None],
            segment_ids,
            1.0,
            chunk=chunk,
        )[0].sum()
    )(_random((1, 7, 8), 0))
    used = np.asarray([[True, True, False, True, False, False, False]])
    np.testing.assert_array_equal(np.any(np.asarray(grad), -1), used)


_SHARDED = """
import re
import jax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
from evojax.rl import logprobs

axis_types = (AxisType.Auto,) * 2
mesh = jax.make_mesh((4, 2), ('fsdp', 'tensor'), axis_types=axis_types)
rng = np.random.default_rng(0)
B, L, D, V = 8, 16, 8, 64
args = (
    jnp.asarray(rng.normal(size=(B, L, D)), jnp.float32),
    jnp.asarray(rng.normal(size=(V, D)), jnp.float32),
    jnp.asarray(rng.integers(0, V, (B, L)), jnp.int32),
)
specs = (('fsdp',), ('tensor',), ('fsdp',))
shardings = tuple(NamedSharding(mesh, PartitionSpec(*s)) for s in specs)
for chunk in (0, 32):
  def loss(hidden, unembedding, targets):
    out, entropy = logprobs.token_logprobs(
        hidden, unembedding, targets, 0.9, chunk=chunk, with_entropy=True,
        entropy_gradient=True,
    )
    return (out + 0.5 * entropy).sum(), (out, entropy)
  fn = jax.value_and_grad(loss, (0, 1), has_aux=True)
  compiled = jax.jit(fn, in_shardings=shardings).lower(*args).compile()
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
      compiled(*jax.device_put(args, shardings)), fn(*args),
  )
  moved = re.findall(
      r'= (\\S+) (all-gather|all-to-all|collective-permute)\\(',
      compiled.as_text(),
  )
  print('moved', chunk, moved)
  # Logits are all-reduced over V as [tokens]; neither they nor hidden vectors
  # nor the unembedding travel.
  assert not moved, moved
"""


class ShardedTest(absltest.TestCase):

  def test_nothing_large_moves_and_values_agree(self):
    env = {
        **os.environ,
        'XLA_FLAGS': '--xla_force_host_platform_device_count=8',
        'JAX_PLATFORMS': 'cpu',
        'PYTHONPATH': os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, '-c', _SHARDED],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == '__main__':
  absltest.main()
