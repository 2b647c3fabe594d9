from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import advantages

ALL = tuple(advantages.ADVANTAGES)

# Group 0: 1, 2, 6 valid, mean 3, deviations -2, -1, 3, squares 4 + 1 + 9 = 14.
# Group 1: 0, 0, 1, 1, mean 1/2. Group 2: one valid. Group 3: none.
REWARDS = [
    [1.0, 2.0, 100.0, 6.0],
    [0.0, 0.0, 1.0, 1.0],
    [5.0, 1.0, 1.0, 1.0],
    [1.0, 2.0, 3.0, 4.0],
]
VALID = [
    [True, True, False, True],
    [True, True, True, True],
    [True, False, False, False],
    [False, False, False, False],
]
STD_0 = 7**0.5  # sqrt(14 / (3 - 1))
STD_1 = (1 / 3) ** 0.5  # sqrt(4 * 0.25 / (4 - 1))
EXPECTED = {
    'group_mean': [[-2, -1, 0, 3], [-0.5, -0.5, 0.5, 0.5], [0] * 4, [0] * 4],
    'group_norm': [
        [-2 / STD_0, -1 / STD_0, 0, 3 / STD_0],
        [-0.5 / STD_1, -0.5 / STD_1, 0.5 / STD_1, 0.5 / STD_1],
        [0] * 4,
        [0] * 4,
    ],
    # 1 - (2 + 6) / 2 = -3; 2 - 3.5 = -1.5; 6 - 1.5 = 4.5. 0 - 2/3; 1 - 1/3.
    'leave_one_out': [
        [-3, -1.5, 0, 4.5],
        [-2 / 3, -2 / 3, 2 / 3, 2 / 3],
        [0] * 4,
        [0] * 4,
    ],
}


class AdvantagesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(jax.numpy_rank_promotion('raise'))

  @parameterized.product(name=ALL, variant=('numpy', 'jax', 'jitted'))
  def test_hand_worked(self, name, variant):
    fn = advantages.ADVANTAGES[name]
    fn = jax.jit(fn) if variant == 'jitted' else fn
    xp = np if variant == 'numpy' else jnp
    out = fn(xp.asarray(REWARDS, dtype=xp.float32), xp.asarray(VALID))
    self.assertEqual(out.dtype, np.float32)
    self.assertEqual(isinstance(out, jax.Array), xp is jnp)
    # eps = 1e-6 on a spread of ~1, and float32 rounding.
    np.testing.assert_allclose(out, EXPECTED[name], rtol=4e-6, atol=1e-6)

  def test_eps_is_added_to_the_standard_deviation(self):
    rewards = np.asarray([[0.0, 1.0]], np.float32)
    out = advantages.group_norm(rewards, np.ones((1, 2), bool), eps=0.5)
    # mean 0.5, std sqrt(2 * 0.25 / 1) = 0.70711: 0.5 / 1.20711 = 0.41421.
    np.testing.assert_allclose(out, [[-0.414214, 0.414214]], rtol=1e-5)

  @parameterized.product(name=ALL, reward=(0.1, -1 / 3, 1e6 + 0.1))
  def test_equal_rewards_give_exactly_zero(self, name, reward):
    # The rounded mean of seven times 0.1 is not 0.1; divided by eps, the error
    # would become a gradient without any signal.
    rewards = np.full((1, 7), reward, np.float32)
    valid = np.ones((1, 7), bool)
    out = advantages.ADVANTAGES[name](rewards, valid)
    np.testing.assert_array_equal(out, np.zeros((1, 7)))

  @parameterized.parameters(*ALL)
  def test_invalid_rewards_do_not_matter(self, name):
    rewards = np.asarray(REWARDS, np.float32)
    valid = np.asarray(VALID)
    hostile = np.where(valid, rewards, np.nan)
    fn = advantages.ADVANTAGES[name]
    np.testing.assert_array_equal(fn(hostile, valid), fn(rewards, valid))

  @parameterized.parameters(*ALL)
  def test_equivariant_to_permutations(self, name):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(5, 6)).astype(np.float32)
    valid = rng.random((5, 6)) < 0.7
    groups, members = rng.permutation(5), rng.permutation(6)
    fn = advantages.ADVANTAGES[name]
    np.testing.assert_allclose(
        fn(rewards[groups][:, members], valid[groups][:, members]),
        fn(rewards, valid)[groups][:, members],
        rtol=1e-5,
        atol=1e-6,
    )

  @parameterized.parameters(*ALL)
  def test_groups_do_not_see_each_other(self, name):
    fn = advantages.ADVANTAGES[name]
    rewards = jnp.asarray(REWARDS)
    valid = jnp.asarray(VALID)
    alone = jax.vmap(lambda r, v: fn(r[None], v[None])[0])(rewards, valid)
    np.testing.assert_allclose(alone, fn(rewards, valid), rtol=1e-6)

  @parameterized.parameters(*ALL)
  def test_invariant_to_a_shift_of_rewards(self, name):
    rewards = np.asarray(REWARDS, np.float32)
    fn = advantages.ADVANTAGES[name]
    np.testing.assert_allclose(
        fn(rewards + 8, np.asarray(VALID)),
        fn(rewards, np.asarray(VALID)),
        rtol=1e-6,
    )

  def test_rejects_wrong_input(self):
    one = np.ones((2, 1), np.float32)
    with self.assertRaisesRegex(ValueError, r'\(2, 1\).*G >= 2'):
      advantages.group_mean(one, np.ones((2, 1), bool))
    with self.assertRaisesRegex(ValueError, 'eps=0'):
      advantages.group_norm(
          np.ones((2, 2), np.float32), np.ones((2, 2), bool), eps=0.0
      )


if __name__ == '__main__':
  absltest.main()
