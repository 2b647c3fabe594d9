import math

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import losses
from tests.rl import objectives

TOL = dict(rtol=1e-5, atol=1e-6)  # Float32 sums of ~30 terms of size ~1.
MODES = tuple((r, a) for r in losses.RATIOS for a in losses.AGGREGATIONS)


def _old(ratios):
  """Return log-probs of -1 and the old ones that give these ratios."""
  ratios = jnp.asarray(ratios, jnp.float32)
  return jnp.full(ratios.shape, -1.0), -1.0 - jnp.log(ratios)


def _random_batch(batch=6, length=7, seed=0):
  rng = np.random.default_rng(seed)
  logprobs = -rng.exponential(size=(batch, length))
  lengths = rng.integers(1, length + 1, batch)
  lengths[1] = 0  # One sequence without tokens.
  arrays = dict(
      logprobs=logprobs,
      old_logprobs=logprobs + 0.3 * rng.normal(size=logprobs.shape),
      ref_logprobs=logprobs + 0.5 * rng.normal(size=logprobs.shape),
      weights=rng.uniform(0.5, 1.2, logprobs.shape),
      entropy=rng.exponential(size=logprobs.shape),
      advantages=rng.normal(size=batch),
  )
  arrays = {k: jnp.asarray(v, jnp.float32) for k, v in arrays.items()}
  mask = np.arange(length) < lengths[:, None]
  return dict(arrays, mask=jnp.asarray(mask))


_SETTINGS = dict(
    clip_low=0.2, clip_high=0.28, dual_clip=1.5, kl_coef=0.05, entropy_coef=0.03
)


def _loss(batch, ratio, aggregation, denominator):
  return objectives.policy_loss(
      **batch,
      **_SETTINGS,
      ratio=ratio,
      aggregation=aggregation,
      denominator=denominator,
  )


class RlTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_rank_promotion('raise'))


class DenominatorTest(RlTest):

  @parameterized.product(
      expected=(('token', 4), ('sequence', 2), ('constant', 2 * 5)),
      xp=(np, jnp),
  )
  def test_by_hand(self, expected, xp):
    # Rows of 3, 0 and 1 tokens; the empty one counts for no aggregation.
    mask = xp.asarray([[1, 1, 1], [0, 0, 0], [0, 1, 0]]).astype(bool)
    out = losses.denominator(mask, expected[0], 5)
    self.assertEqual(out.dtype, np.float32)
    self.assertEqual(out, expected[1])
    # The same for [P, G, C].
    self.assertEqual(
        losses.denominator(mask[None], expected[0], 5), expected[1]
    )

  @parameterized.parameters(*losses.AGGREGATIONS)
  def test_nothing_kept_is_one(self, aggregation):
    mask = np.zeros((2, 3), bool)
    self.assertGreaterEqual(losses.denominator(mask, aggregation, 5), 1)

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, "'mean'.*token.*constant"):
      losses.denominator(np.ones((2, 3), bool), 'mean', 5)


class PolicyLossTest(RlTest):

  # ratio, advantage, clip_low, clip_high, dual_clip: loss, d loss / d logprob,
  # clipped 'low' | 'high' | 'dual' | ''. The gradient is -A r, or 0 if clipped.
  @parameterized.parameters(
      (1.1, 2.0, 0.2, 0.3, 0.0, -2.2, -2.2, ''),
      (1.5, 2.0, 0.2, 0.3, 0.0, -2.6, 0.0, 'high'),  # -(1 + 0.3) 2
      (0.5, 2.0, 0.2, 0.3, 0.0, -1.0, -1.0, ''),  # min picks 0.5 * 2.
      (0.5, -2.0, 0.2, 0.3, 0.0, 1.6, 0.0, 'low'),  # (1 - 0.2) 2
      (1.5, -2.0, 0.2, 0.3, 0.0, 3.0, 3.0, ''),  # Unbounded above...
      (4.0, -2.0, 0.2, 0.3, 3.0, 6.0, 0.0, 'dual'),  # ... unless dual: 3 * 2.
      (2.5, -2.0, 0.2, 0.3, 3.0, 5.0, 5.0, ''),
      (4.0, 2.0, 0.2, 0.3, 3.0, -2.6, 0.0, 'high'),
      (4.0, -2.0, 0.2, 0.3, -1.0, 8.0, 8.0, ''),  # <= 0 is off.
      (1.5, 0.0, 0.2, 0.3, 3.0, 0.0, 0.0, ''),
      # At a tie of both terms, the gradient is full, not halved.
      (1.0, 2.0, 0.0, 0.0, 0.0, -2.0, -2.0, ''),
      (1.0, -2.0, 0.0, 0.0, 0.0, 2.0, 2.0, ''),
  )
  def test_one_token(self, r, a, low, high, dual, loss, slope, clipped):
    logprobs, old = _old([[r]])
    old = jnp.where(r == 1.0, logprobs, old)

    @jax.jit
    def fn(logprobs, low, high, dual):
      return objectives.policy_loss(
          logprobs,
          old,
          jnp.asarray([a]),
          jnp.asarray([[True]]),
          clip_low=low,
          clip_high=high,
          dual_clip=dual,
          denominator=1.0,
      )

    (value, metrics), grad = jax.value_and_grad(fn, has_aux=True)(
        logprobs, low, high, dual
    )
    np.testing.assert_allclose(value, loss, **TOL)
    np.testing.assert_allclose(grad, [[slope]], **TOL)
    for name in ('low', 'high', 'dual'):
      self.assertEqual(metrics[f'clip_{name}'], name == clipped, name)
    np.testing.assert_allclose(metrics['ratio'], r, **TOL)
    np.testing.assert_allclose(metrics['approx_kl'], r - 1 - math.log(r), **TOL)

  def test_equals_the_papers_min_and_max(self):
    rng = np.random.default_rng(0)
    r = np.exp(rng.normal(size=(20, 8))).astype(np.float32)
    a = rng.normal(size=20).astype(np.float32)
    logprobs, old = _old(r)
    loss, _ = objectives.policy_loss(
        logprobs,
        old,
        jnp.asarray(a),
        jnp.ones(r.shape, bool),
        clip_low=0.2,
        clip_high=0.3,
        dual_clip=2.0,
        aggregation='token',
        denominator=1.0,
    )
    a = a[:, None]
    surrogate = np.minimum(r * a, np.clip(r, 0.8, 1.3) * a)
    surrogate = np.where(a < 0, np.maximum(surrogate, 2.0 * a), surrogate)
    np.testing.assert_allclose(loss, -surrogate.sum(), rtol=1e-5)

  # Tokens' losses -r A: 1.0 1.1 _ | 2.0 _ _ with A = -1 and -2; d per mode.
  @parameterized.parameters(
      ('token', (1.0 + 1.1 + 2.0) / 3),
      ('sequence', ((1.0 + 1.1) / 2 + 2.0) / 2),
      ('constant', (1.0 + 1.1 + 2.0) / (2 * 3)),
  )
  def test_aggregation_by_hand(self, aggregation, expected):
    logprobs, old = _old([[1.0, 1.1, 1.7], [1.0, 0.3, 9.0]])
    mask = jnp.asarray([[True, True, False], [True, False, False]])
    loss, metrics = objectives.policy_loss(
        logprobs,
        old,
        jnp.asarray([-1.0, -2.0]),
        mask,
        clip_low=0.2,
        clip_high=0.2,
        aggregation=aggregation,
        denominator=losses.denominator(mask, aggregation, 3),
    )
    np.testing.assert_allclose(loss, expected, **TOL)
    self.assertEqual(metrics['tokens'], 3)
    np.testing.assert_allclose(metrics['ratio'], 1.0 + 1.1 + 1.0, **TOL)

  def test_sequence_ratio_by_hand(self):
    # Ratios 2 and 1/8 over two tokens: s = sqrt(2 / 8) = 1/2, inside [0.4, .].
    # Loss: both tokens -s A = -1/2 * 3; gradient per token -s A / |o| / B.
    logprobs, old = _old([[2.0, 0.125, 7.0]])
    mask = jnp.asarray([[True, True, False]])
    fn = lambda x: objectives.policy_loss(
        x,
        old,
        jnp.asarray([3.0]),
        mask,
        clip_low=0.6,
        clip_high=0.2,
        ratio='sequence',
        denominator=1.0,
    )
    (loss, metrics), grad = jax.value_and_grad(fn, has_aux=True)(logprobs)
    np.testing.assert_allclose(loss, -1.5, **TOL)
    np.testing.assert_allclose(grad, [[-0.75, -0.75, 0]], **TOL)
    np.testing.assert_allclose(metrics['ratio'], 0.5 + 0.5, **TOL)
    # The KL estimate stays per token: (2 - 1 - log 2) + (1/8 - 1 + log 8).
    np.testing.assert_allclose(metrics['approx_kl'], 0.125 + math.log(4), **TOL)

  @parameterized.parameters('sequence', 'token', 'constant')
  def test_sequence_ratio_has_the_gradient_of_gspo(self, aggregation):
    # GSPO differentiates s itself; ours matches it for equal advantages.
    batch = _random_batch()
    mask, a = batch['mask'], batch['advantages'][:, None]

    def gspo(logprobs):
      count = jnp.maximum(mask.sum(-1, keepdims=True), 1)
      log_ratio = jnp.where(mask, logprobs - batch['old_logprobs'], 0)
      s = jnp.exp(log_ratio.sum(-1, keepdims=True) / count)
      loss = -jnp.minimum(s * a, jnp.clip(s, 0.9, 1.1) * a)
      loss = jnp.where(mask, loss, 0)
      return (loss / count).sum() if aggregation == 'sequence' else loss.sum()

    ours = lambda x: objectives.policy_loss(
        x,
        batch['old_logprobs'],
        batch['advantages'],
        mask,
        clip_low=0.1,
        clip_high=0.1,
        ratio='sequence',
        aggregation=aggregation,
        denominator=1.0,
    )[0]
    for fn in (lambda f: f, jax.grad):
      np.testing.assert_allclose(
          fn(ours)(batch['logprobs']), fn(gspo)(batch['logprobs']), **TOL
      )

  def test_importance_weights_and_kl_by_hand(self):
    # r = 1, A = 2, w = (0.5, 1.25): -2 * 1.75. The KL term is not weighted:
    # p = e^-1, q = p / 2 and p: k3 = 1/2 - 1 + log 2 and 0, times 0.1.
    logprobs = jnp.full((1, 2), -1.0)
    loss, metrics = objectives.policy_loss(
        logprobs,
        logprobs,
        jnp.asarray([2.0]),
        jnp.ones((1, 2), bool),
        clip_low=0.2,
        clip_high=0.2,
        aggregation='token',
        denominator=1.0,
        weights=jnp.asarray([[0.5, 1.25]]),
        ref_logprobs=jnp.asarray([[-1.0 - math.log(2), -1.0]]),
        kl_coef=0.1,
    )
    k3 = math.log(2) - 0.5
    np.testing.assert_allclose(loss, -3.5 + 0.1 * k3, **TOL)
    np.testing.assert_allclose(metrics['ref_kl'], k3, **TOL)

  @parameterized.parameters(
      ('token', 0.2 * (1 + 2 + 5) / 4),
      ('sequence', 0.2 * (1.5 + 5) / 4),
  )
  def test_entropy_by_hand(self, aggregation, bonus):
    # Entropies of two tokens and of one, over 4; advantages of 0. Importance
    # weights do not count, and the masked token is NaN.
    loss = lambda entropy: objectives.policy_loss(
        jnp.zeros((2, 2)),
        jnp.zeros((2, 2)),
        jnp.zeros(2),
        jnp.asarray([[True, True], [True, False]]),
        clip_low=0.2,
        clip_high=0.2,
        aggregation=aggregation,
        denominator=4.0,
        weights=jnp.full((2, 2), 7.0),
        entropy=entropy,
        entropy_coef=0.2,
    )[0]
    entropy = jnp.asarray([[1.0, 2.0], [5.0, math.nan]])
    np.testing.assert_allclose(loss(entropy), -bonus, **TOL)
    self.assertEqual(jax.grad(loss)(entropy)[1, 1], 0)

  @parameterized.parameters(*losses.RATIOS)
  def test_on_policy_ratio_is_exactly_one(self, ratio):
    batch = _random_batch()
    mask = batch['mask']

    def fn(logprobs):
      return objectives.policy_loss(
          logprobs,
          jax.lax.stop_gradient(logprobs),
          batch['advantages'],
          mask,
          clip_low=0.0,
          clip_high=0.0,
          ratio=ratio,
          aggregation='token',
          denominator=1.0,
      )

    (_, metrics), grad = jax.value_and_grad(fn, has_aux=True)(batch['logprobs'])
    self.assertEqual(metrics['ratio'], mask.sum())
    self.assertEqual(metrics['approx_kl'], 0)
    # The policy gradient: -A at every token.
    np.testing.assert_array_equal(
        grad, jnp.where(mask, -batch['advantages'][:, None], 0)
    )

  @parameterized.parameters(*MODES)
  def test_accumulated_equals_whole(self, ratio, aggregation):
    batch = _random_batch()
    d = losses.denominator(batch['mask'], aggregation, 7)

    def part(logprobs, rows):
      rest = {k: v[rows] for k, v in batch.items() if k != 'logprobs'}
      return _loss(dict(rest, logprobs=logprobs[rows]), ratio, aggregation, d)

    grad = jax.value_and_grad(part, has_aux=True)
    whole = grad(batch['logprobs'], slice(None))
    # Unequal token counts; the first part has the sequence without tokens.
    parts = [grad(batch['logprobs'], slice(i, i + 2)) for i in (0, 2, 4)]
    summed = jax.tree.map(lambda *x: sum(x), *parts)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **TOL), summed, whole
    )

  @parameterized.parameters(*MODES)
  def test_order_of_sequences_does_not_matter(self, ratio, aggregation):
    batch = _random_batch()
    order = np.random.default_rng(1).permutation(6)
    shuffled = {k: v[order] for k, v in batch.items()}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **TOL),
        _loss(shuffled, ratio, aggregation, 3.0),
        _loss(batch, ratio, aggregation, 3.0),
    )

  @parameterized.parameters(*MODES)
  def test_padding_does_not_matter(self, ratio, aggregation):
    batch = _random_batch()
    padded = {
        k: v if v.ndim == 1 else jnp.pad(v, ((0, 0), (2, 3)))
        for k, v in batch.items()
    }
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **TOL),
        _loss(padded, ratio, aggregation, 3.0),
        _loss(batch, ratio, aggregation, 3.0),
    )

  @parameterized.product(mode=MODES, junk=(float('nan'), float('inf'), 1e30))
  def test_masked_tokens_are_ignored_whatever_they_hold(self, mode, junk):
    batch = _random_batch()
    hostile = {
        k: v if v.ndim == 1 else jnp.where(batch['mask'], v, junk)
        for k, v in batch.items()
        if k != 'mask'
    }
    hostile['mask'] = batch['mask']

    def fn(logprobs, batch):
      return _loss(dict(batch, logprobs=logprobs), *mode, 3.0)

    grad = jax.value_and_grad(fn, has_aux=True)
    ours, clean = (grad(b['logprobs'], b) for b in (hostile, batch))
    jax.tree.map(np.testing.assert_array_equal, ours, clean)
    outside = ~np.asarray(batch['mask'])
    np.testing.assert_array_equal(
        ours[1][outside], np.zeros(outside.sum(), np.float32)
    )
    # Every token inside has a gradient, from the KL term alone.
    self.assertTrue((np.asarray(ours[1])[~outside] != 0).all())

  @parameterized.parameters(*MODES)
  def test_nothing_kept(self, ratio, aggregation):
    batch = _random_batch()
    batch['mask'] = jnp.zeros_like(batch['mask'])
    d = losses.denominator(batch['mask'], aggregation, 7)
    fn = lambda x: _loss(dict(batch, logprobs=x), ratio, aggregation, d)
    (loss, metrics), grad = jax.value_and_grad(fn, has_aux=True)(
        batch['logprobs']
    )
    self.assertEqual(loss, 0)
    np.testing.assert_array_equal(grad, np.zeros_like(grad))
    self.assertEqual(set(map(float, metrics.values())), {0.0})

  @parameterized.parameters(*MODES)
  def test_jitted_and_per_token_advantages_agree(self, ratio, aggregation):
    batch = _random_batch()
    plain = _loss(batch, ratio, aggregation, 3.0)
    jitted = jax.jit(lambda b: _loss(b, ratio, aggregation, 3.0))(batch)
    per_token = dict(
        batch, advantages=jnp.tile(batch['advantages'][:, None], (1, 7))
    )
    for other in (jitted, _loss(per_token, ratio, aggregation, 3.0)):
      jax.tree.map(
          lambda a, b: np.testing.assert_allclose(a, b, **TOL), other, plain
      )

  def test_per_token_advantages_by_hand(self):
    loss, _ = objectives.policy_loss(
        jnp.zeros((1, 2)),
        jnp.zeros((1, 2)),
        jnp.asarray([[1.0, -3.0]]),
        jnp.ones((1, 2), bool),
        clip_low=0.2,
        clip_high=0.2,
        aggregation='token',
        denominator=1.0,
    )
    np.testing.assert_allclose(loss, -1.0 + 3.0, **TOL)

  @parameterized.parameters(*MODES)
  def test_vmapped_and_grouped_layouts_agree(self, ratio, aggregation):
    batch = _random_batch()
    whole, _ = _loss(batch, ratio, aggregation, 3.0)
    grouped = {k: v.reshape(2, 3, *v.shape[1:]) for k, v in batch.items()}
    direct, _ = _loss(grouped, ratio, aggregation, 3.0)
    by_group, _ = jax.vmap(lambda b: _loss(b, ratio, aggregation, 3.0))(grouped)
    np.testing.assert_allclose(direct, whole, **TOL)
    np.testing.assert_allclose(by_group.sum(), whole, **TOL)

  def test_scalars_are_traced(self):
    batch = _random_batch()
    traces = []

    @jax.jit
    def fn(scalars):
      traces.append(scalars)
      return objectives.policy_loss(**batch, **scalars)[0]

    names = ('clip_low', 'clip_high', 'dual_clip', 'kl_coef', 'entropy_coef')
    scalars = {k: jnp.float32(0.1) for k in names}
    scalars['denominator'] = jnp.float32(6)
    scalars['dual_clip'] = jnp.float32(1.2)  # Binds: ratios reach 1.3.
    base = fn(scalars)
    for name, value in (
        ('clip_low', 0.3),
        ('clip_high', 0.3),
        ('dual_clip', 0.0),
        ('kl_coef', 0.7),
        ('entropy_coef', -0.7),
        ('denominator', 5.0),
    ):
      changed = fn({**scalars, name: jnp.float32(value)})
      self.assertNotAlmostEqual(float(base), float(changed), msg=name)
    self.assertLen(traces, 1)

  def test_rejects_unknown_names_and_shapes(self):
    batch = _random_batch()
    with self.assertRaisesRegex(ValueError, "ratio='gspo'.*'sequence'"):
      _loss(batch, 'gspo', 'token', 1.0)
    with self.assertRaisesRegex(ValueError, "aggregation='mean'.*'constant'"):
      _loss(batch, 'token', 'mean', 1.0)
    # A TypeError if annotations are checked.
    with self.assertRaises((ValueError, TypeError)):
      _loss(dict(batch, advantages=jnp.zeros(5)), 'token', 'token', 1.0)


if __name__ == '__main__':
  absltest.main()
