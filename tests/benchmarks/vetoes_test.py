"""Simulated replays have the difference that they are asked for."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import numpy as np

from benchmarks import vetoes
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records
from evojax.stats import intervals
from tests.ledger import samples


class VetoesTest(absltest.TestCase):

  def test_gains_are_about_the_effect(self):
    rng = np.random.default_rng(0)
    for effect in (0.0, 0.05, -0.05):
      found = [
          vetoes.gains(rng, np.full(2, effect)).mean() for _ in range(2000)
      ]
      # The standard error of this mean is 0.03 / sqrt(2000) = 0.0007. Shares
      # are cut at 0 and 1 where they leave them, which is rare.
      self.assertAlmostEqual(np.mean(found), effect, delta=0.005)

  def test_only_a_sure_loss_is_vetoed(self):
    def count(effect, trust):
      rng = np.random.default_rng(1)
      options = 2, (0.0, 0.0), trust
      return sum(
          vetoes.is_vetoed(rng, effect, *options) for _ in range(50)
      )

    exact = calibration.Trust(1.0, 0.0, 9)
    self.assertGreater(count(-0.2, exact), 45)
    self.assertLess(count(0.0, exact), 6)
    # A class whose replays say nothing vetoes nothing.
    self.assertEqual(count(-0.2, calibration.Trust(0.0, 0.1, 9)), 0)

  def test_by_how_much_recorded_replays_missed(self):
    def trial(number, replay, effect, error=0.01):
      return history.Trial(
          index=number,
          number=number,
          seconds={},
          backtest=samples.record(records.Backtest, predicted=replay),
          verify=samples.record(
              records.Verify,
              effect=effect,
              standard_error=error,
              low=-1.0,
              high=1.0,
          ),
      )

    # Middles of 2 and 0 points with standard errors of 1; misses of -3 and 5.
    wide = 0.01 * intervals.Z95
    trials = [
        trial(0, (0.02 - wide, 0.02 + wide), -0.01),
        trial(1, (-wide, wide), 0.05),
    ]
    # These cannot be compared.
    left_out = [trial(2, None, 0.3), trial(3, (0.1, 0.2), 0.3, None)]
    found = vetoes.missed([*trials, *left_out])
    self.assertEqual(found.changes, 2)
    self.assertAlmostEqual(found.mean, 1.0)
    self.assertAlmostEqual(found.deviation, 32**0.5)
    self.assertAlmostEqual(found.noise, 2**0.5)
    self.assertAlmostEqual(found.rest, 30**0.5)
    self.assertIsNone(vetoes.missed(trials[:1]))

  def test_replays_are_weighed_by_what_the_run_knew(self):
    remedy = records.Remedy(setting='weight', part='length', value=0.0)
    fault = samples.record(
        records.Finding, severity='warning', remedies=(remedy,)
    )

    def trial(number, tokens, findings=()):
      delta = samples.record(
          records.Delta,
          factor=f'factor {number}',
          changes=(('reward.weights.length', -2.0, 0.0),),
      )
      return [
          samples.record(
              records.Diagnose, trial=number, round=4, findings=findings
          ),
          samples.record(
              records.Hypothesize, trial=number, expected=(0.0, number / 10)
          ),
          samples.record(records.Design, trial=number, delta=delta),
          samples.record(
              records.Backtest, trial=number, sampled_tokens=tokens
          ),
      ]

    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    samples.write(
        folder,
        samples.record(records.Open, config={'evolve': {'settled': 0.05}}),
        *trial(1, 100),
        *trial(2, 0),  # It was not replayed.
        *trial(3, 100, (fault,)),  # It repairs a fault.
        *trial(4, 100),
    )
    asked = []

    def worth(run, number, findings, delta, expected):
      known = [t.number for t in run.recorder.history.trials if t.backtest]
      asked.append((number, delta.factor, expected[1], known))
      self.assertEqual(run.config.evolve.settled, 0.05)
      return delta.factor == 'factor 4'

    with mock.patch.object(vetoes.prospects, 'is_worth_trying', worth):
      found = vetoes.worth(str(folder))
    self.assertEqual([(t.number, w) for t, w in found], [(1, False), (4, True)])
    self.assertEqual(
        asked, [(4, 'factor 1', 0.1, []), (4, 'factor 4', 0.4, [1, 2, 3])]
    )


if __name__ == '__main__':
  absltest.main()
