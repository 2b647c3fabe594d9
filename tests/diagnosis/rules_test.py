"""Tests for the rules that hold for any run."""

from absl.testing import absltest
from absl.testing import parameterized

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


class LazinessTest(parameterized.TestCase):

  # Tests fall from 60 to 30 %, turns from 5 to 3.
  TESTED, TURNS = [0.6, 0.5, 0.5, 0.4, 0.3], [5.0, 4.5, 4.0, 3.5, 3.0]

  def _level(self, outcome, tested=None, turns=None):
    values = rules.learning_curve(outcome)
    values |= rules.effort_curve(tested or self.TESTED, turns or self.TURNS)
    # Other rules need this one; agents are not judged by it.
    found = {m.name: m for m in rules.findings({**values, 'outcome': 0.3})}
    return found['laziness'].level

  def test_lines(self):
    # x = -2 .. 2, x.x = 10: slope of tested (-1.2 - .5 + .4 + .6) / 10 = -.07.
    curve = rules.effort_curve(self.TESTED, self.TURNS)
    self.assertAlmostEqual(curve['tested_rise'], 4 * -0.07)
    self.assertAlmostEqual(curve['turns_rise'], -2.0)
    self.assertLess(curve['tested_rise_high'], 0)
    self.assertEqual(rules.effort_curve([0.1, 0.2], [1.0, 2.0]), {})

  @parameterized.parameters(
      # More and more is solved with fewer tests: skill, not laziness.
      ([0.2, 0.3, 0.4, 0.5, 0.6], None, None, 'ok'),
      ([0.3] * 5, None, None, 'critical'),
      ([0.3] * 5, [0.60, 0.58, 0.57, 0.54, 0.53], None, 'warn'),
      ([0.3] * 5, [0.6, 0.2, 0.7, 0.3, 0.5], None, 'ok'),  # Noise.
      ([0.3] * 5, None, [3.0, 3.5, 4.0, 4.5, 5.0], 'ok'),  # More commands.
  )
  def test_it_needs_all_three(self, outcome, tested, turns, level):
    self.assertEqual(self._level(outcome, tested, turns), level)

  def test_runs_without_agents_have_none(self):
    names = {m.name for m in rules.findings(rules.learning_curve([0.3] * 5))}
    self.assertNotIn('laziness', names)


# mean_logprob of the unsolved episodes in the last third of a run of swe after
# each update (configs/swe.py, seed 302), without the first 12.
_SWE = (
    -0.12, -0.096, -0.102, -0.104, -0.096, -0.093, -0.096, -0.095, -0.104, -0.1,
    -0.099, -0.098, -0.1, -0.104, -0.098, -0.096, -0.098, -0.099, -0.095,
    -0.093, -0.097, -0.094, -0.094, -0.096, -0.094, -0.092, -0.091, -0.102,
    -0.1, -0.102, -0.102, -0.1, -0.1, -0.097, -0.099, -0.1, -0.096, -0.096,
    -0.093, -0.091, -0.09,
)  # fmt: skip


class CollapseTest(absltest.TestCase):

  def _alerts(self, series, outcome=0.3):
    """Whether exploration_collapse alerts after each update."""
    found, before = [], ()
    for value in series:
      values = {'mean_logprob': value, 'outcome': outcome}
      measures = rules.findings(values, before)
      before = {m.name for m in measures if m.level != 'ok'}
      found.append('exploration_collapse' in before)
    return found

  def test_it_does_not_flicker(self):
    found = self._alerts(_SWE)
    self.assertEqual(found, [False] + [True] * (len(_SWE) - 1))
    # By the bound alone it would turn on and off.
    alone = [value > -0.1 for value in _SWE]
    flips = sum(a != b for a, b in zip(alone, alone[1:], strict=False))
    self.assertGreater(flips, 8)

  def test_it_ends(self):
    self.assertEqual(
        self._alerts([-0.11, -0.09, -0.11, -0.13, -0.11]),
        [False, True, True, False, False],
    )
    self.assertEqual(self._alerts([-0.09, -0.09], outcome=0.95), [False] * 2)


if __name__ == '__main__':
  absltest.main()
