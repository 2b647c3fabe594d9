import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.eval import scores

# Right of 4: 0, 1, 2, 4.
OUTCOMES = np.array(
    [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]], bool
)


class ScoresTest(parameterized.TestCase):

  def test_shares_of_problems(self):
    graded = np.ones_like(OUTCOMES)
    shares = scores.of_problems(OUTCOMES, graded)
    self.assertEqual(shares.tolist(), [0, 1 / 4, 1 / 2, 1])
    graded[2, 0] = False  # One of two right answers remains.
    self.assertEqual(scores.of_problems(OUTCOMES, graded)[2], 1 / 3)

  @parameterized.parameters(
      (1, 7 / 16),
      # 1 - C(4 - c, 2) / C(4, 2): 0, 1 - 3/6, 1 - 1/6, 1.
      (2, (0 + 1 / 2 + 5 / 6 + 1) / 4),
      # 1 - C(4 - c, 3) / C(4, 3): 0, 1 - 1/4, 1, 1.
      (3, (0 + 3 / 4 + 1 + 1) / 4),
      (4, 3 / 4),
  )
  def test_pass_at_k_hand_worked(self, k, expected):
    self.assertAlmostEqual(scores.pass_at_k(OUTCOMES, k), expected, places=14)

  def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(self):
    outcomes = np.random.default_rng(0).random((7, 6)) < 0.3
    for k in range(1, 7):
      subsets = [
          outcomes[:, list(subset)].any(axis=1)
          for subset in itertools.combinations(range(6), k)
      ]
      self.assertAlmostEqual(
          scores.pass_at_k(outcomes, k), np.mean(subsets), places=12
      )

  def test_many_samples(self):
    outcomes = np.zeros((1, 2000), bool)
    outcomes[0, 0] = True
    # With one right of n, the chance that it is among k is k / n.
    self.assertAlmostEqual(
        scores.pass_at_k(outcomes, 1000), 1000 / 2000, places=12
    )

  @parameterized.parameters(0, 5)
  def test_k_beyond_the_samples_is_refused(self, k):
    some = np.ones_like(OUTCOMES)
    some[0, 0] = False
    for graded in (None, some):
      with self.assertRaisesRegex(ValueError, r'4 samples.*eval\.samples'):
        scores.pass_at_k(OUTCOMES, k, graded)

  @parameterized.parameters(
      dict(shape=(0, 4)), dict(shape=(4,)), dict(shape=(4, 4), dtype=float)
  )
  def test_what_is_no_outcome_table_is_refused(self, shape, dtype=bool):
    # With type checks on, the annotation is refused first.
    with self.assertRaises((ValueError, TypeError)):
      scores.pass_at_k(np.zeros(shape, dtype), 1)


if __name__ == '__main__':
  absltest.main()
