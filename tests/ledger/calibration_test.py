import dataclasses

from absl.testing import absltest

from evojax.ledger import calibration
from evojax.ledger import records
from tests.ledger import samples

_EXPECTED = lambda trial: trial.expected  # [0, 0.02] in all trials.


def _trials(*effects):
  """Discarded trials with (effect, low, high), or None: it crashed."""
  found = []
  for number, effect in enumerate(effects):
    value, low, high = effect or (None, None, None)
    found += samples.trial(number, 'v0', '', value, low=low, high=high)
  return samples.run(*found).trials


class CalibrationTest(absltest.TestCase):

  def test_signs_against_the_base_rate(self):
    trials = _trials(
        (0.03, 0.01, 0.05),  # Right.
        (-0.03, -0.05, -0.01),  # Wrong.
        (-0.02, -0.03, -0.01),  # Wrong.
        (0.01, -0.01, 0.03),  # Undecided.
        None,
    )
    found = calibration.signs(trials, _EXPECTED)
    # Always predicting "down" is right in two of the three that are decided.
    self.assertEqual(found, calibration.Signs(decided=3, right=1, base=2))
    row = calibration.row('all', trials, _EXPECTED)
    self.assertEqual((row.compared, row.covered), (4, 1))  # 0.01 in [0, 0.02].
    self.assertAlmostEqual(row.predicted, 0.01)
    self.assertAlmostEqual(row.realised, -0.0025)  # (3 - 3 - 2 + 1) / 4.

  def test_a_prediction_of_zero_has_no_sign(self):
    trials = _trials((0.03, 0.01, 0.05), (-0.03, -0.05, -0.01))
    found = calibration.signs(trials, lambda trial: (0.0, 0.0))
    self.assertEqual(found.right, 0)

  def test_without_any_effect(self):
    row = calibration.row('all', _trials(None), _EXPECTED)
    self.assertEqual((row.compared, row.predicted), (0, None))

  def test_what_was_vetoed_is_counted(self):
    trials = samples.run(
        *samples.trial(0, 'v0', '', status='vetoed'),
        *samples.trial(1, 'v0', '', 0.03),
        *samples.trial(2, 'v0', '', status='crash'),
    ).trials
    row = calibration.row('all', trials, _EXPECTED)
    self.assertEqual((row.trials, row.vetoed, row.compared), (3, 1, 1))

  def test_by_class(self):
    first, second, third = _trials(*[(0.01, 0.0, 0.02)] * 3)
    design = second.design
    delta = dataclasses.replace(design.delta, intervention_class='loss')
    design = dataclasses.replace(design, delta=delta)
    second = dataclasses.replace(second, design=design)
    rows = calibration.by(
        [first, second, third], lambda t: t.intervention_class, _EXPECTED
    )
    self.assertEqual(
        [(r.name, r.trials) for r in rows], [('clip', 2), ('loss', 1)]
    )

  def test_trust_hand_worked(self):
    # Predicted 0.01 both times, realised 0.03 and -0.03: the sum of products is
    # that of the prior alone, 0.03^2, over 0.03^2 + 2 * 0.01^2 = 0.0011.
    trials = _trials((0.03, 0.01, 0.05), None, (-0.03, -0.05, -0.01))
    found = calibration.trust(trials, _EXPECTED)
    slope = 9 / 11
    self.assertAlmostEqual(found.slope, slope)
    squares = 0.02**2 + (0.03 - slope / 100) ** 2 + (0.03 + slope / 100) ** 2
    self.assertAlmostEqual(found.spread, (squares / 3) ** 0.5)
    self.assertEqual(found.compared, 2)

  def test_mispredictions_lose_trust(self):
    before = calibration.trust([], _EXPECTED)
    self.assertEqual(before, calibration.Trust())
    wrong = calibration.trust(_trials(*[(-0.1, -0.2, 0.0)] * 9), _EXPECTED)
    self.assertEqual(wrong.slope, 0.0)
    right = calibration.trust(_trials(*[(0.01, 0.0, 0.02)] * 9), _EXPECTED)
    self.assertEqual(right.slope, 1.0)
    self.assertLess(right.spread, before.spread)

  def test_what_other_classes_say(self):
    # One promised 5 points and lost 5: the slope is (9 - 25) / (9 + 25) < 0,
    # so 0, and the spread sqrt((0.02^2 + 0.05^2) / 2) = 0.03808. Half way from
    # slope 1 and spread 0.02: 0.5 and sqrt((0.02^2 + 0.03808^2) / 2) = 0.03041.
    names = iter(('loss', 'clip'))
    trials = [
        dataclasses.replace(
            trial,
            design=samples.record(
                records.Design,
                delta=samples.record(
                    records.Delta, intervention_class=next(names)
                ),
            ),
        )
        for trial in _trials((-0.05, -0.1, 0.0), None)
    ]
    predict = lambda trial: (0.04, 0.06)
    low, high = calibration.in_class(trials[1], trials, predict)
    self.assertAlmostEqual((low + high) / 2, 0.5 * 0.05)
    half = ((0.5 * 0.01) ** 2 + (1.96 * 0.03041) ** 2) ** 0.5
    self.assertAlmostEqual(high - low, 2 * half, places=4)

  def test_corrected(self):
    # Half 0.04: sqrt((0.5 * 0.04)^2 + (1.96 * 0.01)^2) = 0.0280.
    low, high = calibration.corrected(
        (-0.14, -0.06), calibration.Trust(0.5, 0.01, 3)
    )
    self.assertAlmostEqual(low, -0.05 - 0.0280029, places=6)
    self.assertAlmostEqual(high, -0.05 + 0.0280029, places=6)

  def test_pooled(self):
    # Widths 2 and 4: weights 1/4 and 1/16, so 4/5 and 1/5; width 1/sqrt(5/16).
    low, high = calibration.pooled([(-1.0, 1.0), (3.0, 7.0)])
    self.assertAlmostEqual((low + high) / 2, 1.0)
    self.assertAlmostEqual(high - low, (16 / 5) ** 0.5)


if __name__ == '__main__':
  absltest.main()
