from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd
from scipy import stats

from evojax.evolve import promote
from tests.evolve import recompute


def _effect(value=0.05, p=0.001, low=0.01):
  return promote.Effect(
      value=value,
      standard_error=0.01,
      df=3.0,
      sigma_seed=0.01,
      se_problems=0.01,
      low=low,
      high=0.1,
      p_one_sided=p,
      wilcoxon_p=0.5,
  )


def _trial(rng, controls=4, children=2, problems=24):
  hard = rng.random(problems)
  score = lambda arms: (rng.random((arms, problems, 4)) < hard[:, None]).mean(2)
  return score(controls), score(children)


class EstimateTest(parameterized.TestCase):

  def test_hand_worked(self):
    # Controls 0.2, 0.4: mean 0.3, variance 0.02. Child 0.6.
    control = np.array([[0.2, 0.2, 0.2], [0.4, 0.4, 0.4]])
    child = np.array([[0.6, 0.6, 0.6]])
    effect = promote.estimate(control, child)
    self.assertAlmostEqual(effect.value, 0.3)
    self.assertAlmostEqual(effect.sigma_seed**2, 0.02)
    # All differences equal: no interaction. 0.02 * (1/2 + 1/1) = 0.03.
    self.assertAlmostEqual(effect.standard_error**2, 0.03)
    self.assertAlmostEqual(effect.se_problems, 0)
    self.assertAlmostEqual(effect.df, 1)
    # Student's t with one degree of freedom is Cauchy's: at sqrt(3) its upper
    # tail is 1/2 - atan(sqrt(3)) / pi = 1/2 - 1/3.
    self.assertAlmostEqual(effect.p_one_sided, 1 / 6)
    # tan(0.475 pi) = 12.7062.
    self.assertAlmostEqual(effect.low, 0.3 - 12.7062047 * 0.03**0.5, places=6)
    self.assertAlmostEqual(effect.high, 0.3 + 12.7062047 * 0.03**0.5, places=6)

  def test_hand_worked_interaction(self):
    # Both arms of a role agree but for their level, so nothing is left over and
    # all of the variance of d = (0.4, -0.2) is interaction:
    # mean 0.1, squares 2 * 0.3^2 = 0.18, / (2 - 1) / 2 problems = 0.09.
    control = np.array([[0.1, 0.3], [0.3, 0.5]])  # Means 0.2, 0.4.
    child = np.array([[0.4, 0.0], [0.8, 0.4]])  # Means 0.2, 0.6.
    effect = promote.estimate(control, child)
    self.assertAlmostEqual(effect.value, 0.1)
    # Squares 2 * 0.1^2 and 2 * 0.2^2, / (2 + 2 - 2).
    self.assertAlmostEqual(effect.sigma_seed**2, 0.05)
    # 0.05 * (1/2 + 1/2) + 0.09.
    self.assertAlmostEqual(effect.standard_error**2, 0.14)
    self.assertAlmostEqual(effect.se_problems**2, 0.09)
    # 0.14^2 / (0.05^2 / 2 + 0.09^2 / 1 + 0) = 2.0963.
    self.assertAlmostEqual(effect.df, 0.0196 / 0.00935)

  def test_noise_that_the_arms_hold_is_not_counted_twice(self):
    # Rest of the controls: +-0.1 in a 2 x 2 table, squares 4 * 0.01 = 0.04 on
    # one degree of freedom; the same for the child; d = 0 everywhere.
    control = np.array([[0.6, 0.4], [0.4, 0.6]]) + [[0.0], [0.2]]
    effect = promote.estimate(control, control)
    self.assertAlmostEqual(effect.value, 0)
    # Control means 0.5, 0.7: 0.02 * (1/2 + 1/2), and no interaction.
    self.assertAlmostEqual(effect.standard_error**2, 0.02)
    self.assertAlmostEqual(effect.p_one_sided, 0.5)

  @parameterized.product(seed=(0, 1, 2, 3), shape=((2, 1), (4, 2), (5, 3)))
  def test_agrees_with_the_independent_computation(self, seed, shape):
    rng = np.random.default_rng(seed)
    control, child = _trial(rng, *shape)
    if seed % 2:
      child = np.minimum(1, child + rng.random(control.shape[1]))
    effect = promote.estimate(control, child)
    other = recompute.effect(pd.DataFrame(control.T), pd.DataFrame(child.T))
    self.assertAlmostEqual(effect.value, other['effect'], places=12)
    self.assertAlmostEqual(effect.p_one_sided, other['p'], places=12)
    for name in ('standard_error', 'df', 'sigma_seed', 'low', 'high'):
      self.assertAlmostEqual(getattr(effect, name), other[name], places=10)
    difference = child.mean(0) - control.mean(0)
    # Zeros are left out beforehand: SciPy does so only up to a rounding error.
    ranks = stats.wilcoxon(
        difference[difference != 0],
        alternative='greater',
        method='approx',
        correction=False,
    )
    self.assertAlmostEqual(effect.wilcoxon_p, ranks.pvalue, places=12)

  def test_order_and_difficulty_of_problems_cancel(self):
    rng = np.random.default_rng(0)
    control, child = _trial(rng)
    effect = promote.estimate(control, child)
    order, hard = rng.permutation(24), rng.random(24)
    other = promote.estimate(
        control[::-1, order] + hard, child[::-1, order] + hard
    )
    for name, value in vars(effect).items():
      # Rounding can order ranks that were tied.
      if name != 'wilcoxon_p':
        self.assertAlmostEqual(getattr(other, name), value, places=9, msg=name)

  def test_spread_between_seeds_counts(self):
    # Every problem agrees that the child is 0.04 better, and so do some of the
    # controls: pairing over problems alone would be sure.
    control = np.tile([[0.40], [0.44], [0.48], [0.52]], 64)
    child = np.tile([[0.48], [0.52]], 64)
    effect = promote.estimate(control, child)
    self.assertLess(effect.se_problems, 1e-12)
    self.assertLess(effect.wilcoxon_p, 1e-9)
    self.assertGreater(effect.p_one_sided, 0.1)

  def test_controls_that_tie_are_no_proof(self):
    # The arms' means tie at 0.5 by chance, their samples do not.
    control = np.array([[0.75, 0.25, 0.5, 0.5], [0.25, 0.75, 0.5, 0.5]])
    child = np.array([[0.5, 0.75, 0.5, 0.5]])
    effect = promote.estimate(control, child)
    # Rest 4 * 0.25^2 / 3 over 4 problems.
    self.assertAlmostEqual(effect.sigma_seed**2, 0.25 / 3 / 4)
    self.assertGreater(effect.p_one_sided, 0.2)

  @parameterized.parameters((0.0, 1.0), (1.0, 0.0))
  def test_no_spread_at_all(self, score, p):
    effect = promote.estimate(np.zeros((2, 3)), np.full((1, 3), score))
    self.assertEqual(effect.p_one_sided, p)
    self.assertEqual((effect.low, effect.high), (score, score))
    self.assertTrue(np.isfinite(list(vars(effect).values())).all())

  @parameterized.parameters(
      ((1, 3), (2, 3), '1 control arms; need at least 2: train more seeds'),
      ((2, 3), (0, 3), '0 child arms'),
      ((2, 1), (2, 1), '1 problems'),
      ((2, 3), (2, 4), '3 problems of the controls and 4'),
  )
  def test_refused(self, control, child, message):
    # A TypeError where annotations are checked.
    with self.assertRaisesRegex((ValueError, TypeError), f'{message}|P=3'):
      promote.estimate(np.zeros(control), np.zeros(child))

  def test_failed_scores_are_refused(self):
    control = np.zeros((2, 3))
    with self.assertRaisesRegex(ValueError, 'child arms hold NaN'):
      promote.estimate(control, np.array([[0.0, np.nan, 0.0]]))


class DetectableTest(parameterized.TestCase):
  # Arm means 0.1, 0.3, 0.1, 0.3: sigma^2 = 4 * 0.01 / 3.
  control = np.repeat([[0.1], [0.3], [0.1], [0.3]], 5, axis=1)

  def test_hand_worked(self):
    # At 3 degrees of freedom: t_.95 = 2.353363, t_.8 = 0.978472; the error
    # sqrt(0.04 / 3 * (1/4 + 1/1)).
    self.assertAlmostEqual(
        promote.mde(self.control, 1, 0.05),
        3.331835 * (0.05 / 3) ** 0.5,
        delta=0.001,
    )

  def test_children_needed(self):
    of = lambda k: promote.mde(self.control, k, 0.05)
    need = lambda effect: promote.children_needed(
        self.control, effect, 0.05, maximum=4
    )
    self.assertEqual(need(of(1)), 1)
    self.assertEqual(need(of(1) - 1e-9), 2)
    self.assertEqual(need(of(4)), 4)
    self.assertIsNone(need(of(4) - 1e-9))

  @parameterized.product(
      shape=((4, 2), (4, 4), (8, 3)), alpha=(0.06, 0.004), power=(0.5, 0.8)
  )
  def test_agrees_with_a_simulation_of_arm_means(self, shape, alpha, power):
    # Arms have sigma 1; there is nothing but the t test of two samples.
    controls, children = shape
    rng = np.random.default_rng(0)
    control = rng.normal(size=(100_000, controls))
    child = rng.normal(size=(100_000, children))
    unit = np.repeat(np.resize([-1.0, 1.0], (controls, 1)), 2, axis=1)
    unit /= unit[:, 0].std(ddof=1)
    multiple = promote.mde(unit, children, alpha, power)
    better = child + multiple * control.std(axis=1, ddof=1, keepdims=True)
    test = stats.ttest_ind(better, control, axis=1, alternative='greater')
    self.assertAlmostEqual(np.mean(test.pvalue <= alpha), power, delta=0.006)

  def test_more_arms_or_a_looser_level_detect_less(self):
    of = lambda k, alpha: promote.mde(self.control, k, alpha)
    self.assertLess(of(3, 0.05), of(2, 0.05))
    self.assertLess(of(2, 0.05), of(2, 0.01))


class AlphaTest(parameterized.TestCase):

  @parameterized.parameters(
      # In units of gamma_1 = 60 / 137, as 1 + 1/2 + 1/3 + 1/4 + 1/5 = 137 / 60;
      # w_0 = 0.075, level - w_0 = 0.025.
      ([], 0.075),
      ([False], 0.075 / 2),
      ([False, False], 0.075 / 3),
      ([True], 0.075 / 2 + 0.025),
      ([True, True], 0.075 / 3 + 0.025 / 2 + 0.1),
      ([False, True, False, True], 0.075 / 5 + 0.025 / 3 + 0.1),
      ([False] * 5, 0.0),  # One more than was promised.
  )
  def test_hand_worked(self, rejections, expected):
    alpha = promote.alpha_t(0.1, 5, rejections)
    self.assertAlmostEqual(alpha, expected * 60 / 137, places=15)
    self.assertAlmostEqual(recompute.level_of_test(0.1, 5, rejections), alpha)

  def test_never_spends_more_than_its_discoveries_earn(self):
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.5, 1.0):
      wealth, spent = promote.Wealth(0.2, 200), 0.0
      for _ in range(200):
        spent += wealth.alpha
        wealth = wealth.after(bool(rng.random() < share))
        self.assertLessEqual(spent, 0.2 * max(1, sum(wealth.rejections)))
      self.assertEqual(
          wealth.alpha, promote.alpha_t(0.2, 200, wealth.rejections)
      )


class DecideTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('significant', 0.05, (), None, 'keep', ('p 0.05 <= alpha 0.05',)),
      ('not', 0.051, (), None, 'discard', ('p 0.051 > alpha 0.05',)),
      ('agrees', 0.01, (), 0.001, 'keep', ('p 0.01 <=', 'agrees in sign')),
      ('disagrees', 0.01, (), -0.001, 'discard', ('-0.0010 disagrees',)),
      ('perturbed_is_nothing', 0.01, (), 0.0, 'discard', ('disagrees',)),
      ('alert', 0.01, ('collapse',), 0.1, 'discard', ('is new: collapse',)),
      (
          'all_reasons',
          0.5,
          ('a', 'b'),
          -0.1,
          'discard',
          ('p 0.5 >', 'new: a', 'new: b', 'disagrees'),
      ),
  )
  def test_decides(self, p, alerts, perturbed, status, reasons):
    verdict = promote.decide(
        _effect(p=p),
        0.05,
        critical_alerts=alerts,
        perturbed=None if perturbed is None else _effect(value=perturbed),
    )
    self.assertEqual(verdict.status, status)
    self.assertLen(verdict.reasons, len(reasons))
    for reason, part in zip(verdict.reasons, reasons, strict=True):
      self.assertIn(part, reason)

  @parameterized.parameters((-0.0199, True), (-0.02, False), (0.01, True))
  def test_no_loss(self, low, expected):
    self.assertEqual(promote.no_loss(_effect(low=low)), expected)


if __name__ == '__main__':
  absltest.main()
