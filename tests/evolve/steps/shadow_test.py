"""The conditions under which a kept change gets a shadow."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.evolve import opening
from evojax.evolve.steps import shadow
from evojax.ledger import records
from tests.ledger import samples


class NeededTest(parameterized.TestCase):

  @parameterized.parameters(
      # The incumbent's arms rose by 6 points, which makes 18 in 3 rounds.
      ((0.30, 0.32), (0.34, 0.36), 0.17, 3, True),
      ((0.30, 0.32), (0.34, 0.36), 0.19, 3, False),
      ((0.30, 0.32), (0.34, 0.36), 0.17, 0, False),  # No horizon.
      ((0.30, 0.28), (0.26, 0.24), 0.01, 3, False),  # It does harm.
  )
  def test_only_where_it_could_catch_up(self, first, last, low, looks, needed):
    arms = tuple(
        samples.record(
            records.RacedArm,
            role='incumbent',
            trial=None,
            pair=pair,
            status='done',
            outcome=outcome,
        )
        for pair, outcome in enumerate((first, last))
    )
    race = samples.record(records.Race, arms=arms, standings=())
    verdict = samples.record(records.Verify, low=low)
    self.assertEqual(shadow.is_needed(race, verdict, looks), needed)

  @parameterized.parameters((0.10, 'keep'), (0.01, 'go_on'))
  def test_a_look_ends_where_it_is_out_of_reach(self, ahead, decision):
    # The shadow rises by 2 points a round.
    arms = tuple(
        samples.record(
            records.RacedArm,
            folder=f'arms/{pair}',
            role='shadow',
            trial=3,
            pair=pair,
            status='done',
            outcome=(0.30 + 0.01 * pair,) * 2,
        )
        for pair in range(3)
    )
    race = samples.record(records.Race, round=1, arms=arms, standings=())
    before = samples.record(records.Shadow, trial=3, look=0)
    evolve = dict(horizon=3, rounds=6, policy='chain')
    run = mock.Mock(
        spec=opening.Run, config=ml_collections.ConfigDict({'evolve': evolve})
    )
    state = mock.Mock(checkpoint='', end='', arm=arms[-1])
    # The former harness minus the policy.
    found = ([-ahead, -ahead - 0.001, -ahead + 0.001], [0.001] * 3)
    with (
        mock.patch.object(shadow.pairs, 'differences', return_value=found),
        mock.patch.object(shadow.promote, 'trained_on', return_value=arms),
        mock.patch.object(shadow.promote, 'state_of', return_value=state),
    ):
      looked = shadow.look(run, before, race)
    self.assertEqual(looked.decision, decision)
    self.assertEqual('out of reach' in looked.reason, decision == 'keep')


if __name__ == '__main__':
  absltest.main()
