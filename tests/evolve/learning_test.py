"""The rise of the solved share, from lines worked out by hand."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax.evolve import learning
from evojax.evolve import opening
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples


def run(*rounds, policy='chain', settled=0.05):
  """A run whose policy has the given solved shares, by round and by arm."""
  arms, made = [], []
  for number, outcomes in enumerate(rounds):
    folders = [f'arms/r{number}-{i}' for i in range(len(outcomes))]
    arms += [
        samples.record(records.RacedArm, folder=folder, outcome=tuple(outcome))
        for folder, outcome in zip(folders, outcomes)
    ]
    sources = [samples.record(records.Source, folder=f) for f in folders]
    made.append(
        samples.record(records.Promote, round=number, sources=tuple(sources))
    )
  # A kept change that trains nothing makes a version, too.
  made.append(samples.record(records.Promote, round=None, sources=()))
  config = math_config.get_config('smoke').unlock()
  config.evolve.update(dict(policy=policy, settled=settled))
  history = mock.Mock(
      spec=history_lib.History,
      races=[samples.record(records.Race, arms=tuple(arms))],
      all=lambda kind: made if kind is records.Promote else [],
  )
  return mock.Mock(
      spec=opening.Run, config=config, recorder=mock.Mock(history=history)
  )


class RiseTest(parameterized.TestCase):

  def test_a_line_through_the_updates_of_a_chain(self):
    # 1 point an update, in rounds of 2 arms with 3 updates: 6 points a round.
    first = [(0.30, 0.31, 0.32), (0.33, 0.34, 0.35)]
    second = [(0.36, 0.37, 0.38), (0.39, 0.40, 0.41)]
    self.assertAlmostEqual(learning.rise(run(first, second), 2), 0.06)
    # Only the rounds before count, and of these the last two.
    self.assertAlmostEqual(learning.rise(run(first, second), 1), 0.06)
    flat = [(0.41, 0.41, 0.41), (0.41, 0.41, 0.41)]
    found = run(first, flat, flat, second)
    self.assertAlmostEqual(learning.rise(found, 3), 0.0)
    self.assertIsNone(learning.rise(found, 0))

  def test_least_squares(self):
    # Deviations (-1.5, -0.5, 0.5, 1.5) times (0.1, 0.4, 0.2, 0.5) sum to 0.5;
    # their squares to 5. So the slope is 0.1, times 4 updates.
    self.assertAlmostEqual(learning.rise(run([(0.1, 0.4, 0.2, 0.5)]), 1), 0.4)

  def test_arms_side_by_side_are_averaged(self):
    side_by_side = [(0.2, 0.3, 0.4), (0.4, 0.5, 0.6)]
    found = run(side_by_side, policy='mean')
    # Their mean is 0.3, 0.4, 0.5: 0.1 an update, 3 updates a round.
    self.assertAlmostEqual(learning.rise(found, 1), 0.3)

  def test_an_arm_without_rollouts_does_not_count(self):
    self.assertEqual(learning.rise(run([()]), 1), 0.0)
    self.assertAlmostEqual(learning.rise(run([(), (0.2, 0.3)]), 1), 0.2)
    found = run([(), (0.2, 0.3)], policy='mean')
    self.assertAlmostEqual(learning.rise(found, 1), 0.2)

  def test_a_policy_that_stays_as_it_was_does_not_learn(self):
    # The arms of both rounds taught nothing, and are no sources.
    self.assertEqual(learning.rise(run([], []), 2), 0.0)
    self.assertEqual(learning.why_wait(run([], []), 2), '')
    # 2 updates in 2 rounds: one in a round, by 10 points each.
    self.assertAlmostEqual(learning.rise(run([(0.2, 0.3)], []), 2), 0.1)

  def test_changes_wait_while_the_policy_learns_fast(self):
    rises = lambda by: run([(0.3, 0.3 + by)], settled=0.05)
    # The slope times two updates is twice the difference.
    self.assertEqual(learning.why_wait(rises(0.024), 1), '')
    self.assertEqual(learning.why_wait(rises(-0.2), 1), '')
    self.assertIn('gains 6.0 points', learning.why_wait(rises(0.03), 1))
    self.assertIn('trained for a round', learning.why_wait(rises(0.03), 0))
    always = run([(0.3, 0.9)], settled=1.0)
    self.assertEqual(learning.why_wait(always, 0), '')
    self.assertEqual(learning.why_wait(always, 1), '')

  def test_the_chance_that_a_race_needs(self):
    chance = lambda by, settled=0.05, number=1: learning.least_chance(
        run([(0.3, 0.3 + by)], settled=settled), number
    )
    # Rises of 1 and 4 points, where a proven gain is worth 5.
    self.assertAlmostEqual(chance(0.005), 0.2)
    self.assertAlmostEqual(chance(0.02), 0.8)
    self.assertEqual(chance(-0.1), 0.0)
    self.assertEqual(chance(0.3, settled=1.0), 0.0)
    self.assertEqual(chance(0.0, settled=0.0), 0.0)


if __name__ == '__main__':
  absltest.main()
