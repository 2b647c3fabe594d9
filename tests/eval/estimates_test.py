from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats

from evojax.eval import estimates
from evojax.ledger import records


def _rng():
  return np.random.default_rng(0)


def _logistic(x):
  return 1 / (1 + np.exp(-x))


def _coverage(simulate, truth, runs):
  """Return the share of simulated intervals that contain the truth."""
  estimates = [simulate() for _ in range(runs)]
  return np.mean([e.low <= truth <= e.high for e in estimates])


def _band(runs):
  """Return the coverages within which 99.9 % of exact 95 % intervals fall."""
  low, high = stats.binom.interval(0.999, runs, 0.95)
  return low / runs, high / runs


class OverProblemsTest(parameterized.TestCase):

  def test_hand_worked_standard_error(self):
    # Mean 0.5, deviations -0.5, 0, 0.5, 0: squares 0.5; / (4 * 3), root.
    error = estimates.standard_error(np.array([0.0, 0.5, 1.0, 0.5]))
    self.assertAlmostEqual(error, (0.5 / 12) ** 0.5, places=15)

  def test_repeating_a_sample_adds_no_information(self):
    once = _rng().random((50, 1)) < 0.4
    often = np.repeat(once, 8, axis=1)
    one, eight = (
        estimates.over_problems(x.mean(axis=1), rng=_rng())
        for x in (once, often)
    )
    # Treating the 400 completions as independent would divide it by sqrt(8).
    self.assertEqual(one, eight)

  @parameterized.parameters(12, 256)
  def test_interval_of_symmetric_scores_is_that_of_student(self, count):
    # Normal quantiles: mean 0, and no skew to change the interval.
    scores = stats.norm.ppf((np.arange(count) + 0.5) / count)
    result = estimates.over_problems(scores, rng=_rng())
    half = stats.t.ppf(0.975, count - 1) * scores.std(ddof=1) / count**0.5
    # 10,000 resamples place a 2.5 % percentile within about 2 % of its value.
    np.testing.assert_allclose(
        [result.low, result.high], [-half, half], rtol=0.05
    )
    self.assertAlmostEqual(result.value, 0, places=12)

  def test_interval_keeps_the_skew(self):
    scores = np.r_[np.zeros(30), 1.0, 1.0]
    result = estimates.over_problems(scores, rng=_rng())
    self.assertGreaterEqual(result.low, 0)
    self.assertGreater(result.high - result.value, result.value - result.low)

  def test_scores_that_agree_have_no_width(self):
    result = estimates.over_problems(np.ones(20), rng=_rng())
    self.assertEqual(result, records.Estimate(1.0, 0.0, 1.0, 1.0))

  def test_equal_scores_of_a_known_range_have_a_width(self):
    # 0.861^20 = 0.05: so many problems may be solved as well as not.
    over = lambda x, within: estimates.over_problems(x, within=within)
    ends = lambda found: [found.low, found.high]
    none = over(np.zeros(20), estimates.SHARES)
    self.assertEqual((none.value, none.standard_error), (0, 0))
    np.testing.assert_allclose(ends(none), [0, 0.139], atol=1e-3)
    every = over(np.ones(20), estimates.SHARES)
    np.testing.assert_allclose(ends(every), [0.861, 1], atol=1e-3)
    gain = over(np.zeros(20), estimates.GAINS)
    np.testing.assert_allclose(ends(gain), [-0.139, 0.139], atol=1e-3)
    few = over(np.zeros(2), estimates.SHARES)
    np.testing.assert_allclose(ends(few), [0, 1 - 0.05**0.5])

  def test_pieces_do_not_change_the_number_of_resamples(self):
    sizes = []
    draw = lambda count: sizes.append(count) or np.zeros(count)
    for size in (1, 7, 5000, 1 << 30):
      sizes.clear()
      self.assertLen(estimates._resample(draw, size), estimates.RESAMPLES)
      self.assertLessEqual(max(sizes) * size, max(1 << 18, size))

  def test_same_generator_same_interval(self):
    scores = _rng().random(64)
    first, second, other = (
        estimates.over_problems(scores, rng=np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    self.assertEqual(first, second)
    self.assertNotEqual(first, other)

  def test_covers_the_truth(self):
    rng = _rng()
    truth = _logistic(rng.normal(-0.5, 1.5, 1_000_000)).mean()

    def simulate():
      solved = _logistic(rng.normal(-0.5, 1.5, (64, 1)))
      outcomes = rng.random((64, 8)) < solved
      return estimates.over_problems(outcomes.mean(axis=1), rng=rng)

    low, high = _band(400)
    coverage = _coverage(simulate, truth, 400)
    self.assertBetween(coverage, low, high)

  @parameterized.parameters(
      (np.ones(1), 'eval.problems'), (np.array([1.0, np.nan]), 'NaN')
  )
  def test_refused(self, scores, message):
    with self.assertRaisesRegex(ValueError, message):
      estimates.over_problems(scores, rng=_rng())


class PairedGainTest(absltest.TestCase):

  def test_hand_worked(self):
    before = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], bool)
    after = np.array([[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]], bool)
    # Differences 2/3, 1/2, 0, -1/6: mean 1/4; deviations 5/12, 3/12, -3/12,
    # -5/12: squares 68/144; / (4 * 3).
    result = estimates.paired_gain(before.mean(1), after.mean(1), rng=_rng())
    self.assertAlmostEqual(result.value, 0.25, places=15)
    self.assertAlmostEqual(
        result.standard_error, (68 / 144 / 12) ** 0.5, places=15
    )

  def test_hardness_of_problems_cancels(self):
    # Problems are all solved or not at all; the gain is 1 of 8 everywhere.
    before = np.zeros((60, 8), bool)
    before[::2, 1:] = True
    after = before.copy()
    after[:, 0] = True
    result = estimates.paired_gain(before.mean(1), after.mean(1), rng=_rng())
    self.assertEqual((result.value, result.standard_error), (0.125, 0.0))
    # So many of all problems may have gained anything from -1 to 1.
    others = 1 - 0.05 ** (1 / 60)
    self.assertAlmostEqual(result.low, 0.125 - others * 1.125)
    self.assertAlmostEqual(result.high, 0.125 + others * 0.875)

  def test_order_of_problems_matters(self):
    before = np.repeat([1.0, 0.0], 10)
    paired = estimates.paired_gain(before, before, rng=_rng())
    shuffled = estimates.paired_gain(before, before[::-1], rng=_rng())
    self.assertEqual(paired.standard_error, 0)
    self.assertGreater(shuffled.standard_error, 0.2)

  def test_other_problems_are_refused(self):
    # With type checks on, the annotation is refused first.
    with self.assertRaises((ValueError, TypeError)):
      estimates.paired_gain(np.ones(3), np.ones(2), rng=_rng())


class OverSeedsTest(parameterized.TestCase):

  @parameterized.parameters((False, 0.0625), (True, 0.125))
  def test_hand_worked_standard_error(self, same_problems, square):
    # Seed means 0.25, 0.75: variance 0.125, / 2 = 0.0625. Problem means
    # likewise, and nothing is left over. Within a seed the variance is 0.125,
    # / (2 * 2) = 0.03125: less than the seeds account for.
    scores = np.array([[0.0, 0.5], [0.5, 1.0]])
    result = estimates.over_seeds(
        scores, same_problems=same_problems, rng=_rng()
    )
    self.assertAlmostEqual(result.value, 0.5, places=15)
    self.assertAlmostEqual(result.standard_error, square**0.5, places=15)

  @parameterized.parameters(False, True)
  def test_seeds_that_agree_by_chance_do_not_hide_the_problems(
      self, same_problems
  ):
    # Seed and problem means are all 0.5. Nested: variance 0.5 in each seed,
    # / (2 * 2). Crossed: left over +-0.5, squares 1, 1 degree, / (2 * 2).
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    result = estimates.over_seeds(
        scores, same_problems=same_problems, rng=_rng()
    )
    square = 0.25 if same_problems else 0.125
    self.assertAlmostEqual(result.standard_error, square**0.5, places=15)
    self.assertLess(result.low, result.high)

  def test_spread_between_seeds_is_in_the_interval(self):
    # Problems are all alike; over problems alone, the interval has no width.
    scores = np.repeat([[0.3], [0.4], [0.5], [0.6], [0.7]], 100, axis=1)
    result = estimates.over_seeds(scores, same_problems=False, rng=_rng())
    # Variance 0.025, / 5.
    self.assertAlmostEqual(result.standard_error, 0.005**0.5, places=12)
    # t_{0.975, 4} = 2.776: +- 0.196; as percentiles of 5 equidistant values,
    # which end at 0.3 and 0.7, nearly so.
    np.testing.assert_allclose(
        [result.low, result.high], [0.304, 0.696], atol=0.02
    )

  @parameterized.parameters(
      (2, False), (2, True), (3, False), (3, True), (5, False), (5, True)
  )
  def test_few_seeds_that_differ_much(self, seeds, same_problems):
    rng = _rng()

    def simulate():
      hardness = 0.1 * rng.normal(size=(1 if same_problems else seeds, 64))
      scores = 0.5 + 0.1 * rng.normal(size=(seeds, 1)) + hardness
      return estimates.over_seeds(
          scores, same_problems=same_problems, rng=rng
      )

    with mock.patch.object(estimates, 'RESAMPLES', 1000):
      coverage = _coverage(simulate, 0.5, 300)
    self.assertGreaterEqual(coverage, _band(300)[0])

  def _simulate(self, rng, same_problems, treated_as):
    """Return five seeds of one recipe on 32 problems, 8 samples each."""
    hardness = rng.normal(0, 1.5, (1 if same_problems else 5, 32))
    solved = _logistic(hardness + 0.2 * rng.normal(size=(5, 1)))
    scores = (rng.random((8, 5, 32)) < solved).mean(axis=0)
    return estimates.over_seeds(scores, same_problems=treated_as, rng=rng)

  @parameterized.parameters(False, True)
  def test_covers_the_truth(self, same_problems):
    rng = _rng()
    low, high = _band(300)
    with mock.patch.object(estimates, 'RESAMPLES', 2000):
      simulate = lambda: self._simulate(rng, same_problems, same_problems)
      # Hardness and seeds are symmetric about an even chance.
      coverage = _coverage(simulate, 0.5, 300)
    # Conservative if seeds differ little, but never too narrow.
    self.assertBetween(coverage, low, high if same_problems else 1)

  def test_shared_problems_are_not_independent_evidence(self):
    rng = _rng()
    with mock.patch.object(estimates, 'RESAMPLES', 2000):
      simulate = lambda: self._simulate(rng, True, False)
      self.assertLess(_coverage(simulate, 0.5, 100), 0.85)

  @parameterized.parameters(((1, 5), 'train more seeds'), ((5, 1), 'problems'))
  def test_refused(self, shape, message):
    with self.assertRaisesRegex(ValueError, message):
      estimates.over_seeds(np.zeros(shape), same_problems=True, rng=_rng())


if __name__ == '__main__':
  absltest.main()
