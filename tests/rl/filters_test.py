from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.rl import filters

# name: rewards, outcomes, valid, kept by reward_variance, outcome_variance.
CASES = {
    'solved_and_not': ([0, 1, 1], [0, 1, 1], [1, 1, 1], True, True),
    'all_solved_shaped': ([1, 1.2, 1], [1, 1, 1], [1, 1, 1], True, False),
    # Parts that cancel: outcomes differ, rewards do not.
    'cancelled': ([1, 1, 1], [0, 1, 1], [1, 1, 1], False, True),
    # The std of two values at distance d is d / 2; the bound is 1e-3.
    'just_under': ([0, 1.9e-3], [0, 0], [1, 1], False, False),
    'just_over': ([0, 2.1e-3], [0, 0], [1, 1], True, False),
    'float32_rounding': ([0.3, 0.1 + 0.2], [1, 1], [1, 1], False, False),
    'differs_only_where_invalid': (
        [1, 1, 9],
        [1, 1, 0],
        [1, 1, 0],
        False,
        False,
    ),
    'nan_where_invalid': ([0, 1, np.nan], [0, 1, 0], [1, 1, 0], True, True),
    'one_valid': ([1, 5, 5], [1, 0, 0], [1, 0, 0], False, False),
    'none_valid': ([1, 2, 3], [1, 0, 0], [0, 0, 0], False, False),
}


class FiltersTest(parameterized.TestCase):

  @parameterized.named_parameters((name, *case) for name, case in CASES.items())
  def test_case(self, rewards, outcomes, valid, by_reward, by_outcome):
    arrays = (
        np.asarray([rewards], np.float32),
        np.asarray([outcomes], bool),
        np.asarray([valid], bool),
    )
    for name, kept in (
        ('all', True),
        ('reward_variance', by_reward),
        ('outcome_variance', by_outcome),
    ):
      out = filters.KEEP[name](*arrays)
      self.assertEqual(out.dtype, bool)
      np.testing.assert_array_equal(out, np.full(out.shape, kept), err_msg=name)

  def test_keeps_whole_groups_in_place(self):
    rewards = np.asarray([[0, 0], [0, 1], [1, 1], [1, 0]], np.float32)
    for name in ('reward_variance', 'outcome_variance'):
      out = filters.KEEP[name](rewards, rewards > 0, np.ones((4, 2), bool))
      np.testing.assert_array_equal(
          out, [[False, False], [True, True], [False, False], [True, True]]
      )


if __name__ == '__main__':
  absltest.main()
