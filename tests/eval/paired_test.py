import itertools
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from scipy import stats

from evojax.eval import paired

_NONE = [0.0] * 4  # Unknown errors.
_D = [0.031, 0.004, -0.012, 0.045]


class GainTest(parameterized.TestCase):

  def test_hand_worked(self):
    # Mean 0.02, variance 2 * 0.01^2 / 1, error sqrt(0.0002 / 2) = 0.01.
    found = paired.gain([0.01, 0.03], [0.0, 0.0])
    self.assertAlmostEqual(found.value, 0.02)
    self.assertAlmostEqual(found.standard_error, 0.01)
    self.assertEqual(found.df, 1)
    # Student's t with one degree of freedom is Cauchy's: tan(0.475 pi).
    self.assertAlmostEqual(found.low, 0.02 - 0.127062, places=6)
    self.assertAlmostEqual(found.high, 0.02 + 0.127062, places=6)
    # t = 2: 1/2 - atan(2) / pi.
    p = paired.p_value([0.01, 0.03], [0.0, 0.0])
    self.assertAlmostEqual(p, 0.5 - math.atan(2) / math.pi)
    # The hypothesis is a mean <= 0.01; t = 1: 1/4.
    p = paired.p_value([0.01, 0.03], [0.0, 0.0], null=0.01)
    self.assertAlmostEqual(p, 0.25)

  def test_other_groups_by_hand(self):
    # Squares 0.0002 + 0.0008 of 3 degrees of freedom: a spread of 0.018257, and
    # an error of 0.012910 for two pairs, above their own 0.01.
    groups = [0.01, 0.03], [0.0, 0.02, 0.04]
    found = paired.gain(*groups[:1], [0.0, 0.0], groups=groups)
    self.assertAlmostEqual(found.standard_error, 0.0129099, places=7)
    self.assertEqual(found.df, 3)
    # 3.182446 is the quantile 0.975 of Student's t.
    self.assertAlmostEqual(found.high, 0.02 + 3.182446 * 0.0129099, places=6)
    # Pairs that vary more than the others keep their own error.
    found = paired.gain([0.0, 0.2], [0.0, 0.0], groups=groups)
    self.assertAlmostEqual(found.standard_error, 0.1)

  def test_agrees_with_scipy(self):
    p = paired.p_value(_D, _NONE, null=0.005)
    other = stats.ttest_1samp(_D, 0.005, alternative='greater')
    self.assertAlmostEqual(p, other.pvalue, places=12)
    found = paired.gain(_D, _NONE, level=0.8)
    low, high = stats.ttest_1samp(_D, 0).confidence_interval(0.8)
    self.assertAlmostEqual(found.low, low, places=12)
    self.assertAlmostEqual(found.high, high, places=12)

  def test_scale_sign_and_order(self):
    p = paired.p_value(_D, _NONE)
    thousand = [1000 * d for d in _D]
    self.assertAlmostEqual(paired.p_value(thousand, _NONE), p, places=12)
    negative = [-d for d in _D]
    self.assertAlmostEqual(paired.p_value(negative, _NONE), 1 - p, places=12)
    for order in itertools.permutations(_D):
      self.assertAlmostEqual(paired.p_value(order, _NONE), p, places=12)

  def test_error_is_at_least_that_of_the_samples(self):
    # Pairs that agree: the error is sqrt(0.04^2 / 4) = 0.02 and t = 1.5.
    agree, errors = [0.03] * 4, [0.04] * 4
    self.assertAlmostEqual(paired.gain(agree, errors).standard_error, 0.02)
    expected = stats.t.sf(1.5, 3)
    self.assertAlmostEqual(paired.p_value(agree, errors), expected)
    # A mean below the null does not become better by it.
    low = [-0.03, -0.03, -0.03, -0.031]
    self.assertGreater(paired.p_value(low, errors), 0.99999)

  @parameterized.parameters((0.01, 0.0), (0.0, 1.0), (-0.01, 1.0))
  def test_no_spread_at_all(self, difference, expected):
    self.assertEqual(paired.p_value([difference] * 4, _NONE), expected)

  @parameterized.parameters(
      ([0.1], [0.0], '1 differences'),
      ([0.1, 0.2], [0.0], 'with 1 standard errors'),
      ([0.1, math.nan], [0.0, 0.0], 'NaN'),
  )
  def test_refused(self, differences, errors, message):
    with self.assertRaisesRegex(ValueError, message):
      paired.p_value(differences, errors)


class BetTest(parameterized.TestCase):

  @parameterized.parameters(
      # p0 = e^-1: p0 (1 + 1) = 2 / e. p0 = e^-3: 4 / e^3.
      (math.e / 2, math.exp(-1)),
      (math.e**3 / 4, math.exp(-3)),
      (1.0, 1.0),
      (0.5, 1.0),
  )
  def test_threshold_hand_worked(self, target, expected):
    self.assertAlmostEqual(paired.threshold(target), expected)

  def test_hand_worked(self):
    target = math.e**3 / 4
    at = lambda p, last=False: paired.bet(p, target, last=last)
    self.assertAlmostEqual(at(math.exp(-4)), target)
    self.assertAlmostEqual(at(math.exp(-3)), target)
    self.assertAlmostEqual(at(math.exp(-2)), target / math.e)
    self.assertAlmostEqual(at(1.0), 0.25)
    self.assertEqual(at(0.99 / target, last=True), target)
    self.assertEqual(at(1.01 / target, last=True), 0.0)
    # A candidate that has passed bets nothing more.
    self.assertEqual(paired.bet(1.0, 1.0, last=True), 1.0)

  @parameterized.product(pairs=(2, 3, 4, 8), target=(1.5, 12.2, 300.0))
  def test_mean_is_one_under_the_null(self, pairs, target):
    # By quadrature over t, with its distribution from another library.
    t = np.linspace(-400, 400, 100_001)
    if pairs == 2:  # The tails of Cauchy's distribution are too heavy.
      t = np.tan(np.pi * ((np.arange(100_000) + 0.5) / 100_000 - 0.5))
      weights = np.full(len(t), 1 / len(t))
    else:
      weights = stats.t.pdf(t, pairs - 1) * (t[1] - t[0])
    p = stats.t.sf(t, pairs - 1)
    e = paired.bet(p, target, last=False)
    self.assertAlmostEqual(float(weights @ e), 1, delta=2e-3)

  @parameterized.parameters(0.2, 0.033)
  def test_a_candidate_passes_with_its_level_under_the_null(self, alpha):
    # Three rounds, with each of 1,000 equally likely p-values in the first two;
    # the third passes with probability 1 / target.
    likely = (np.arange(1000) + 0.5) / 1000
    first = paired.bet(likely[:, None], 1 / alpha, last=False)
    second = paired.bet(likely, 1 / (alpha * first), last=False)
    e_value = np.where(first * alpha >= 1, first, first * second)
    passed = np.minimum(1, e_value * alpha).mean()
    self.assertAlmostEqual(passed, alpha, delta=0.01 * alpha)


class PowerTest(parameterized.TestCase):

  @parameterized.parameters((0.05, 0.02), (0.10, 0.03), (0.0, 0.02))
  def test_first_round_agrees_with_the_noncentral_t(self, effect, spread):
    for rounds in (1, 2):
      found = paired.power(effect, spread, pairs=4, alpha=0.05, rounds=rounds)
      level = 0.05 if rounds == 1 else paired.threshold(20.0)
      least = stats.t.isf(level, 3)
      expected = stats.nct.sf(least, 3, 2 * effect / spread)
      self.assertAlmostEqual(found[0], expected, delta=0.02)

  def test_null_spends_the_whole_level(self):
    found = paired.power(0.0, 0.02, pairs=4, alpha=0.05, rounds=3)
    self.assertAlmostEqual(found[-1], 0.05, delta=0.01)
    self.assertEqual(list(found), sorted(found))

  @parameterized.parameters(0.02, 0.001)
  def test_many_effects_at_once(self, spread):
    kwargs = dict(pairs=4, alpha=0.05, rounds=2, worth=0.01)
    effects = np.array([-0.3, -0.01, 0.0, 0.007, 0.0105, 0.02, 0.033, 0.3])
    found = paired.power_between(effects, spread, **kwargs)
    for effect, each in zip(effects, found, strict=True):
      alone = paired.power(effect, spread, **kwargs)[-1]
      self.assertAlmostEqual(each, alone, delta=0.02)

  def test_detectable(self):
    kwargs = dict(pairs=4, alpha=0.05, rounds=2)
    least = paired.detectable(0.02, **kwargs)
    self.assertAlmostEqual(
        paired.power(least, 0.02, **kwargs)[-1], 0.8, delta=0.01
    )
    # It scales with the spread.
    self.assertAlmostEqual(paired.detectable(0.06, **kwargs), 3 * least)
    more = paired.detectable(0.02, **(kwargs | dict(pairs=6)))
    self.assertLess(more, least)

  def test_what_is_given_up_is_not_found(self):
    options = dict(pairs=4, alpha=0.05, rounds=3)
    # With a spread of 2, the first half of 2 pairs has a standard error of
    # 1.41, and 0.84 of that is 1.19: a mean below 0.81 is given up.
    for effect in (0.01, 0.02, 0.05):
      always = paired.power(effect, 0.02, **options)
      found = paired.power(effect, 0.02, worth=0.02, **options)
      for less, more in zip(found, always, strict=True):
        self.assertLessEqual(less, more)
      early = stats.norm.cdf((0.0081 - effect) / 0.0141)
      self.assertLess(found[-1], 1 - early + 0.01)
    # So a small gain may be missed, however stable the pairs are.
    self.assertLess(paired.power(0.019, 1e-4, worth=0.02, **options)[-1], 0.01)
    self.assertGreater(paired.detectable(0.001, worth=0.02, **options), 0.019)
    # Without looks, nothing is given up.
    self.assertEqual(
        paired.power(0.01, 0.02, worth=-1.0, **options),
        paired.power(0.01, 0.02, **options),
    )


if __name__ == '__main__':
  absltest.main()
