import dataclasses

from absl.testing import absltest

from evojax.ledger import calibration
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


if __name__ == '__main__':
  absltest.main()
