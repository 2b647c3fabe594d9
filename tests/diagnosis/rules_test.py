"""Tests for the rules that hold for any run."""

from absl.testing import absltest

from evojax.diagnosis import rules


class LearningCurveTest(absltest.TestCase):

  def test_line_through_hand_worked_points(self):
    # y = .2, .4, .3, .5: mean .35, x = -1.5, -.5, .5, 1.5, x.x = 5,
    # x.y = -.3 - .2 + .15 + .75 = .4, slope .08, start .35 - .12 = .23,
    # rise 3 * .08 = .24, closed .24 / .77.
    # Residuals -.03, .09, -.09, .03: sum of squares .018; slope's error
    # sqrt(.018 / 2 / 5) = .0424264; t_{.95, 2} = 2.919986.
    curve = rules.learning_curve([0.2, 0.4, 0.3, 0.5])
    self.assertAlmostEqual(curve['outcome_start'], 0.23)
    self.assertAlmostEqual(curve['outcome_rise'], 0.24)
    self.assertAlmostEqual(curve['unsolved_closed'], 0.24 / 0.77)
    self.assertAlmostEqual(
        curve['outcome_rise_high'], 0.24 + 2.919986 * 0.0424264 * 3, places=5
    )

  def test_too_short(self):
    self.assertEqual(rules.learning_curve([0.2, 0.4]), {})
    self.assertEqual(rules.learning_curve([]), {})

  def test_all_solved_has_nothing_left_to_close(self):
    self.assertNotIn('unsolved_closed', rules.learning_curve([1.0] * 5))


if __name__ == '__main__':
  absltest.main()
