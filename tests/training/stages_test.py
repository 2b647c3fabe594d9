"""The candidates that a plan expects in each round."""

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax.training import stages


class CandidatesTest(parameterized.TestCase):

  @parameterized.parameters(
      # Half of the rounds are expected to pass before the first candidates;
      # then a free place is filled with a probability of 0.2, and a candidate
      # races on with 0.4: 0.2 * 2; 0.4 * 0.4 + 0.2 * (2 - 0.4 * 0.4); ...
      (6, 0.05, [0, 0, 0, 0.4, 0.528, 0.56896]),
      (3, 0.0, [0, 0.4, 0.528]),
      # but at least one, since no round has told how fast the policy learns.
      (1, 0.05, [0]),
      (3, 1.0, [2, 2, 2]),
      (1, 1.0, [2]),
  )
  def test_wait_while_the_policy_learns_fast(self, rounds, settled, racing):
    config = math_config.get_config().unlock()
    config.evolve.update(dict(rounds=rounds, settled=settled))
    config.evolve.update(dict(candidates=2, entries=99, pairs=4))
    made = {
        stage.name: stage.expected
        for number in range(rounds)
        for stage in stages.of_round(config, number)
    }
    name = lambda n, what: stages.round_name(config, n, what)
    found = [made[name(n, 'candidates')] for n in range(rounds)]
    self.assertSequenceAlmostEqual(found, [2 * count for count in racing])
    # Only a round with candidates needs scores beside its arms' rollouts.
    scored = [made[name(n, 'perturbed score')] for n in range(rounds)]
    self.assertSequenceAlmostEqual(
        scored, [0.3 * 2 * 4 * min(count, 1) for count in racing]
    )
    # The first candidates are one more than there are places.
    first = [made[name(n, 'backtest')] for n in range(rounds)]
    waited = racing.count(0)
    self.assertEqual(first[:waited], [0] * waited)
    if waited < rounds:
      self.assertAlmostEqual(first[waited], 4 * (racing[waited] + 1))

  def test_a_run_with_fewer_rounds_than_it_raced_ends_its_horizon(self):
    config = math_config.get_config().unlock()
    config.evolve.update(dict(rounds=1, horizon=2))
    made = [stage.name for stage in stages.of_evolution(config, raced=3)]
    name = lambda n: stages.round_name(config, n, 'incumbent')
    # If a change was kept in the last of them, rounds 3 and 4 follow.
    self.assertEqual([name(n) in made for n in (4, 5)], [True, False])


if __name__ == '__main__':
  absltest.main()
