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


if __name__ == '__main__':
  absltest.main()
