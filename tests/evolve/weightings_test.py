from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.evolve import weightings
from evojax.rl import advantages as advantages_lib
from evojax.rl import filters

KINDS = tuple(advantages_lib.ADVANTAGES)


def _rollouts(seed=0, prompts=10, group=5):
  """Return parts [4, P, G], outcomes and valid, for groups of all kinds."""
  rng = np.random.default_rng(seed)
  outcomes = rng.random((prompts, group)) < 0.5
  outcomes[0], outcomes[1] = True, False
  parts = rng.random((4, prompts, group), np.float32)
  parts[0] = outcomes
  parts[:, 2] = 0.3  # Dead under every weighting.
  parts[1] = 1 - parts[0]
  valid = rng.random((prompts, group)) < 0.8
  valid[3], valid[4] = False, np.arange(group) == 1  # No member and one member.
  valid[5] = True
  return parts, outcomes, valid


class WeightingsTest(parameterized.TestCase):

  @parameterized.product(kind=KINDS, seed=(0, 1), everyone=(False, True))
  def test_agrees_with_one_by_one(self, kind, seed, everyone):
    parts, outcomes, valid = _rollouts(seed)
    if everyone:
      valid[:] = True
    weights = np.random.default_rng(seed).normal(size=(40, 4))
    weights[0] = 0.0
    weights[1] = [1, 0, 0, 0]
    result = weightings.apply(parts, weights, outcomes, valid, advantage=kind)
    for w in range(40):
      rewards = sum(
          np.float32(weight) * part for weight, part in zip(weights[w], parts)
      ).astype(np.float32)
      advantages = advantages_lib.ADVANTAGES[kind](rewards, valid)
      # Sums of float32 parts, added in another order.
      np.testing.assert_allclose(result.rewards[w], rewards, atol=1e-6)
      np.testing.assert_allclose(
          result.advantages[w], advantages, atol=2e-5, rtol=2e-5
      )
      np.testing.assert_array_equal(result.advantages[w][~valid], 0)

      kept = filters.keep_reward_variance(rewards, outcomes, valid)[:, 0]
      groups = valid.sum(axis=1) >= 2
      dead = (~kept & groups).sum() / groups.sum()
      self.assertAlmostEqual(result.dead_groups[w], dead, places=6)

      taught = valid & filters.keep_outcome_variance(rewards, outcomes, valid)
      agrees = np.sign(advantages) == np.where(outcomes, 1, -1)
      self.assertAlmostEqual(
          result.sign_agreement[w], agrees[taught].mean(), places=6
      )
      mass = np.abs(advantages).sum()
      phantom = np.abs(advantages[~taught]).sum() / mass if mass else 0
      self.assertAlmostEqual(result.phantom_share[w], phantom, places=5)

  def test_hand_worked(self):
    # Group 0: two of four solved. Group 1: nobody, lengths 0 and 1.
    outcomes = np.array([[True, True, False, False], [False] * 4])
    length = np.array([[0, 0, 0, 0], [0, 1, 0, 1]], np.float32)
    parts = np.stack([outcomes.astype(np.float32), length])
    weights = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0], [-1.0, -0.5]])
    result = weightings.apply(
        parts, weights, outcomes, np.ones((2, 4), bool), advantage='group_mean'
    )
    np.testing.assert_array_equal(result.dead_groups, [0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(result.sign_agreement, [1, 0, 1, 0])
    # Mass 4 * 0.5 of outcome against 4 * 0.5 |weight| of length.
    np.testing.assert_allclose(
        result.phantom_share, [0, 1, 1 / 2, 1 / 3], rtol=1e-6
    )
    np.testing.assert_array_equal(
        result.advantages[2], [[0.5, 0.5, -0.5, -0.5], [0.5, -0.5, 0.5, -0.5]]
    )

  def test_equal_rewards_have_no_phantom_of_rounding(self):
    # 0.1 + 0.7 and similar: the mean of equal float32 numbers may differ.
    parts = np.full((3, 2, 7), 0.1, np.float32)
    weights = np.random.default_rng(0).normal(size=(50, 3))
    none = np.zeros((2, 7), bool)
    result = weightings.apply(parts, weights, none, ~none)
    np.testing.assert_array_equal(result.advantages, 0)
    np.testing.assert_array_equal(result.dead_groups, 1)
    np.testing.assert_array_equal(result.phantom_share, 0)
    self.assertTrue(np.isnan(result.sign_agreement).all())

  def test_blocks_do_not_show(self):
    parts, outcomes, valid = _rollouts(prompts=300, group=16)
    weights = np.random.default_rng(0).normal(size=(60, 4))
    together = weightings.apply(parts, weights, outcomes, valid)
    for w in (0, 13, 14, 59):  # 1 << 16 numbers are 13 weightings of 4,800.
      alone = weightings.apply(parts, weights[w : w + 1], outcomes, valid)
      for name, values in vars(alone).items():
        np.testing.assert_allclose(
            values[0], getattr(together, name)[w], atol=1e-5, rtol=1e-4
        )

  def test_refused(self):
    parts, outcomes, valid = _rollouts()
    weights = np.ones((1, 4))
    with self.assertRaisesRegex(ValueError, "advantage='gae' is none of"):
      weightings.apply(parts, weights, outcomes, valid, advantage='gae')
    with self.assertRaisesRegex(ValueError, 'groups of 1'):
      weightings.apply(parts[..., :1], weights, outcomes[:, :1], valid[:, :1])
    parts[0, 0, 0] = np.nan
    with self.assertRaisesRegex(ValueError, 'NaN'):
      weightings.apply(parts, weights, outcomes, valid)


if __name__ == '__main__':
  absltest.main()
