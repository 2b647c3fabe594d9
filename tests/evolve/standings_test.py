"""The last round of a candidate, and its chance to prove a gain."""

from unittest import mock

from absl.testing import absltest
import ml_collections
import numpy as np
from scipy import stats

from evojax.evolve import costs
from evojax.evolve import opening
from evojax.evolve import standings
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples

_SPREAD, _PAIRS, _ALPHA = 0.03, 4, 0.05


class ChanceTest(absltest.TestCase):

  def _chance(self, predicted, *, rounds=1, raced=True, solved=0.3):
    """The chance with pairs that differ by _SPREAD, and rounds to race in."""
    differences = _SPREAD * np.array([1, -1, 1, -1])
    row = samples.record(
        records.Standing, differences=tuple(differences), errors=(0.001,) * 4
    )
    arms = [
        samples.record(records.RacedArm, role=role, outcome=outcome)
        for role, outcome in (
            ('incumbent', (0.0, 0.0)),
            ('incumbent', (solved - 0.01, solved + 0.01)),  # It goes on.
            ('candidate', (0.0, 0.0)),
        )
    ]
    race = samples.record(
        records.Race, round=0, standings=(row,), arms=tuple(arms)
    )
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict(
            {'evolve': {'pairs': _PAIRS, 'patience': 3, 'rounds': 9}}
        ),
    )
    run.recorder.history.races = [race] * raced
    with (
        mock.patch.object(costs, 'rounds_left', lambda *_, **__: rounds),
        mock.patch.object(standings, 'alpha_of', lambda *_: _ALPHA),
    ):
      return standings.chance(run, 1, predicted)

  def test_the_last_round_is_a_t_test(self):
    # Ordinary pairs of an effect that is itself drawn as it is predicted. The
    # spread of 4 differences around their mean has 3 degrees of freedom.
    noise = _SPREAD * np.sqrt(4 / 3)
    rng = np.random.default_rng(1)
    effects = rng.normal(0.03, 0.04 / 1.96, 20_000)
    found = effects[:, None] + rng.normal(0, noise, (20_000, _PAIRS))
    p = stats.ttest_1samp(found, 0, axis=1, alternative='greater').pvalue
    half = found[:, :2].mean(axis=1) + 0.84 * noise / np.sqrt(2) >= 0.02
    expected = np.mean((p <= _ALPHA) & half)
    self.assertAlmostEqual(self._chance((-0.01, 0.07)), expected, delta=0.02)

  def test_more_rounds_and_larger_effects_help(self):
    few, more = (self._chance((-0.01, 0.07), rounds=n) for n in (1, 3))
    self.assertGreater(more, few + 0.05)
    self.assertEqual(self._chance((-0.01, 0.07), rounds=9), more)  # Patience.
    self.assertLess(self._chance((-0.05, 0.0)), 0.05)
    self.assertGreater(self._chance((0.2, 0.2)), 0.99)

  def test_no_change_gains_more_than_is_unsolved(self):
    much, little = (self._chance((0.0, 0.2), solved=x) for x in (0.3, 0.98))
    self.assertGreater(much, 0.7)
    self.assertLess(little, self._chance((0.02, 0.02)) + 1e-6)

  def test_before_the_first_pairs_they_differ_as_usual(self):
    # By 2 points, where those of the round differ by 3.5.
    pairs = self._chance((-0.01, 0.07))
    self.assertGreater(self._chance((-0.01, 0.07), raced=False), pairs + 0.1)
    self.assertLess(self._chance((-0.05, 0.03), raced=False), 0.2)


class LastTest(absltest.TestCase):

  def test_the_scores_of_the_round_decide(self):
    # The tokens pay for a further round only if none has dev scores.
    run = mock.Mock(
        spec=opening.Run,
        config=ml_collections.ConfigDict(
            {'evolve': {'patience': 3, 'rounds': 9}}
        ),
    )
    trial = history_lib.Trial(index=0, number=0, seconds={})
    pays = lambda run, number, *, dev=False: 3.9 if dev else 4.0
    with mock.patch.object(costs, 'payable', pays):
      of = lambda scored_by: standings.is_last(run, 1, trial, 1, scored_by)
      self.assertEqual((of('dev'), of('rollouts')), (True, False))


if __name__ == '__main__':
  absltest.main()
