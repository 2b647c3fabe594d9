"""The correction for the sampler compared with verl's, in NumPy, float64.

verl's functions need its whole package, which is not a test dependency, so they
are rewritten here. Each function names the one of
`verl/trainer/ppo/rollout_corr_helper.py` that it follows; a revision is a
commit of github.com/volcengine/verl.
"""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import importance
from evojax.rl import losses
from tests.rl import objectives

_BOUND = 20.0  # SAFETY_BOUND.
# evojax computes in float32, with sums of at most 9 terms, on 60 episodes.
_TOL = dict(rtol=5e-5, atol=1e-6)
_AGGREGATION = {'token-mean': 'token', 'seq-mean-token-mean': 'sequence'}


def _bounded_exp(x):
  return np.exp(np.clip(x, -_BOUND, _BOUND))


def is_weights(log_ratio, mask, level, upper, lower=None):
  """Return compute_rollout_correction_weights, without batch normalisation.

  Weights are truncated at `upper`. With a `lower` bound, which verl has since
  20c30bf (github.com/verl-project/verl), weights beyond either bound are 0.
  """
  if level == 'sequence':
    log_ratio = np.repeat((log_ratio * mask).sum(1)[:, None], mask.shape[1], 1)
  raw = _bounded_exp(log_ratio) * mask
  if lower is None:
    return np.minimum(raw, upper)
  return raw * (raw >= lower) * (raw <= upper)


def accepted(log_ratio, mask, level, lower, upper, veto=None):
  """Return the mask of compute_rollout_rejection_mask, with the veto.

  It follows 2f2996b, the last revision with these levels and the veto.
  """
  counts = np.maximum(mask.sum(1, keepdims=True), 1e-8)
  sums = (log_ratio * mask).sum(1, keepdims=True)
  if level is None:
    kept = np.ones_like(mask)
  else:
    stat = {'token': log_ratio, 'sequence': sums, 'geometric': sums / counts}
    ratio = _bounded_exp(stat[level])
    kept = (lower <= ratio) & (ratio <= upper) & np.ones_like(mask)
  if veto is not None:
    catastrophic = (log_ratio < np.log(veto)) & mask
    kept = kept & ~catastrophic.any(1, keepdims=True)
  return mask & kept


def statistics(old, sampler, mask, weights, upper):
  """Return the compute_is_metrics, compute_offpolicy_metrics that we log."""
  mean = lambda x: (x * mask).sum() / mask.sum()
  bounded = np.clip(weights, 0.0, upper)
  log_ratio = old - sampler
  return dict(
      mean=mean(weights),
      eff_sample_size=1 / mean((bounded / mean(bounded)) ** 2),
      k3_kl=mean(np.exp(log_ratio) - log_ratio - 1),
  )


def policy_loss(logprobs, old, advantages, mask, weights, clip, aggregation):
  """Return compute_policy_loss_vanilla with agg_loss, from core_algos.py."""
  ratio = np.exp(logprobs - old)
  a = advantages[:, None]
  terms = -a * ratio, -a * np.clip(ratio, 1 - clip, 1 + clip)
  terms = np.maximum(*terms) * weights * mask
  if aggregation == 'token-mean':
    return terms.sum() / mask.sum()
  sizes = mask.sum(1)
  return (terms.sum(1) / np.maximum(sizes, 1e-8)).sum() / (sizes > 0).sum()


def draw(seed=0, batch=60, length=9, scale=0.3):
  """Return log-probs [B, L] and a mask that leaves out some observations."""
  rng = np.random.default_rng(seed)
  old = -rng.exponential(size=(batch, length))
  # Small gaps, and a few large ones.
  gap = scale * rng.normal(size=old.shape)
  gap = np.where(rng.random(old.shape) < 0.03, 15 * gap, gap)
  mask = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
  mask &= rng.random(old.shape) < 0.8
  mask[0] = False  # No token at all.
  return dict(
      logprobs=old + 0.2 * rng.normal(size=old.shape),
      old=old,
      sampler=old - gap,
      advantages=rng.normal(size=batch),
      mask=mask,
  )


class VerlCorrectionTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_rank_promotion('raise'))
    self.x = draw()
    self.mask = self.x['mask']
    self.log_ratio = self.x['old'] - self.x['sampler']
    names = ('old', 'sampler')
    self.ours = [jnp.asarray(self.x[n], jnp.float32) for n in names]
    self.ours.append(jnp.asarray(self.mask))

  @parameterized.product(
      level=('token', 'sequence'), lower=(None, 0.7), upper=(1.3, 2.0)
  )
  def test_weights(self, level, lower, upper):
    want = is_weights(self.log_ratio, self.mask, level, upper, lower)
    edge = 'truncate' if lower is None else 'mask'
    weights, sums, _ = importance.importance_weights(
        *self.ours, mode=f'{level}_{edge}', cap=upper, floor=lower or 0.0
    )
    np.testing.assert_allclose(weights * self.mask, want, **_TOL)
    old, sampler = self.x['old'], self.x['sampler']
    wanted = statistics(old, sampler, self.mask, want, upper)
    tokens = self.mask.sum()
    size = sums['weight'] ** 2 / sums['weight_square'] / tokens
    np.testing.assert_allclose(sums['weight'] / tokens, wanted['mean'], **_TOL)
    np.testing.assert_allclose(size, wanted['eff_sample_size'], **_TOL)
    kl = importance.sampler_kl(*self.ours) / tokens
    np.testing.assert_allclose(kl, wanted['k3_kl'], **_TOL)
    # The shares beyond the bounds, rollout_is_ratio_fraction_high and _low.
    if level == 'token':
      ratio = np.exp(self.log_ratio)[self.mask]
      beyond = (ratio > upper) | (ratio < (lower or 0))
      self.assertEqual(sums['bounded'], beyond.sum())

  @parameterized.product(
      level=(None, 'token', 'sequence', 'geometric'),
      bounds=((0.5, 2.0), (0.9, 1.2)),
      veto=(None, 0.05),
  )
  def test_rejection(self, level, bounds, veto):
    low, high = bounds
    want = accepted(self.log_ratio, self.mask, level, low, high, veto)
    if level or veto:
      self.assertBetween(want.sum(), 1, self.mask.sum() - 1)
    found = importance.accepted(
        *self.ours, level=level or 'none', low=low, high=high, veto=veto or 0.0
    )
    np.testing.assert_array_equal(found, want)

  @parameterized.product(
      weighted=('token', 'sequence'),
      rejected=('token', 'sequence', 'geometric'),
      aggregation=tuple(_AGGREGATION),
  )
  def test_loss_with_both(self, weighted, rejected, aggregation):
    x = self.x
    # The weights use the whole sequence, even its rejected tokens.
    weights = is_weights(self.log_ratio, self.mask, weighted, 2.0)
    kept = accepted(self.log_ratio, self.mask, rejected, 0.7, 1.4, 1e-3)
    three = x['logprobs'], x['old'], x['advantages']
    want = policy_loss(*three, kept, weights, 0.2, aggregation)
    ours, _, _ = importance.importance_weights(
        *self.ours, mode=f'{weighted}_truncate', cap=2.0
    )
    mask = importance.accepted(
        *self.ours, level=rejected, low=0.7, high=1.4, veto=1e-3
    )
    aggregation = _AGGREGATION[aggregation]
    loss, metrics = objectives.policy_loss(
        jnp.asarray(x['logprobs'], jnp.float32),
        self.ours[0],
        jnp.asarray(x['advantages'], jnp.float32),
        mask,
        clip_low=0.2,
        clip_high=0.2,
        aggregation=aggregation,
        denominator=losses.denominator(mask, aggregation, 9),
        weights=ours,
    )
    np.testing.assert_allclose(loss, want, **_TOL)
    self.assertEqual(metrics['tokens'], kept.sum())


if __name__ == '__main__':
  absltest.main()
