"""Which changes are worth the tokens of a backtest, worked out by hand."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.evolve import costs
from evojax.evolve import learning
from evojax.evolve import opening
from evojax.evolve import prospects
from evojax.evolve import ranking
from evojax.evolve import standings
from evojax.harness import delta as delta_lib
from evojax.ledger import records
from tests.ledger import samples


def changed(
    factor='clip', name='loss', changes=(('grpo.clip_high', 0.2, 0.3),)
):
  return delta_lib.Delta(
      factor=factor,
      kind='recipe',
      intervention_class=name,
      changes=tuple(changes),
      before='a',
      after='b',
  )


class ProspectsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.chances = [0.1, 0.3, 0.8]
    self.learns = 0.0  # What `learning` asks for.
    self.last = False
    self.share = 0.25  # The tokens of a replay, of those of a candidate's arms.
    self.asked = []
    self.settled = 0.05
    patch = lambda module, name, new: self.enterContext(
        mock.patch.object(module, name, new)
    )
    patch(costs, 'is_last', lambda *_, **__: self.last)
    patch(costs, 'of_replay', lambda *_: self.share)
    patch(learning, 'least_chance', lambda *_: self.learns)
    patch(standings, 'chance', lambda run, number, predicted: predicted)
    patch(ranking, 'outlooks', self._outlooks)

  def _outlooks(self, name, expected, trials, *, replays):
    """Chances stand for the predictions that lead to them."""
    self.asked.append((name, expected, replays))
    return self.chances if replays else self.chances[:1]

  def _is_worth(self, delta=None, findings=()):
    return prospects.is_worth_trying(
        mock.Mock(
            spec=opening.Run,
            recorder=mock.Mock(),
            config=ml_collections.ConfigDict(
                {'evolve': {'settled': self.settled}}
            ),
        ),
        3,
        findings,
        delta or changed(),
        (-0.04, 0.07),
    )

  @parameterized.parameters(
      # Above the least chance of 0.2 lie 0, 0.1 and 0.6: 0.2333 on average. A
      # replay costs 0.2 times its share of the tokens.
      (False, 0.0, 1.16, True),
      (False, 0.0, 1.17, False),
      # In the last round 0.5 is asked for: 0.3 / 3 = 0.1 is gained.
      (True, 0.0, 0.199, True),
      (True, 0.0, 0.201, False),
      # A policy that learns asks for more: 0.1 / 3 is gained.
      (False, 0.7, 0.047, True),
      (False, 0.7, 0.048, False),
      # No chance is large enough.
      (False, 0.9, 0.2, False),
      (False, 1.0, 0.0, False),
  )
  def test_value_and_cost_of_a_replay(self, last, learns, share, expected):
    self.last, self.learns, self.share = last, learns, share
    self.assertEqual(self._is_worth(), expected)

  def test_without_a_replay_the_chance_decides(self):
    tools = changed('tools', 'tools')
    self.share = 9.0  # There is none that costs anything.
    self.assertFalse(self._is_worth(tools))
    self.chances = [0.21, 0.0, 0.0]
    self.assertTrue(self._is_worth(tools))
    self.assertEqual(self.asked[-1], ('tools', (-0.04, 0.07), False))

  @parameterized.parameters(('critical', True), ('warning', True), ('', False))
  def test_repairs_are_worth_it(self, severity, expected):
    self.learns = 1.0
    remedy = records.Remedy(setting='weight', part='length', value=0.0)
    finding = samples.record(
        records.Finding, severity=severity, remedies=(remedy,)
    )
    delta = changed(changes=[('reward.weights.length', -2.0, 0.0)])
    self.assertEqual(self._is_worth(delta, [finding]), expected)

  def test_where_nothing_waits_everything_is_tried(self):
    self.chances = [0.0] * 3
    self.assertFalse(self._is_worth())
    self.settled = 1.0
    self.assertTrue(self._is_worth())

  def test_what_trains_nothing_costs_nothing(self):
    self.learns = 1.0
    self.assertTrue(self._is_worth(changed('diagnostic:own', 'diagnostics')))


if __name__ == '__main__':
  absltest.main()
