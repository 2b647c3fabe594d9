"""Stopping an arm at its half: hand-worked cases and a simulation."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats

from evojax.eval import futility

FAMILIES = 2_000  # Simulated trials.


class EarlyTest(parameterized.TestCase):
  # Four incumbents that rise from 0.2 to 0.6, at 0, +-0.02, +0.04 around it.
  rise = np.linspace(0.2, 0.6, 16)
  incumbents = rise + np.array([[0.0], [0.02], [-0.02], [0.04]])

  @parameterized.named_parameters(
      ('like_the_incumbents', rise, None),
      ('better', rise + 0.3, None),
      # Controls: mean +0.01, sigma^2 = (.0001 + .0001 + .0009 + .0009) / 3;
      # t_.975 = 3.182 * sqrt(sigma^2 * 1.25) = 0.0919: futile from -0.0819.
      ('just_not_futile', rise - 0.081, None),
      ('just_futile', rise - 0.083, 'futility'),
      # The last quarter of the incumbents is 0.56 + 0.01 on average.
      ('half', np.r_[rise[:12], [0.29] * 4], None),
      ('collapsed', np.r_[rise[:12], [0.28] * 4], 'collapse'),
      # Low for long, recovered in the last quarter: futile, not collapsed.
      ('recovered', np.r_[np.zeros(12), rise[12:]], 'futility'),
      ('dead', np.zeros(16), 'collapse'),
  )
  def test_boundaries(self, candidate, expected):
    self.assertEqual(futility.early(candidate, self.incumbents), expected)

  def test_nothing_solved_by_anyone_is_no_collapse(self):
    self.assertIsNone(futility.early(np.zeros(8), np.zeros((4, 8))))

  def test_below_half_of_noisy_incumbents_is_no_collapse(self):
    # Their mean is 0.05, but one of them solves no more than the candidate.
    incumbents = np.tile([[0.0], [0.04], [0.06], [0.10]], 8)
    self.assertIsNone(futility.early(np.full(8, 0.02), incumbents))

  def test_prompts_that_all_arms_share_cancel(self):
    prompts = 10 * np.random.default_rng(0).random(16)
    self.assertIsNone(
        futility.early(self.rise - 0.081 + prompts, self.incumbents + prompts)
    )
    self.assertEqual(
        futility.early(self.rise - 0.083 + prompts, self.incumbents + prompts),
        'futility',
    )

  def test_incumbents_that_tie_leave_the_spread_over_updates(self):
    # Differences -0.02 +- 0.1 alternating: error 0.1 / 4 or so, not 0.
    candidate = 0.5 - 0.02 + 0.1 * np.resize([1, -1], 16)
    self.assertIsNone(futility.early(candidate, np.full((4, 16), 0.5)))

  @parameterized.parameters(((4,), (1, 4)), ((3,), (2, 4)), ((0,), (2, 0)))
  def test_refused(self, candidate, incumbents):
    # A TypeError if annotations are checked.
    with self.assertRaisesRegex((ValueError, TypeError), 'must be|T=3'):
      futility.early(np.zeros(candidate), np.zeros(incumbents))


class SimulatedTest(absltest.TestCase):

  def test_candidates_like_the_incumbents_are_rarely_stopped(self):
    # Outcomes drift as a policy's do, so they are far from independent from
    # update to update.
    rng = np.random.default_rng(0)
    walk = rng.normal(0, 0.02, (FAMILIES, 5, 15)).cumsum(axis=2)
    prompts = rng.normal(0, 0.05, (FAMILIES, 1, 15))
    noise = rng.normal(0, 0.03, walk.shape)
    outcomes = 0.5 + walk + prompts + noise
    stopped = [futility.early(family[0], family[1:]) for family in outcomes]
    share = lambda name: np.mean([why == name for why in stopped])
    self.assertLess(share('collapse'), 0.005)
    self.assertLess(
        share('futility'),
        stats.binom.interval(0.99, FAMILIES, 0.025)[1] / FAMILIES,
    )
    # From the spread over updates alone, it would be a third of this.
    difference = outcomes[:, 0] - outcomes[:, 1:].mean(axis=1)
    error = difference.std(axis=1, ddof=1) / 15**0.5
    self.assertGreater(np.mean(difference.mean(1) + 2.145 * error < 0), 0.2)


if __name__ == '__main__':
  absltest.main()
